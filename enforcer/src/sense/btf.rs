//! A reader of BTF, the kernel's description of its own types.
//!
//! It answers only the queries of the probe and the offsets. It is total: for any bytes it answers or returns an
//! error, in time linear in their number. Documentation/bpf/btf.rst in the kernel's source describes the format.
use std::{
    collections::HashMap,
    fs,
    hash::{BuildHasherDefault, Hasher},
    io,
    path::Path,
};

/// The kernel's own BTF.
pub const VMLINUX: &str = "/sys/kernel/btf/vmlinux";

/// More than any kernel has, yet small enough for a daemon with little memory.
const MAX_BYTES: u64 = 64 * 1024 * 1024;
/// How many anonymous structures may nest, and how many qualifiers may wrap a type.
const MAX_DEPTH: u32 = 16;
const MAGIC: u16 = 0xeb9f;

/// Why BTF could not be read.
#[derive(Debug, thiserror::Error)]
pub enum BtfError {
    /// The file cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// The underlying error.
        source: io::Error,
    },
    /// The file is larger than any kernel's.
    #[error("{path} has more than {MAX_BYTES} bytes")]
    TooLarge {
        /// The file.
        path: String,
    },
    /// Not BTF, another byte order, or an unknown version.
    #[error("no BTF of version 1 in this machine's byte order")]
    NotBtf,
    /// A section or a type reaches past the end.
    #[error("cut off in {what} at byte {at}")]
    Short {
        /// What was being read.
        what: &'static str,
        /// Where.
        at: usize,
    },
    /// A kind of type that this reader does not know, so the start of the next type is unknown.
    #[error("type {id} is of unknown kind {kind}")]
    UnknownKind {
        /// Number of the type.
        id: u32,
        /// The kind's number.
        kind: u32,
    },
}

/// Kinds of types, as numbered by the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// An integer.
    Int,
    /// A pointer.
    Ptr,
    /// An array.
    Array,
    /// A structure.
    Struct,
    /// A union.
    Union,
    /// An enumeration of 32-bit values.
    Enum,
    /// A declaration without definition.
    Fwd,
    /// An alias of a type.
    Typedef,
    /// `volatile`, `const`, `restrict` or a type tag on another type.
    Qualifier,
    /// A function.
    Func,
    /// The parameters and result of a function.
    FuncProto,
    /// A variable, a section, a floating-point number, a declaration tag: kinds that are never queried.
    Other,
    /// An enumeration of 64-bit values.
    Enum64,
}

/// Number of a type; 0 is `void`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TypeId(u32);

impl TypeId {
    /// The number as bpf(2) takes it, if it is one of the kernel's own BTF.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }
}

/// A member of a structure or union.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Bytes from the beginning of the outermost structure.
    pub offset_bytes: u32,
    /// Its type.
    pub type_id: TypeId,
}

/// A parsed BTF blob.
#[derive(Debug)]
pub struct Btf {
    bytes: Vec<u8>,
    /// Offset of each type in `bytes`; the first is type 1.
    starts: Vec<u32>,
    strings: std::ops::Range<usize>,
    /// Structures, unions, typedefs and functions by the hash of name and kind; the first of a name wins, as in the kernel.
    names: HashMap<u64, TypeId, BuildHasherDefault<Hashed>>,
}

/// Takes keys that are hashes as they are.
#[derive(Default)]
struct Hashed(u64);

impl Hasher for Hashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = hash(bytes, Kind::Other);
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

#[derive(Clone, Copy)]
struct Record {
    at: usize,
    name: u32,
    info: u32,
    size_or_type: u32,
}

impl Record {
    const fn count(self) -> u32 {
        self.info & 0xffff
    }

    const fn raw_kind(self) -> u32 {
        (self.info >> 24) & 0x1f
    }

    const fn kind_flag(self) -> bool {
        self.info >> 31 == 1
    }

