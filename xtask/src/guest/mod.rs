//! Guests: real kernels in emulated machines, for scripts, tests and the demonstration.
pub(crate) mod accelerator;
mod cpio;
pub(crate) mod cpus;
pub(crate) mod exec;
mod folders;
pub(crate) mod initramfs;
pub(crate) mod kernel;
mod kube;
pub(crate) mod machine;
pub(crate) mod modules;
mod relay;
mod report;
pub(crate) mod shell;
pub(crate) mod systemd;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Context as _;
use clap::ValueEnum;

use crate::{
    build::{self, Kind, Product, Programs},
    ebpf,
    guest::{
        kernel::{Kernel, KernelName},
        kube::Node,
        machine::Accelerator,
    },
    places::Places,
    run,
    setup::{self, GuestTools, qemu::Qemu},
    steps::Steps,
};

/// The daemon's program.
const DAEMON: &str = "enforcer";

/// What runs as process 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Init {
    /// A program of ours that runs the script and nothing else
    #[default]
    Own,
    /// systemd, with a system bus
    Systemd,
    /// systemd, which also starts the components of a Kubernetes node
    #[value(skip)]
    Kube,
}

impl Init {
    /// Whether systemd is process 1.
    pub(crate) fn is_systemd(self) -> bool {
        self != Self::Own
    }

    /// What a guest with that init runs for a script.
    fn script(self, script: &[u8]) -> Vec<u8> {
        match self {
            Self::Own | Self::Systemd => script.to_owned(),
            Self::Kube => kube::script(script),
        }
    }
}

/// Everything that is needed to boot guests.
#[derive(Debug)]
pub(crate) struct Guests {
    pub(crate) places: Places,
    pub(crate) qemu: Qemu,
    pub(crate) accelerator: Accelerator,
    /// In the order in which they were requested.
    pub(crate) kernels: Vec<Kernel>,
    /// The programs on every guest's PATH.
    pub(crate) programs: Programs,
    /// The part of the initramfs that makes systemd the init, if it was requested.
    systemd: Option<PathBuf>,
    /// What makes the guest a Kubernetes node, if that was requested.
    node: Option<Node>,
    /// The daemon for guests whose init is systemd, if that was requested: built as users run it.
    released: Option<PathBuf>,
}

impl Guests {
    /// Sets up what is missing, and builds the programs of every guest and some further products.
    pub(crate) fn prepare(
        places: &Places,
        steps: Steps,
        names: &[KernelName],
        kind: Kind,
        products: &[Product],
    ) -> anyhow::Result<Self> {
        let object = ebpf::provide(places, steps, kind)?;
        Self::prepare_with(places, steps, names, kind, products, object.as_deref())
    }

    /// The same with an eBPF object; `None` is the one that is checked in.
    pub(crate) fn prepare_with(
        places: &Places,
        steps: Steps,
        names: &[KernelName],
        kind: Kind,
        products: &[Product],
        object: Option<&Path>,
    ) -> anyhow::Result<Self> {
        let GuestTools { qemu, kernels, accelerator } = setup::guest_tools(places, steps, names)?;
        let products = [&Product::GUEST, products].concat();
        let programs = steps.work("programs", || {
            without_debug_info(places, "guests", &build::build(places, object, kind, &products)?)
        })?;
        Ok(Self {
            places: places.clone(),
            qemu,
            accelerator,
            kernels,
            programs,
            systemd: None,
            node: None,
            released: None,
        })
    }

    /// Sets up the additional needs of guests with that init.
    pub(crate) fn with_init(mut self, init: Init, steps: Steps) -> anyhow::Result<Self> {
        if init.is_systemd() && self.systemd.is_none() {
            self.systemd = Some(setup::systemd(&self.places, steps)?);
        }
        if init == Init::Kube && self.node.is_none() {
            let components = setup::kube::provide(&self.places, steps)?;
            self.node = Some(Node::make(components, &self.programs)?);
        }
        Ok(self)
    }

    /// Builds the daemon for guests whose init is systemd as users run it, not with the development profile.
    pub(crate) fn with_release(mut self, object: Option<&Path>, steps: Steps) -> anyhow::Result<Self> {
        let places = &self.places;
        let built = steps.work("enforcer, as released", || {
            let programs = build::build(places, object, Kind::ReleaseQuick, &[Product::Daemon])?;
            without_debug_info(places, "guests-release", &programs)
        })?;
        self.released = Some(build::program(&built, DAEMON)?.to_owned());
        Ok(self)
    }

    /// The programs on the PATH of a guest with that init.
    pub(crate) fn programs_of(&self, init: Init) -> Programs {
        let mut programs = self.programs.clone();
        if let (Init::Systemd, Some(released)) = (init, &self.released) {
            for (_, path) in programs.iter_mut().filter(|(name, _)| name == DAEMON) {
                path.clone_from(released);
            }
        }
        if let (Init::Kube, Some(node)) = (init, &self.node) {
            programs.extend(node.programs.iter().cloned());
        }
        programs
    }

    /// The first parts of a guest's initramfs, and its kernel's parameters.
    fn bases<'a>(&'a self, kernel: &'a Kernel, init: Init) -> anyhow::Result<(Vec<&'a Path>, &'static str)> {
        let mut bases = vec![kernel.base.as_path()];
        if init.is_systemd() {
            bases.push(self.systemd.as_ref().context("systemd was not set up")?);
        }
        if init == Init::Kube {
            bases.push(&self.node.as_ref().context("the Kubernetes node was not set up")?.archive);
        }
        Ok((bases, if init.is_systemd() { systemd::KERNEL_ARGUMENTS } else { "" }))
    }
}

/// Copies of the programs without debug sections: a guest holds them in its memory.
fn without_debug_info(places: &Places, folder: &str, programs: &Programs) -> anyhow::Result<Programs> {
    let folder = places.target.join(folder);
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let fresh = tempfile::tempdir_in(&folder)?;
    let copy = |(name, path): &(String, PathBuf)| {
        let (stripped, to) = (fresh.path().join(name), folder.join(name));
        run::output(Command::new("strip").arg("--strip-debug").arg("-o").arg(&stripped).arg(path))?;
        // Another command may be reading the last one.
        fs::rename(&stripped, &to).with_context(|| format!("cannot rename to {}", to.display()))?;
        Ok((name.clone(), to))
    };
    programs.iter().map(copy).collect()
}
