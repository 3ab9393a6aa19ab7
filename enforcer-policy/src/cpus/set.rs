//! Sets of logical CPUs, in memory and in the list form of the kernel and the kubelet.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// The highest CPU number: the kernel's largest `CONFIG_NR_CPUS` is 8192.
pub const MAX_CPU: u16 = 8_191;

/// How much of a text an error shows, in characters.
const SHOWN: usize = 64;

const BITS: usize = 64;

/// A set of logical CPUs by their numbers, from 0 to [`MAX_CPU`].
///
/// As text it has the list form of the kernel (`cpuset.cpus`, `/sys/devices/system/cpu/online`) and the kubelet
/// (`k8s.io/utils/cpuset`): `0-3,8,10-11`; the empty set is the empty text. It is displayed in order and with the
/// longest possible ranges, so that equal sets have equal texts.
#[derive(Clone, Default, Eq, Hash, PartialEq)]
pub struct CpuSet {
    /// A bit per CPU. The last word is not 0, so that equal sets have equal words.
    words: Vec<u64>,
}

/// Why something is not a set of CPUs.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum CpuSetError {
    /// A part between commas is neither a number nor a range.
    #[error("{part:?} is neither a CPU's number nor a range such as 0-3")]
    Malformed {
        /// The part, its first 64 characters.
        part: String,
    },
    /// A range ends before it begins.
    #[error("the range {part:?} ends before it begins")]
    Reversed {
        /// The part, its first 64 characters.
        part: String,
    },
    /// A number is above [`MAX_CPU`].
    #[error("{part:?} is above {MAX_CPU}, the highest number of a CPU")]
    TooLarge {
        /// The part or number, its first 64 characters.
        part: String,
    },
}

impl CpuSet {
    /// The empty set.
    #[must_use]
    pub const fn new() -> Self {
        Self { words: Vec::new() }
    }

    /// The set of those CPUs; each may come more than once.
    pub fn from_cpus(cpus: impl IntoIterator<Item = u16>) -> Result<Self, CpuSetError> {
        let mut set = Self::new();
        for cpu in cpus {
            if cpu > MAX_CPU {
                return Err(CpuSetError::TooLarge { part: cpu.to_string() });
            }
            set.insert(cpu);
        }
        Ok(set)
    }

    /// Whether it has no CPU.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// The number of CPUs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.words.iter().map(|word| usize::try_from(word.count_ones()).unwrap_or(BITS)).sum()
    }

    /// Whether it has that CPU.
    #[must_use]
    pub fn contains(&self, cpu: u16) -> bool {
        let (word, bit) = place(cpu);
        self.words.get(word).is_some_and(|word| word & bit != 0)
    }

    /// The CPUs, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u16> + '_ {
        (0..=MAX_CPU).take(self.words.len() * BITS).filter(|&cpu| self.contains(cpu))
    }

    /// The CPU of the lowest number.
    #[must_use]
    pub fn first(&self) -> Option<u16> {
        self.iter().next()
    }

    /// The CPUs in either set.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        let (long, short) = if self.words.len() < other.words.len() { (other, self) } else { (self, other) };
        let mut union = long.clone();
        for (word, more) in union.words.iter_mut().zip(&short.words) {
            *word |= more;
        }
        union
    }

    /// The CPUs in both sets.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        Self::trimmed(self.words.iter().zip(&other.words).map(|(word, other)| word & other).collect())
    }

    /// The CPUs of this set that are not in the other.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        let others = other.words.iter().copied().chain(std::iter::repeat(0));
        Self::trimmed(self.words.iter().zip(others).map(|(word, other)| word & !other).collect())
    }

    /// Whether the other set has every CPU of this one.
    #[must_use]
    pub fn is_subset(&self, other: &Self) -> bool {
        self.difference(other).is_empty()
    }

    /// Whether the sets have no CPU in common.
    #[must_use]
    pub fn is_disjoint(&self, other: &Self) -> bool {
        self.intersection(other).is_empty()
    }

    /// Adds a CPU, which is known to be at most [`MAX_CPU`].
    pub(super) fn insert(&mut self, cpu: u16) {
        let (word, bit) = place(cpu.min(MAX_CPU));
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        if let Some(word) = self.words.get_mut(word) {
            *word |= bit;
        }
    }

    fn trimmed(mut words: Vec<u64>) -> Self {
        while words.pop_if(|last| *last == 0).is_some() {}
        Self { words }
    }
}

fn place(cpu: u16) -> (usize, u64) {
    (usize::from(cpu) / BITS, 1 << (usize::from(cpu) % BITS))
}

/// CPUs that are members of sets already.
impl FromIterator<u16> for CpuSet {
    fn from_iter<T: IntoIterator<Item = u16>>(cpus: T) -> Self {
        let mut set = Self::new();
        for cpu in cpus {
            set.insert(cpu);
        }
        set
    }
}

impl FromStr for CpuSet {
    type Err = CpuSetError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut set = Self::new();
        let text = text.trim();
        if text.is_empty() {
            return Ok(set);
        }
        for part in text.split(',') {
            let shown = || part.chars().take(SHOWN).collect::<String>();
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let is_number =
                |number: &str| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
            if !is_number(first) || !is_number(last) {
                return Err(CpuSetError::Malformed { part: shown() });
            }
            let number = |number: &str| number.parse::<u16>().ok().filter(|cpu| *cpu <= MAX_CPU);
            let (Some(first), Some(last)) = (number(first), number(last)) else {
                return Err(CpuSetError::TooLarge { part: shown() });
            };
            if first > last {
                return Err(CpuSetError::Reversed { part: shown() });
            }
            (first..=last).for_each(|cpu| set.insert(cpu));
        }
        Ok(set)
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.iter().peekable();
        let mut separator = "";
        while let Some(first) = cpus.next() {
            let mut last = first;
            while let Some(next) = cpus.next_if(|next| *next == last + 1) {
                last = next;
            }
            write!(formatter, "{separator}{first}")?;
            if last > first {
                write!(formatter, "-{last}")?;
            }
            separator = ",";
        }
        Ok(())
    }
}

impl fmt::Debug for CpuSet {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{{{self}}}")
    }
}

impl Serialize for CpuSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.to_string())
    }
}

impl<'de> Deserialize<'de> for CpuSet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}