    /// The kind, and how many bytes follow the three common words.
    const fn kind(self) -> Option<(Kind, usize)> {
        let count = self.count() as usize;
        Some(match self.raw_kind() {
            1 => (Kind::Int, 4),
            2 => (Kind::Ptr, 0),
            3 => (Kind::Array, 12),
            4 => (Kind::Struct, count * 12),
            5 => (Kind::Union, count * 12),
            6 => (Kind::Enum, count * 8),
            7 => (Kind::Fwd, 0),
            8 => (Kind::Typedef, 0),
            9..=11 | 18 => (Kind::Qualifier, 0),
            12 => (Kind::Func, 0),
            13 => (Kind::FuncProto, count * 8),
            14 | 17 => (Kind::Other, 4),
            15 => (Kind::Other, count * 12),
            16 => (Kind::Other, 0),
            19 => (Kind::Enum64, count * 12),
            _ => return None,
        })
    }
}

fn u32_at(bytes: &[u8], at: usize, what: &'static str) -> Result<u32, BtfError> {
    at.checked_add(4)
        .and_then(|end| bytes.get(at..end))
        .and_then(|word| word.try_into().ok())
        .map(u32::from_ne_bytes)
        .ok_or(BtfError::Short { what, at })
}

/// FNV-1a of the number of a kind and a name. All names come from the kernel; names are compared, so a collision hides the later
/// type.
fn hash(name: &[u8], kind: Kind) -> u64 {
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let mut hash = (0xcbf2_9ce4_8422_2325 ^ kind as u64).wrapping_mul(PRIME);
    for byte in name {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(PRIME);
    }
    hash
}

