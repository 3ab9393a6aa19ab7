//! The numbers of the types that programs attach to.
//!
//! bpf(2) takes the number that a function or a tracepoint has in the kernel's BTF. aya looks it up by name among parsed types.
//! To parse all the kernel's types, some 100,000, takes longer than to verify the programs, so aya is given a blob in which all
//! others are empty.
use aya::{Btf as AyaBtf, Endianness};

use super::plan;
use crate::sense::btf::{Btf, Kind, TypeId};

/// A forward declaration: the shortest record there is.
const EMPTY: u32 = 7;
const TYPEDEF: u32 = 8;
const FUNCTION: u32 = 12;

/// The functions and tracepoints that programs may attach to, as far as this kernel has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AttachTypes(Vec<AttachType>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct AttachType {
    name: String,
    kind: Kind,
    id: TypeId,
}

impl AttachTypes {
    /// Looks them up in the kernel's BTF.
    #[must_use]
    pub fn of(btf: &Btf) -> Self {
        let found = plan::attach_types()
            .filter_map(|(name, kind)| btf.find(&name, kind).map(|id| AttachType { name, kind, id }));
        Self(found.collect())
    }

    /// BTF in which these types have their numbers; `None` without any.
    pub(super) fn btf(&self) -> Option<AyaBtf> {
        AyaBtf::parse(&self.blob()?, Endianness::default()).ok()
    }

    fn blob(&self) -> Option<Vec<u8>> {
        let last = self.0.iter().map(|one| one.id.number()).max()?;
        let mut types = vec![[0, EMPTY << 24, 0]; usize::try_from(last).ok()?];
        // The first string is the empty one.
        let mut strings = vec![0];
        for AttachType { name, kind, id } in &self.0 {
            let kind = if *kind == Kind::Typedef { TYPEDEF } else { FUNCTION };
            let record = types.get_mut(usize::try_from(id.number()).ok()?.checked_sub(1)?)?;
            *record = [u32::try_from(strings.len()).ok()?, kind << 24, 0];
            strings.extend_from_slice(name.as_bytes());
            strings.push(0);
        }
        let types_len = u32::try_from(types.len() * size_of::<[u32; 3]>()).ok()?;
        // Magic, version 1 and no flags; length of the header, offset and length of the types and of the strings.
        let mut blob = vec![0x9f, 0xeb, 1, 0];
        if cfg!(target_endian = "big") {
            blob.swap(0, 1);
        }
        let words = [24, 0, types_len, types_len, u32::try_from(strings.len()).ok()?];
        let words = words.into_iter().chain(types.into_iter().flatten());
        blob.extend(words.flat_map(u32::to_ne_bytes));
        blob.append(&mut strings);
        Some(blob)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sense::btf::build::Builder;

    #[test]
    fn types_keep_their_numbers_and_all_others_are_empty() {
        let mut b = Builder::default();
        let int = b.int("int", 4);
        let proto = b.proto(&[int]);
        let oom = b.function("out_of_memory", proto);
        b.function("another", proto);
        let pointer = b.ptr(proto);
        let mark = b.typedef("btf_trace_mark_victim", pointer);
        b.structure("behind_the_last", 4, &[("member", int, 0)]);
        let types = AttachTypes::of(&Btf::parse(b.blob()).unwrap());
        let small = Btf::parse(types.blob().unwrap()).unwrap();
        let find = |name, kind| small.find(name, kind).map(TypeId::number);
        assert_eq!(find("out_of_memory", Kind::Func), Some(oom));
        assert_eq!(find("btf_trace_mark_victim", Kind::Typedef), Some(mark));
        assert_eq!((find("another", Kind::Func), find("exit_mmap", Kind::Func)), (None, None));
        assert_eq!(small.len(), usize::try_from(mark).unwrap());
        assert!(types.btf().is_some(), "aya reads it");
    }

    #[test]
    fn a_kernel_without_any_of_them_gives_none() {
        let mut b = Builder::default();
        b.int("int", 4);
        let types = AttachTypes::of(&Btf::parse(b.blob()).unwrap());
        assert_eq!(types, AttachTypes::default());
        assert!(types.btf().is_none());
    }
}
