//! What an object was built from, as a file of lines `key value`.
use std::{fmt, fs, path::Path};

use anyhow::{Context as _, bail};

/// What one object was built from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// SHA-256 of the sources.
    pub sources: String,
    /// SHA-256 of the object.
    pub object: String,
    /// What built it.
    pub toolchain: Toolchain,
}

/// Versions of all that decides what becomes of the sources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Toolchain {
    /// The compiler's release, and the commit that it was built from.
    pub rustc: String,
    /// The LLVM inside the compiler.
    pub rustc_llvm: String,
    /// The release of bpf-linker.
    pub bpf_linker: String,
    /// The LLVM that bpf-linker uses.
    pub linker_llvm: String,
}

impl Record {
    /// Reads a record.
    ///
    /// # Errors
    ///
    /// When the file cannot be read, lacks a line, or has one that is not known.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("{}", path.display()))
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        let mut lines = text.lines().filter(|line| !line.starts_with('#'));
        let mut next = |key: &str| {
            let line = lines.next().with_context(|| format!("the line `{key}` is missing"))?;
            let value = line.strip_prefix(key).and_then(|rest| rest.strip_prefix(' '));
            value.map(str::to_owned).with_context(|| format!("`{line}` stands where `{key}` is expected"))
        };
        let (sources, object) = (next("sources")?, next("object")?);
        let toolchain = Toolchain {
            rustc: next("rustc")?,
            rustc_llvm: next("rustc-llvm")?,
            bpf_linker: next("bpf-linker")?,
            linker_llvm: next("linker-llvm")?,
        };
        if let Some(line) = lines.next() {
            bail!("`{line}` stands where the end is expected");
        }
        Ok(Self { sources, object, toolchain })
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sources, object, toolchain } = self;
        writeln!(
            f,
            "# What the object beside this file was built from, and by what. `{}` writes both.",
            crate::REBUILD
        )?;
        writeln!(f, "sources {sources}\nobject {object}")?;
        toolchain.fmt(f)
    }
}

impl fmt::Display for Toolchain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rustc, rustc_llvm, bpf_linker, linker_llvm } = self;
        writeln!(
            f,
            "rustc {rustc}\nrustc-llvm {rustc_llvm}\nbpf-linker {bpf_linker}\nlinker-llvm {linker_llvm}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        let toolchain = Toolchain {
            rustc: "1.96.0 (c0ffee)".into(),
            rustc_llvm: "22.1.8".into(),
            bpf_linker: "0.13.0".into(),
            linker_llvm: "22.1.7".into(),
        };
        Record { sources: "aa".into(), object: "bb".into(), toolchain }
    }

    #[test]
    fn a_record_reads_as_it_was_written() {
        assert_eq!(Record::parse(&record().to_string()).unwrap(), record());
    }

    #[test]
    fn a_line_that_is_missing_or_not_known_is_named() {
        let text = record().to_string();
        let error = |text: &str| Record::parse(text).unwrap_err().to_string();
        assert_eq!(error("# nothing\n"), "the line `sources` is missing");
        assert_eq!(
            error(&text.replace("rustc ", "rust ")),
            "`rust 1.96.0 (c0ffee)` stands where `rustc` is expected"
        );
        assert_eq!(error(&format!("{text}more\n")), "`more` stands where the end is expected");
    }
}
