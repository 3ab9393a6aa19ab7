//! What a guest test's name says: what it is about, and so where it runs.

/// What a test is about. The attribute `guest_test` writes it behind the test's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Tier {
    /// What the kernel does: on every kernel.
    Kernel,
    /// The daemon alone: on one kernel.
    Daemon,
    /// systemd's units: on one kernel, in a guest whose init is systemd.
    Systemd,
}

/// One test, as the test binary lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GuestTest {
    /// With the words of its tier.
    pub(crate) name: String,
    pub(crate) tier: Tier,
    /// Judges a rate or a latency: never runs beside another that does.
    pub(crate) exclusive: bool,
}

impl GuestTest {
    /// A test by its name; nothing if that names no tier.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        let (rest, exclusive) = match name.strip_suffix("::exclusive") {
            Some(rest) => (rest, true),
            None => (name, false),
        };
        let tier = match rest.rsplit_once("::")?.1 {
            "kernel" => Tier::Kernel,
            "daemon" => Tier::Daemon,
            "systemd" => Tier::Systemd,
            _ => return None,
        };
        Some(Self { name: name.to_owned(), tier, exclusive })
    }

    /// Whether someone who asks for `filter` means it: the words of the tier do not count, unless the name is whole.
    pub(crate) fn is_meant_by(&self, filter: &str) -> bool {
        let name = self.name.strip_suffix("::exclusive").unwrap_or(&self.name);
        let path = name.rsplit_once("::").map_or(name, |(path, _)| path);
        path.contains(filter) || self.name == filter
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_its_tier() {
        let parse = |name: &str| GuestTest::parse(name).map(|test| (test.tier, test.exclusive));
        assert_eq!(parse("ooms::node::that_runs_out::kernel"), Some((Tier::Kernel, false)));
        assert_eq!(parse("outlook::waves::daemon::exclusive"), Some((Tier::Daemon, true)));
        assert_eq!(parse("units::exec::begins::systemd"), Some((Tier::Systemd, false)));
        for name in ["ooms::node::that_runs_out", "kernel", "a::exclusive", "exclusive", "a::kernel::daemons"]
        {
            assert_eq!(parse(name), None, "{name}");
        }
    }

    #[test]
    fn a_filter_asks_for_names_and_not_for_tiers() {
        let test = GuestTest::parse("pins::a_storm::kernel::exclusive").unwrap();
        assert!(
            ["pins", "storm", "pins::a_storm", "pins::a_storm::kernel::exclusive"]
                .map(|f| test.is_meant_by(f))
                .iter()
                .all(|is| *is)
        );
        assert!(["kernel", "exclusive", "node"].map(|f| test.is_meant_by(f)).iter().all(|is| !is));
    }
}
