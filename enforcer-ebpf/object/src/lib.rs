//! The eBPF object that is checked in, and the record of what it was built from.
//!
//! A build embeds the object if the record names the hash of the sources as they are. So a plain `cargo build` needs neither
//! LLVM nor a linker for BPF, and never embeds programs of other sources.
mod lock;
mod record;
mod sources;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

pub use self::{
    record::{Record, Toolchain},
    sources::Sources,
};

/// The object, below the root of the repository.
pub const OBJECT: &str = "enforcer-ebpf/object/enforcer.bpf.o";

/// The record, below the root of the repository.
pub const RECORD: &str = "enforcer-ebpf/object/enforcer.bpf.record";

/// The machines that the object is for: where programs find a function's arguments differs between architectures.
pub const ARCHITECTURE: &str = "x86_64";

/// What to run when object and sources differ.
pub const REBUILD: &str = "cargo xtask ebpf";

/// The path of the object that is checked in, after a check that it was built from the sources below `root`.
///
/// # Errors
///
/// When object, record or a source cannot be read, when a source has changed, or when the object is another one than the
/// record says. The error says what to run.
pub fn checked_in(root: &Path) -> anyhow::Result<PathBuf> {
    let record = Record::read(&root.join(RECORD))?;
    if Sources::find(root)?.sha256() != record.sources {
        bail!(
            "the sources of the eBPF programs are not those that {OBJECT} was built from; run `{REBUILD}`, which builds it anew"
        );
    }
    let object = root.join(OBJECT);
    let bytes = std::fs::read(&object).with_context(|| format!("cannot read {}", object.display()))?;
    if sha256(&bytes) != record.object {
        bail!("{OBJECT} is not the object that {RECORD} describes; run `{REBUILD}`, which builds it anew");
    }
    Ok(object)
}

/// SHA-256, in hexadecimal digits.
#[must_use]
pub fn sha256(bytes: &[u8]) -> String {
    let mut digits = String::new();
    for byte in hmac_sha256::Hash::hash(bytes) {
        digits.push_str(&format!("{byte:02x}"));
    }
    digits
}
