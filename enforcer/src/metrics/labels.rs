//! The values of labels: words of closed lists, so that no label grows without bound.

/// A list of words; the last one stands for anything else.
macro_rules! words {
    ($($(#[$doc:meta])* $vis:vis enum $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $word:literal,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Eq, PartialEq)]
        $vis enum $name {
            $($(#[$variant_doc])* $variant,)*
        }

        impl $name {
            /// All of them.
            $vis const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// Its word in labels.
            #[must_use]
            $vis const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)*
                }
            }

            /// Its place in the list.
            #[must_use]
            $vis const fn place(self) -> usize {
                self as usize
            }
        }
    )*};
}

/// Parses a word; any unknown word is the last value.
macro_rules! read {
    ($($name:ident,)*) => {$(
        impl $name {
            /// The value of that word, or the last one.
            pub(super) fn of(word: Option<&str>) -> Self {
                let found = Self::ALL.iter().find(|known| Some(known.as_str()) == word);
                found.or(Self::ALL.last()).copied().unwrap_or(Self::Unknown)
            }
        }
    )*};
}

words! {
    /// What was short, or who ordered it.
    pub(super) enum Signal {
        /// Memory of the node.
        Memory = "memory.available",
        /// Memory of all pods together.
        Allocatable = "allocatableMemory.available",
        /// Process ids.
        Pid = "pid.available",
        /// Nothing: an operator ordered it.
        Operator = "operator",
        /// Not known: decided before a restart.
        Unknown = "unknown",
    }

    /// The victim's class.
    pub(super) enum Qos {
        /// Guaranteed.
        Guaranteed = "Guaranteed",
        /// Burstable.
        Burstable = "Burstable",
        /// BestEffort.
        BestEffort = "BestEffort",
        /// Not known: decided before a restart.
        Unknown = "unknown",
    }

    /// The signals that the victim was sent.
    pub(super) enum Method {
        /// SIGKILL at once.
        Kill = "sigkill",
        /// SIGTERM, which was enough.
        Term = "sigterm",
        /// SIGTERM, and SIGKILL after the grace period.
        TermThenKill = "sigterm_sigkill",
        /// None: the API server was asked to evict it, which was enough.
        Request = "request",
        /// The same, and SIGKILL after all.
        RequestThenKill = "request_sigkill",
        /// Nothing.
        Nothing = "none",
        /// Not known: signalled before a restart.
        Unknown = "unknown",
    }

    /// The outcome of an eviction.
    pub(super) enum Outcome {
        /// The victim is gone.
        Completed = "completed",
        /// The victim is not gone, or no longer needs to be.
        Failed = "failed",
    }

    /// Why an eviction failed.
    pub(super) enum Failure {
        /// Its cgroup was gone.
        Gone = "gone",
        /// It held no process.
        Empty = "empty",
        /// Another cgroup had replaced it.
        Replaced = "replaced",
        /// The kernel refused, or it holds what must never be killed.
        Refused = "refused",
        /// The decision could not be recorded.
        Unrecorded = "unrecorded",
        /// It was spared for a while before SIGTERM.
        Withdrawn = "withdrawn",
        /// A disruption budget did not allow it.
        DisruptionBudget = "disruptionBudget",
        /// It does not die.
        StillPopulated = "stillPopulated",
        /// An operator has protected it meanwhile.
        Protected = "protected",
        /// It has become critical meanwhile.
        Critical = "critical",
        /// Eviction was paused meanwhile.
        Paused = "paused",
        /// The mode has changed meanwhile.
        NotEnforcing = "notEnforcing",
        /// The daemon was restarted meanwhile.
        Interrupted = "interrupted",
        /// The shortage ended before it was signalled.
        Relieved = "relieved",
        /// Anything else.
        Unknown = "unknown",
    }

    /// Why no pod was evicted although something was short.
    pub(super) enum Suppressed {
        /// No pod may be evicted.
        NoCandidate = "noCandidate",
        /// There were too many evictions.
        BreakerOpen = "breakerOpen",
        /// Evicting all pods would not be enough.
        OutOfReach = "outOfReach",
        /// A disruption budget does not allow it.
        DisruptionBudget = "disruptionBudget",
        /// Anything else.
        Unknown = "unknown",
    }

    /// Whose limit caused an OOM kill.
    pub(super) enum Scope {
        /// A container's.
        Container = "container",
        /// A pod's.
        Pod = "pod",
        /// A QoS class's.
        Qos = "qos",
        /// The node's.
        Node = "node",
        /// A cgroup's outside of kubepods.
        System = "system",
        /// Not known.
        Unknown = "unknown",
    }

    /// Whether the container's init survived an OOM kill in it; then the container runs on without the victim.
    pub(super) enum Survived {
        /// It did.
        True = "true",
        /// It did not.
        False = "false",
        /// Not known, or not in a container.
        Unknown = "unknown",
    }

    /// A part of an eviction.
    pub(super) enum Phase {
        /// From waking for a kernel edge to the end of the look that it caused.
        Detect = "detect",
        /// From the observed crossing to the decision.
        Decide = "decide",
        /// From the decision to the first signal.
        Signal = "signal",
        /// From the first signal to the last process's end.
        Exit = "exit",
        /// From there until the predicted memory was back.
        Freed = "freed",
    }

    /// Which threshold of `memory.available`.
    pub enum Level {
        /// Crossing it evicts pods after a grace period.
        Soft = "soft",
        /// Crossing it evicts pods at once.
        Hard = "hard",
    }

    /// A part of the machine whose pressure is exposed.
    pub enum Slice {
        /// The whole machine.
        Node = "node",
        /// All pods.
        Kubepods = "kubepods",
        /// All pods of the class Burstable.
        Burstable = "burstable",
        /// All pods of the class BestEffort.
        BestEffort = "besteffort",
        /// The system's services.
        System = "system.slice",
    }
}

read! { Signal, Qos, Failure, Suppressed, }
