//! Guests: real kernels in emulated machines, for scripts, tests and the demonstration.
pub(crate) mod accelerator;
mod cpio;
pub(crate) mod cpus;
pub(crate) mod debian;
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
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Context as _;
use clap::ValueEnum;

use crate::{
    build::{self, Kind, Product, Programs},
    dist, ebpf,
    guest::{
        debian::Release,
        initramfs::FileToAdd,
        kernel::{Kernel, KernelName},
        kube::Node,
        machine::Accelerator,
    },
    places::Places,
    run,
    setup::{self, GuestTools, qemu::Qemu},
    steps::Steps,
};

/// Names a package of Debian that guests have in place of the first of the two.
const PREVIOUS_DEB: &str = "ENFORCER_PREVIOUS_DEB";

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
    /// That of Debian 12, in a system of its packages; /packages has two versions of enforcer's
    Debian12,
    /// That of Debian 13, likewise
    Debian13,
}

impl Init {
    /// Whether systemd is process 1, in the guest's own root.
    pub(crate) fn is_systemd(self) -> bool {
        matches!(self, Self::Systemd | Self::Kube)
    }

    /// The release of Debian whose system the guest is.
    pub(crate) fn debian(self) -> Option<Release> {
        match self {
            Self::Own | Self::Systemd | Self::Kube => None,
            Self::Debian12 => Some(Release::Bookworm),
            Self::Debian13 => Some(Release::Trixie),
        }
    }

    /// The folder of the initramfs that becomes the root, with a slash behind it.
    fn root(self) -> &'static str {
        if self.debian().is_some() { debian::ROOT } else { "" }
    }

    /// What a guest with that init runs for a script.
    fn script(self, script: &[u8]) -> Vec<u8> {
        match self {
            Self::Own | Self::Systemd | Self::Debian12 | Self::Debian13 => script.to_owned(),
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
    /// The roots of Debian systems that were requested.
    debians: Vec<(Release, PathBuf)>,
    /// The daemon's packages in those, at their places there.
    packages: Vec<FileToAdd>,
    /// The daemon's image and chart on a Kubernetes node, if they were requested, at their places there.
    installables: Vec<FileToAdd>,
    /// The daemon for guests whose init is systemd, if that was requested: without debug assertions and
    /// overflow checks, as users run it.
    without_assertions: Option<PathBuf>,
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
            debians: Vec::new(),
            packages: Vec::new(),
            installables: Vec::new(),
            without_assertions: None,
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
        if let Some(release) = init.debian().filter(|release| self.root_of(*release).is_none()) {
            let root = setup::debian(&self, steps, release)?;
            self.debians.push((release, root));
        }
        if init.debian().is_some() && self.packages.is_empty() {
            self.packages = steps.work("enforcer's package", || self.package())?;
        }
        Ok(self)
    }

    fn root_of(&self, release: Release) -> Option<&Path> {
        let found = self.debians.iter().find(|(own, _)| *own == release);
        found.map(|(_, root)| root.as_path())
    }

    /// Packages the guests' own daemon, in two versions, of which the first may be given: that of an earlier release.
    fn package(&self) -> anyhow::Result<Vec<FileToAdd>> {
        let mut made = dist::installable(&self.places, build::program(&self.programs, DAEMON)?)?;
        if let Some(previous) = env::var_os(PREVIOUS_DEB) {
            let shown =
                || format!("cannot read the package that {PREVIOUS_DEB} names: {}", previous.display());
            made[0] = fs::read(&previous).with_context(shown)?;
        }
        self.write_packages(["enforcer.deb", "enforcer-later.deb"], made)
    }

    /// Writes what guests install, and returns it with its places there.
    fn write_packages<const N: usize>(
        &self,
        names: [&str; N],
        made: [Vec<u8>; N],
    ) -> anyhow::Result<Vec<FileToAdd>> {
        let folder = self.places.target.join("guests");
        let write = |(name, bytes): (&str, Vec<u8>)| {
            let host = folder.join(name);
            fs::write(&host, bytes).with_context(|| format!("cannot write {}", host.display()))?;
            Ok(FileToAdd { host, guest: format!("/packages/{name}") })
        };
        names.into_iter().zip(made).map(write).collect()
    }

    /// Adds helm to the Kubernetes node, and what it installs: the guests' own daemon, as an image, and the chart.
    pub(crate) fn with_chart(mut self, steps: Steps) -> anyhow::Result<Self> {
        let helm = setup::helm(&self.places, steps)?;
        let node = self.node.as_mut().context("the Kubernetes node was not set up")?;
        node.programs.push(("helm".to_owned(), helm));
        self.installables = steps.work("enforcer's image and chart", || {
            let made = dist::for_cluster(&self.places, build::program(&self.programs, DAEMON)?)?;
            self.write_packages(["enforcer-oci.tar", "enforcer-chart.tgz"], made)
        })?;
        Ok(self)
    }

    /// Builds the daemon for guests whose init is systemd without debug assertions and overflow checks, as users run it.
    pub(crate) fn with_daemon_without_assertions(
        mut self,
        object: Option<&Path>,
        steps: Steps,
    ) -> anyhow::Result<Self> {
        let places = &self.places;
        let built = steps.work("enforcer without debug assertions", || {
            let programs = build::build(places, object, Kind::WithoutAssertions, &[Product::Daemon])?;
            without_debug_info(places, "guests-without-assertions", &programs)
        })?;
        self.without_assertions = Some(build::program(&built, DAEMON)?.to_owned());
        Ok(self)
    }

    /// The programs on the PATH of a guest with that init.
    pub(crate) fn programs_of(&self, init: Init) -> Programs {
        let mut programs = self.programs.clone();
        if let (Init::Systemd, Some(daemon)) = (init, &self.without_assertions) {
            for (_, path) in programs.iter_mut().filter(|(name, _)| name == DAEMON) {
                path.clone_from(daemon);
            }
        }
        if let (Init::Kube, Some(node)) = (init, &self.node) {
            programs.extend(node.programs.iter().cloned());
        }
        if init.debian().is_some() {
            // The package installs it.
            programs.retain(|(name, _)| name != DAEMON);
        }
        programs
    }

    /// Files that every guest with that init has.
    fn files_of(&self, init: Init) -> &[FileToAdd] {
        match init {
            Init::Debian12 | Init::Debian13 => &self.packages,
            Init::Kube => &self.installables,
            Init::Own | Init::Systemd => &[],
        }
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
        if let Some(release) = init.debian() {
            bases.push(self.root_of(release).context("the Debian system was not set up")?);
            return Ok((bases, debian::KERNEL_ARGUMENTS));
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
