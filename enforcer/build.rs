//! Puts the eBPF object where the library embeds it.
//!
//! It is the one that is checked in, provided that its sources are as they were when it was built. `cargo xtask` names another
//! one in `ENFORCER_BPF_OBJECT` where it has built one.
use std::{env, fs, path::PathBuf};

use anyhow::{Context as _, bail};
use ebpf_object::{ARCHITECTURE, Sources};

/// Names another object than the one that is checked in.
const OBJECT_VARIABLE: &str = "ENFORCER_BPF_OBJECT";

fn main() -> anyhow::Result<()> {
    println!("cargo::rerun-if-env-changed={OBJECT_VARIABLE}");
    let object = if let Some(object) = env::var_os(OBJECT_VARIABLE).map(PathBuf::from) {
        println!("cargo::rerun-if-changed={}", object.display());
        object
    } else {
        checked_in()?
    };
    let out = variable("OUT_DIR")?.join("enforcer.bpf.o");
    fs::copy(&object, &out)
        .with_context(|| format!("cannot copy {} to {}", object.display(), out.display()))?;
    Ok(())
}

fn checked_in() -> anyhow::Result<PathBuf> {
    let root = variable("CARGO_MANIFEST_DIR")?.join("..");
    for path in Sources::watched() {
        println!("cargo::rerun-if-changed={}", root.join(path).display());
    }
    let architecture = variable("CARGO_CFG_TARGET_ARCH")?;
    if architecture.as_os_str() != ARCHITECTURE {
        bail!(
            "the eBPF object that is checked in is for {ARCHITECTURE}, and this build is for {}; name an object for that \
             in {OBJECT_VARIABLE}",
            architecture.display()
        );
    }
    ebpf_object::checked_in(&root)
}

fn variable(name: &str) -> anyhow::Result<PathBuf> {
    env::var_os(name).map(PathBuf::from).with_context(|| format!("{name} is not set"))
}