impl Btf {
    /// Reads and parses a file.
    pub fn read(path: &Path) -> Result<Self, BtfError> {
        let name = || path.display().to_string();
        let read = |source| BtfError::Read { path: name(), source };
        let file = fs::File::open(path).map_err(read)?;
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut io::Read::take(file, MAX_BYTES + 1), &mut bytes).map_err(read)?;
        if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > MAX_BYTES {
            return Err(BtfError::TooLarge { path: name() });
        }
        Self::parse(bytes)
    }

    /// Parses a blob.
    pub fn parse(bytes: Vec<u8>) -> Result<Self, BtfError> {
        const HEADER: &str = "the header";
        let first = u32_at(&bytes, 0, HEADER)?.to_ne_bytes();
        let [magic_0, magic_1, version, _flags] = first;
        if u16::from_ne_bytes([magic_0, magic_1]) != MAGIC || version != 1 {
            return Err(BtfError::NotBtf);
        }
        let word = |at| u32_at(&bytes, at, HEADER).map(|word| usize::try_from(word).unwrap_or(usize::MAX));
        let header_len = word(4)?;
        let section = |offset: usize, len: usize, what: &'static str| {
            let start = header_len.saturating_add(offset);
            let end = start.saturating_add(len);
            if end > bytes.len() { Err(BtfError::Short { what, at: start }) } else { Ok(start..end) }
        };
        let types = section(word(8)?, word(12)?, "the type section")?;
        let strings = section(word(16)?, word(20)?, "the string section")?;

        // Shorter records than this are rare.
        let most = types.len() / 16;
        let names = HashMap::with_capacity_and_hasher(most / 3, BuildHasherDefault::default());
        let mut btf = Self { bytes, starts: Vec::with_capacity(most), strings, names };
        btf.index(types)?;
        Ok(btf)
    }

    fn index(&mut self, types: std::ops::Range<usize>) -> Result<(), BtfError> {
        const WHAT: &str = "a type";
        let mut at = types.start;
        while at < types.end {
            let id = u32::try_from(self.starts.len() + 1).unwrap_or(u32::MAX);
            let record = self.record_at(at)?;
            let Some((kind, extra)) = record.kind() else {
                return Err(BtfError::UnknownKind { id, kind: record.raw_kind() });
            };
            let end = at + 12 + extra;
            if end > types.end {
                return Err(BtfError::Short { what: WHAT, at });
            }
            self.starts.push(u32::try_from(at).unwrap_or(u32::MAX));
            let asked = matches!(kind, Kind::Struct | Kind::Union | Kind::Typedef | Kind::Func | Kind::Enum);
            if asked && let Some(name) = self.string(record.name).filter(|name| !name.is_empty()) {
                self.names.entry(hash(name, kind)).or_insert(TypeId(id));
            }
            at = end;
        }
        Ok(())
    }

    fn record_at(&self, at: usize) -> Result<Record, BtfError> {
        const WHAT: &str = "a type";
        Ok(Record {
            at,
            name: u32_at(&self.bytes, at, WHAT)?,
            info: u32_at(&self.bytes, at + 4, WHAT)?,
            size_or_type: u32_at(&self.bytes, at + 8, WHAT)?,
        })
    }

    fn record(&self, id: TypeId) -> Option<Record> {
        let index = usize::try_from(id.0).ok()?.checked_sub(1)?;
        self.record_at(usize::try_from(*self.starts.get(index)?).ok()?).ok()
    }

    /// Whether a type with that number exists; 0 is `void`. A damaged blob refers to others.
    fn holds(&self, id: TypeId) -> bool {
        id.0 == 0 || self.record(id).is_some()
    }

    fn string(&self, offset: u32) -> Option<&[u8]> {
        let rest = self.bytes.get(self.strings.clone())?.get(usize::try_from(offset).ok()?..)?;
        rest.split(|byte| *byte == 0).next()
    }

    /// Number of types.
    #[must_use]
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// Whether there are no types.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// The type of this name and kind: structures, unions, enumerations, typedefs and functions.
    #[must_use]
    pub fn find(&self, name: &str, kind: Kind) -> Option<TypeId> {
        let id = *self.names.get(&hash(name.as_bytes(), kind))?;
        let record = self.record(id)?;
        (record.kind()?.0 == kind && self.string(record.name)? == name.as_bytes()).then_some(id)
    }

    /// The type's kind.
    #[must_use]
    pub fn kind(&self, id: TypeId) -> Option<Kind> {
        self.record(id)?.kind().map(|(kind, _)| kind)
    }

    /// The type behind typedefs and qualifiers.
    #[must_use]
    pub fn resolve(&self, mut id: TypeId) -> Option<TypeId> {
        for _ in 0..MAX_DEPTH {
            let record = self.record(id)?;
            match record.kind()?.0 {
                Kind::Typedef | Kind::Qualifier => id = TypeId(record.size_or_type),
                _ => return Some(id),
            }
        }
        None
    }

    /// The target type of a pointer.
    #[must_use]
    pub fn pointee(&self, id: TypeId) -> Option<TypeId> {
        let record = self.record(self.resolve(id)?)?;
        matches!(record.kind()?.0, Kind::Ptr)
            .then_some(TypeId(record.size_or_type))
            .filter(|id| self.holds(*id))
    }

    /// The prototype of a function.
    #[must_use]
    pub fn prototype(&self, function: TypeId) -> Option<TypeId> {
        let record = self.record(function)?;
        matches!(record.kind()?.0, Kind::Func)
            .then_some(TypeId(record.size_or_type))
            .filter(|id| self.holds(*id))
    }

    /// Name of the type; empty if it has none.
    #[must_use]
    pub fn name(&self, id: TypeId) -> Option<&str> {
        std::str::from_utf8(self.string(self.record(id)?.name)?).ok()
    }

    /// Size of a structure, union, integer, enumeration, pointer or array in bytes.
    #[must_use]
    pub fn size_bytes(&self, id: TypeId) -> Option<u32> {
        self.size_within(id, MAX_DEPTH)
    }

    fn size_within(&self, id: TypeId, depth: u32) -> Option<u32> {
        let depth = depth.checked_sub(1)?;
        let record = self.record(self.resolve(id)?)?;
        match record.kind()?.0 {
            Kind::Int | Kind::Struct | Kind::Union | Kind::Enum | Kind::Enum64 => Some(record.size_or_type),
            Kind::Ptr => u32::try_from(size_of::<usize>()).ok(),
            Kind::Array => {
                let element = self.size_within(TypeId(self.word(record, 0)?), depth)?;
                element.checked_mul(self.word(record, 8)?)
            }
            Kind::Fwd | Kind::Typedef | Kind::Qualifier | Kind::Func | Kind::FuncProto | Kind::Other => None,
        }
    }

    /// Type and number of an array's elements.
    #[must_use]
    pub fn array(&self, id: TypeId) -> Option<(TypeId, u32)> {
        let record = self.record(self.resolve(id)?)?;
        match record.kind()?.0 {
            Kind::Array => {
                let element = TypeId(self.word(record, 0)?);
                Some((element, self.word(record, 8)?)).filter(|_| self.holds(element))
            }
            _ => None,
        }
    }

    /// The member with this name, also in anonymous structures and unions within. Bit fields are refused: they have no
    /// byte offset.
    #[must_use]
    pub fn member(&self, id: TypeId, name: &str) -> Option<Member> {
        // A budget in addition to the depth: a hostile blob could make the tree of anonymous members exponential.
        let mut budget = 65_536;
        self.member_within(id, name, MAX_DEPTH, &mut budget)
    }

    fn member_within(&self, id: TypeId, name: &str, depth: u32, budget: &mut u32) -> Option<Member> {
        let depth = depth.checked_sub(1)?;
        let record = self.record(self.resolve(id)?)?;
        if !matches!(record.kind()?.0, Kind::Struct | Kind::Union) {
            return None;
        }
        for index in 0..record.count() {
            *budget = budget.checked_sub(1)?;
            let at = usize::try_from(index).ok()? * 12;
            let member_name = self.string(self.word(record, at)?)?;
            let type_id = TypeId(self.word(record, at + 4)?);
            let raw = self.word(record, at + 8)?;
            let (bits, field_bits) =
                if record.kind_flag() { (raw & 0x00ff_ffff, raw >> 24) } else { (raw, 0) };
            if member_name == name.as_bytes() {
                return (bits % 8 == 0 && field_bits == 0)
                    .then_some(Member { offset_bytes: bits / 8, type_id });
            }
            if member_name.is_empty()
                && let Some(inner) = self.member_within(type_id, name, depth, budget)
            {
                let offset_bytes = (bits / 8).checked_add(inner.offset_bytes)?;
                return Some(Member { offset_bytes, ..inner });
            }
        }
        None
    }

    /// The parameter types of a function prototype.
    #[must_use]
    pub fn parameters(&self, id: TypeId) -> Option<Vec<TypeId>> {
        let record = self.record(self.resolve(id)?)?;
        if !matches!(record.kind()?.0, Kind::FuncProto) {
            return None;
        }
        (0..record.count())
            .map(|index| Some(TypeId(self.word(record, usize::try_from(index).ok()? * 8 + 4)?)))
            .map(|id| id.filter(|id| self.holds(*id)))
            .collect()
    }

    /// Value of an enumerator of a named enumeration, if it fits.
    #[must_use]
    pub fn enumerator(&self, enumeration: TypeId, name: &str) -> Option<u32> {
        let record = self.record(enumeration)?;
        let stride = match record.kind()?.0 {
            Kind::Enum => 8,
            Kind::Enum64 => 12,
            _ => return None,
        };
        (0..record.count()).find_map(|index| {
            let at = usize::try_from(index).ok()? * stride;
            (self.string(self.word(record, at)?)? == name.as_bytes())
                .then(|| self.word(record, at + 4))
                .flatten()
        })
    }

    /// A word after the three common ones.
    fn word(&self, record: Record, offset: usize) -> Option<u32> {
        u32_at(&self.bytes, record.at + 12 + offset, "a type").ok()
    }
}

#[cfg(test)]
pub(crate) mod build;
#[cfg(test)]
mod tests;
