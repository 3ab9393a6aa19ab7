//! Guests: real kernels in emulated machines, for scripts, tests and the demonstration.
pub(crate) mod accelerator;
mod cpio;
pub(crate) mod exec;
pub(crate) mod initramfs;
pub(crate) mod kernel;
pub(crate) mod machine;
pub(crate) mod modules;
mod relay;
mod report;
pub(crate) mod shell;

use std::path::PathBuf;

use crate::{
    build::{self, Profile},
    guest::{
        kernel::{Kernel, KernelName},
        machine::Accelerator,
    },
    places::Places,
    setup::{self, GuestTools, qemu::Qemu},
    steps::Steps,
};

/// Everything that booting guests takes.
#[derive(Debug)]
pub(crate) struct Guests {
    pub(crate) places: Places,
    pub(crate) qemu: Qemu,
    pub(crate) accelerator: Accelerator,
    /// In the order in which they were asked for.
    pub(crate) kernels: Vec<Kernel>,
    /// The programs on every guest's PATH.
    pub(crate) programs: Vec<(String, PathBuf)>,
    /// The eBPF object that the daemon embeds.
    pub(crate) object: PathBuf,
}

impl Guests {
    /// Sets up what is missing and builds the programs.
    pub(crate) fn prepare(places: &Places, steps: Steps, names: &[KernelName]) -> anyhow::Result<Self> {
        let toolchain = setup::bpf_toolchain(places, steps)?;
        let GuestTools { qemu, kernels, accelerator } = setup::guest_tools(places, steps, names)?;
        let object = steps.work("eBPF object", || build::bpf_object(places, &toolchain, Profile::Release))?;
        let programs = steps.work("programs", || build::programs(places, &object, Profile::Release))?;
        Ok(Self { places: places.clone(), qemu, accelerator, kernels, programs, object })
    }
}
