//! Which taints a pod tolerates: pressure of the node keeps out pods that do not.

/// A taint that a pod tolerates: one of `spec.tolerations`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Toleration {
    /// The taints, by key and value.
    pub taints: TolerationTaints,
    /// The effect; `None` is every effect.
    pub effect: Option<TaintEffect>,
}

/// The taints that a toleration applies to.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum TolerationTaints {
    /// Every taint: operator `Exists` without a key.
    Every,
    /// Taints with a key, whatever their value: operator `Exists`.
    Key(String),
    /// Taints with a key and a value: operator `Equal`.
    KeyValue {
        /// The key.
        key: String,
        /// The value, which may be empty.
        value: String,
    },
}

/// What a taint does to pods that do not tolerate it.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum TaintEffect {
    /// New pods are not scheduled.
    NoSchedule,
    /// New pods are scheduled only if there is no other node.
    PreferNoSchedule,
    /// Running pods are evicted too.
    NoExecute,
}

impl TaintEffect {
    /// All effects.
    pub const ALL: [Self; 3] = [Self::NoSchedule, Self::PreferNoSchedule, Self::NoExecute];

    /// The name as Kubernetes writes it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoSchedule => "NoSchedule",
            Self::PreferNoSchedule => "PreferNoSchedule",
            Self::NoExecute => "NoExecute",
        }
    }

    /// The effect of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|effect| effect.as_str() == name)
    }
}

impl Toleration {
    /// Whether it applies to a taint with that key, value and effect (upstream `ToleratesTaint` in
    /// `staging/src/k8s.io/api/core/v1/toleration.go`).
    #[must_use]
    pub fn tolerates(&self, key: &str, value: &str, effect: TaintEffect) -> bool {
        let taint = match &self.taints {
            TolerationTaints::Every => true,
            TolerationTaints::Key(own) => own == key,
            TolerationTaints::KeyValue { key: own, value: own_value } => own == key && own_value == value,
        };
        taint && self.effect.is_none_or(|own| own == effect)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::{
        TaintEffect::{NoExecute, NoSchedule},
        TolerationTaints::{Every, Key, KeyValue},
        *,
    };

    fn of(key: &str, value: &str) -> TolerationTaints {
        KeyValue { key: key.to_owned(), value: value.to_owned() }
    }

    #[rstest]
    #[case(Every, None, true)]
    #[case(Every, Some(NoSchedule), true)]
    #[case(Every, Some(NoExecute), false)]
    #[case(Key("k".into()), None, true)]
    #[case(Key("k".into()), Some(NoExecute), false)]
    #[case(Key("other".into()), None, false)]
    #[case(of("k", "v"), Some(NoSchedule), true)]
    #[case(of("k", ""), None, false)]
    #[case(of("other", "v"), None, false)]
    fn a_toleration_is_for_its_taints(
        #[case] taints: TolerationTaints,
        #[case] effect: Option<TaintEffect>,
        #[case] expected: bool,
    ) {
        assert_eq!(Toleration { taints, effect }.tolerates("k", "v", NoSchedule), expected);
    }
}
