//! Builds BTF blobs.
use std::collections::HashMap;

/// A blob under construction. Types are numbered from 1 in the order in which they are added.
#[derive(Debug)]
pub(crate) struct Builder {
    types: Vec<u8>,
    strings: Vec<u8>,
    known: HashMap<String, u32>,
    count: u32,
}

impl Default for Builder {
    fn default() -> Self {
        Self { types: Vec::new(), strings: vec![0], known: HashMap::new(), count: 0 }
    }
}

impl Builder {
    fn string(&mut self, text: &str) -> u32 {
        if text.is_empty() {
            return 0;
        }
        if let Some(at) = self.known.get(text) {
            return *at;
        }
        let at = u32::try_from(self.strings.len()).unwrap();
        self.strings.extend_from_slice(text.as_bytes());
        self.strings.push(0);
        self.known.insert(text.into(), at);
        at
    }

    pub(crate) fn raw(&mut self, name: &str, info: u32, size_or_type: u32, extra: &[u32]) -> u32 {
        let name = self.string(name);
        for word in [name, info, size_or_type].iter().chain(extra) {
            self.types.extend_from_slice(&word.to_ne_bytes());
        }
        self.count += 1;
        self.count
    }

    pub(crate) fn int(&mut self, name: &str, size: u32) -> u32 {
        self.raw(name, 1 << 24, size, &[size * 8])
    }

    pub(crate) fn ptr(&mut self, to: u32) -> u32 {
        self.raw("", 2 << 24, to, &[])
    }

    pub(crate) fn array(&mut self, of: u32, len: u32) -> u32 {
        self.raw("", 3 << 24, 0, &[of, of, len])
    }

    /// `members`: name, type, offset in bytes.
    pub(crate) fn structure(&mut self, name: &str, size: u32, members: &[(&str, u32, u32)]) -> u32 {
        let words: Vec<u32> =
            members.iter().flat_map(|(name, ty, at)| [self.string(name), *ty, at * 8]).collect();
        let count = u32::try_from(members.len()).unwrap();
        self.raw(name, 4 << 24 | count, size, &words)
    }

    pub(crate) fn enumeration(&mut self, name: &str, values: &[(&str, u32)]) -> u32 {
        let words: Vec<u32> = values.iter().flat_map(|(name, value)| [self.string(name), *value]).collect();
        let count = u32::try_from(values.len()).unwrap();
        self.raw(name, 6 << 24 | count, 4, &words)
    }

    pub(crate) fn typedef(&mut self, name: &str, of: u32) -> u32 {
        self.raw(name, 8 << 24, of, &[])
    }

    pub(crate) fn proto(&mut self, parameters: &[u32]) -> u32 {
        let words: Vec<u32> = parameters.iter().flat_map(|ty| [0, *ty]).collect();
        self.raw("", 13 << 24 | u32::try_from(parameters.len()).unwrap(), 0, &words)
    }

    pub(crate) fn function(&mut self, name: &str, proto: u32) -> u32 {
        self.raw(name, 12 << 24, proto, &[])
    }

    pub(crate) fn blob(&self) -> Vec<u8> {
        let len = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap().to_ne_bytes();
        let mut out = Vec::new();
        out.extend_from_slice(&0xeb9f_u16.to_ne_bytes());
        out.extend_from_slice(&[1, 0]);
        for word in [24_u32.to_ne_bytes(), [0; 4], len(&self.types), len(&self.types), len(&self.strings)] {
            out.extend_from_slice(&word);
        }
        out.extend_from_slice(&self.types);
        out.extend_from_slice(&self.strings);
        out
    }
}
