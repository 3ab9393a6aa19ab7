//! Puts the eBPF object where the library embeds it.
//!
//! `cargo xtask` builds the object and names it in `ENFORCER_BPF_OBJECT`. Plain cargo commands have none and
//! get an empty stub, so that they need neither bpf-linker nor a BPF toolchain; the daemon sees that it is
//! empty and does not claim eBPF.
use std::{env, fs, path::PathBuf};

use anyhow::Context as _;

fn main() -> anyhow::Result<()> {
    println!("cargo::rerun-if-env-changed=ENFORCER_BPF_OBJECT");
    let out = PathBuf::from(env::var_os("OUT_DIR").context("OUT_DIR is not set")?).join("enforcer.bpf.o");
    match env::var_os("ENFORCER_BPF_OBJECT") {
        Some(object) => {
            let object = PathBuf::from(object);
            println!("cargo::rerun-if-changed={}", object.display());
            fs::copy(&object, &out)
                .with_context(|| format!("cannot copy {} to {}", object.display(), out.display()))?;
        }
        None => fs::write(&out, []).with_context(|| format!("cannot write {}", out.display()))?,
    }
    Ok(())
}
