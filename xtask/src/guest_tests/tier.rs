//! A guest test's name and tier, which says where the test runs.
use crate::guest::{
    Init,
    cpus::{Cpus, Topology},
};

/// The guest that the tests of a tier run in. Tiers that need the same share their guests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Need {
    pub(crate) init: Init,
    pub(crate) cpus: Cpus,
    /// Parameters of its kernel, beside those that every guest has.
    pub(crate) boot: &'static [&'static str],
    /// No other guest runs beside it.
    pub(crate) alone: bool,
    /// What distinguishes it from the kernel's other guests.
    pub(crate) label: &'static str,
}

/// What a test is about. The attribute `guest_test` appends it to the test's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Tier {
    /// What the kernel does: on every kernel.
    Kernel,
    /// The daemon alone: on one kernel.
    Daemon,
    /// systemd's units: on one kernel, in a guest whose init is systemd.
    Systemd,
    /// Our package in each release of Debian: on one kernel, each in a guest that is such a system.
    Debian,
    /// A kubelet and an API server: on one kernel, in a guest that is a Kubernetes node and has the machine to itself.
    Kube,
    /// The rest of what is tried on that node, which takes longer than all other tests together.
    KubeByHand,
    /// The same of a release that is not in every run: on a node of the user's own components.
    KubeCurrent,
    /// What is judged by the clock or by shares of the processor: on one kernel, in a guest that has the machine to itself.
    Exclusive,
    /// A kernel without the memory controller.
    WithoutMemory,
    /// A kernel without the controllers cpuset, hugetlb and pids.
    WithoutPids,
    /// Processors with siblings, in two NUMA nodes.
    Numa,
}

impl Tier {
    const ALL: [Self; 11] = [
        Self::Kernel,
        Self::Daemon,
        Self::Systemd,
        Self::Debian,
        Self::Kube,
        Self::KubeByHand,
        Self::KubeCurrent,
        Self::Exclusive,
        Self::WithoutMemory,
        Self::WithoutPids,
        Self::Numa,
    ];

    /// What the attribute appends.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Daemon => "daemon",
            Self::Systemd => "systemd",
            Self::Debian => "debian",
            Self::Kube => "kube",
            Self::KubeByHand => "kube_by_hand",
            Self::KubeCurrent => "kube_current",
            Self::Exclusive => "exclusive",
            Self::WithoutMemory => "without_memory",
            Self::WithoutPids => "without_pids",
            Self::Numa => "numa",
        }
    }

    /// Whether its tests do not run with this filter: those on a Kubernetes node, which takes minutes to be Ready, and those
    /// of the package run if it begins with their module. Without a filter some run if there is a `node`.
    pub(crate) fn is_left_out(self, filter: Option<&str>, node: bool) -> bool {
        let module = filter.and_then(|filter| filter.split("::").next());
        match self {
            Self::Kube => module != Some("kube") && !(filter.is_none() && node),
            Self::KubeByHand => module != Some("kube"),
            Self::KubeCurrent => module != Some("kube_current"),
            Self::Debian => module != Some("debian"),
            _ => false,
        }
    }

    /// What its guests are: each of its tests runs in every one.
    pub(crate) fn needs(self) -> Vec<Need> {
        let own = Need::default();
        let need = match self {
            Self::Kernel | Self::Daemon => own,
            Self::Systemd => Need { init: Init::Systemd, label: "systemd", ..own },
            Self::Debian => {
                let system = |(init, label)| Need { init, label, ..own };
                return [(Init::Debian12, "debian 12"), (Init::Debian13, "debian 13")].map(system).to_vec();
            }
            // Its components need both processors to answer each other in time.
            Self::Kube | Self::KubeByHand | Self::KubeCurrent => {
                Need { init: Init::Kube, alone: true, label: "kube", ..own }
            }
            Self::Exclusive => Need { alone: true, label: "alone", ..own },
            Self::WithoutMemory => Need { boot: &["cgroup_disable=memory"], label: "without memory", ..own },
            // One boot for all three: each is missed by itself.
            Self::WithoutPids => {
                Need { boot: &["cgroup_disable=cpuset,hugetlb,pids"], label: "without pids", ..own }
            }
            Self::Numa => {
                let topology = Topology { sockets: 2, cores: 2, threads: 2 };
                Need { cpus: Cpus::Topology(topology), label: "numa", ..own }
            }
        };
        vec![need]
    }
}

