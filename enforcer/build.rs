//! Puts the eBPF object where the library embeds it.
//!
//! It is the one that is checked in, provided that its sources are as they were when it was built. `cargo xtask` names another
//! one in `ENFORCER_BPF_OBJECT` where it has built one.
use std::{env, fs, path::PathBuf};

use anyhow::{Context as _, bail};
use ebpf_object::Sources;

fn main() -> anyhow::Result<()> {
    println!("cargo::rerun-if-env-changed=ENFORCER_BPF_OBJECT");
    let variable =
        |name: &str| env::var_os(name).map(PathBuf::from).with_context(|| format!("{name} is not set"));
    let object = match env::var_os("ENFORCER_BPF_OBJECT") {
        Some(object) => {
            println!("cargo::rerun-if-changed={}", PathBuf::from(&object).display());
            PathBuf::from(object)
        }
        None => {
            let root = variable("CARGO_MANIFEST_DIR")?.join("..");
            for path in Sources::watched() {
                println!("cargo::rerun-if-changed={}", root.join(path).display());
            }
            let arch = variable("CARGO_CFG_TARGET_ARCH")?;
            if arch.as_os_str() != ebpf_object::ARCHITECTURE {
                bail!(
                    "the eBPF object that is checked in is for {}, and not for {}; build one there and name it in \
                     ENFORCER_BPF_OBJECT",
                    ebpf_object::ARCHITECTURE,
                    arch.display()
                );
            }
            ebpf_object::checked_in(&root)?
        }
    };
    let out = variable("OUT_DIR")?.join("enforcer.bpf.o");
    fs::copy(&object, &out)
        .with_context(|| format!("cannot copy {} to {}", object.display(), out.display()))?;
    Ok(())
}