/// One test, as the test binary lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GuestTest {
    /// With the words of its tier.
    pub(crate) name: String,
    pub(crate) tier: Tier,
    /// A soak runs it, with many more rounds.
    pub(crate) repeats: bool,
}

impl GuestTest {
    /// A test by its name; `None` if the name has no tier.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        let (rest, repeats) = without_repeats(name);
        let (_, word) = rest.rsplit_once("::")?;
        let tier = Tier::ALL.into_iter().find(|tier| tier.word() == word)?;
        Some(Self { name: name.to_owned(), tier, repeats })
    }

    /// Whether its name contains the filter. The words of the tier do not count, unless the filter is the whole name.
    pub(crate) fn matches(&self, filter: &str) -> bool {
        let (name, _) = without_repeats(&self.name);
        let path = name.rsplit_once("::").map_or(name, |(path, _)| path);
        path.contains(filter) || self.name == filter
    }
}

/// The name without the word `repeats` at its end, and whether it had it.
fn without_repeats(name: &str) -> (&str, bool) {
    name.strip_suffix("::repeats").map_or((name, false), |rest| (rest, true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_its_tier() {
        let parse = |name: &str| GuestTest::parse(name).map(|test| (test.tier, test.repeats));
        assert_eq!(parse("ooms::node::that_runs_out::kernel"), Some((Tier::Kernel, false)));
        assert_eq!(parse("forecast::waves::daemon::repeats"), Some((Tier::Daemon, true)));
        assert_eq!(parse("units::exec::begins::systemd"), Some((Tier::Systemd, false)));
        assert_eq!(parse("kube::owners::spared::kube"), Some((Tier::Kube, false)));
        assert_eq!(parse("kube::roles::withheld::kube_by_hand"), Some((Tier::KubeByHand, false)));
        assert_eq!(parse("kube_current::race::won::kube_current::repeats"), Some((Tier::KubeCurrent, true)));
        assert_eq!(parse("shares::quota::exclusive"), Some((Tier::Exclusive, false)));
        assert_eq!(parse("controllers::memory::without_memory"), Some((Tier::WithoutMemory, false)));
        for name in ["ooms::node::that_runs_out", "kernel", "a::repeats", "repeats", "a::kernel::daemons"] {
            assert_eq!(parse(name), None, "{name}");
        }
    }

    #[test]
    fn a_filter_matches_names_and_not_tiers() {
        let test = GuestTest::parse("pins::a_storm::kernel::repeats").unwrap();
        assert!(
            ["pins", "storm", "pins::a_storm", "pins::a_storm::kernel::repeats"]
                .map(|f| test.matches(f))
                .iter()
                .all(|is| *is)
        );
        assert!(["kernel", "repeats", "node"].map(|f| test.matches(f)).iter().all(|is| !is));
        // What beside a kubelet is tested with fakes is another module.
        let [real, fake] =
            ["kube::a::kube", "kubelet::a::daemon"].map(|name| GuestTest::parse(name).unwrap());
        assert!(real.matches("kube::") && !fake.matches("kube::"));
    }

    #[test]
    fn a_node_is_asked_for_by_its_module() {
        let left_out = |filter| Tier::KubeCurrent.is_left_out(filter, true);
        assert!([None, Some("kube::"), Some("kube"), Some("race")].into_iter().all(left_out));
        assert!(!left_out(Some("kube_current::")) && !left_out(Some("kube_current::race")));
        for tier in [Tier::Kube, Tier::KubeByHand] {
            let of_node = |filter| !tier.is_left_out(filter, false);
            assert!(of_node(Some("kube::")) && of_node(Some("kube::race")));
            assert!(![None, Some("kube_current::"), Some("kubelet::")].into_iter().any(of_node));
        }
        assert!(!Tier::Kernel.is_left_out(None, false));
        assert!(!Tier::Debian.is_left_out(Some("debian::"), false) && Tier::Debian.is_left_out(None, true));
    }

    #[test]
    fn where_there_is_a_node_a_whole_run_has_its_tests_but_those_by_hand() {
        let whole = |tier: Tier| !tier.is_left_out(None, true);
        assert!(whole(Tier::Kube) && !whole(Tier::KubeByHand) && !whole(Tier::KubeCurrent));
        assert!(Tier::Kube.is_left_out(Some("kubelet::"), true));
    }
}
