//! The values that labels take: words of closed lists, so that no label grows.

/// A list of words; the last one stands for what is none of the others.
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

            /// The word.
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

/// Reads a word; what is none of the others is the last.
macro_rules! read {
    ($($name:ident,)*) => {$(
        impl $name {
            /// The one of that word, or the last one.
            pub(super) fn of(word: Option<&str>) -> Self {
                let found = Self::ALL.iter().find(|known| Some(known.as_str()) == word);
                found.or(Self::ALL.last()).copied().unwrap_or(Self::Unknown)
            }
        }
    )*};
}

words! {
    /// What was short, or who wanted it.
    pub(super) enum Signal {
        /// Memory of the node.
        Memory = "memory.available",
        /// Memory of the pods together.
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

    /// What the victim was sent.
    pub(super) enum Method {
        /// SIGKILL at once.
        Kill = "sigkill",
        /// SIGTERM, which was enough.
        Term = "sigterm",
        /// SIGTERM and after its grace SIGKILL.
        TermThenKill = "sigterm_sigkill",
        /// Nothing.
        Nothing = "none",
        /// Not known: signalled before a restart.
        Unknown = "unknown",
    }

    /// What came of an eviction.
    pub(super) enum Outcome {
        /// The victim is gone.
        Completed = "completed",
        /// It is not, or need not be any more.
        Failed = "failed",
    }

    /// Why an eviction did not come to its end.
    pub(super) enum Failure {
        /// Its cgroup was gone.
        Gone = "gone",
        /// It held no process.
        Empty = "empty",
        /// Another cgroup had its place.
        Replaced = "replaced",
        /// The kernel refused.
        Refused = "refused",
        /// The decision could not be recorded.
        Unrecorded = "unrecorded",
        /// It was spared before it could be asked to end.
        Withdrawn = "withdrawn",
        /// It does not die.
        StillPopulated = "stillPopulated",
        /// An operator protects it since.
        Protected = "protected",
        /// It is critical since.
        Critical = "critical",
        /// Evicting is paused since.
        Paused = "paused",
        /// The mode is another one since.
        NotEnforcing = "notEnforcing",
        /// The daemon was restarted meanwhile.
        Interrupted = "interrupted",
        /// The program before the kill ended the shortage.
        Relieved = "relieved",
        /// Anything else.
        Unknown = "unknown",
    }

    /// Why nobody was evicted though something was short.
    pub(super) enum Suppressed {
        /// Nobody may be.
        NoCandidate = "noCandidate",
        /// There were too many.
        BreakerOpen = "breakerOpen",
        /// Not even all of them would be enough.
        OutOfReach = "outOfReach",
        /// Anything else.
        Unknown = "unknown",
    }

    /// Whose limit an OOM kill was for.
    pub(super) enum Scope {
        /// A container's.
        Container = "container",
        /// A pod's.
        Pod = "pod",
        /// A class's.
        Qos = "qos",
        /// The node's.
        Node = "node",
        /// That of a cgroup outside of kubepods.
        System = "system",
        /// Not known.
        Unknown = "unknown",
    }

    /// Whether the container's init survived an OOM kill in it: then the container runs on without the victim.
    pub(super) enum Survived {
        /// It did.
        True = "true",
        /// It did not.
        False = "false",
        /// Not known, or no container's.
        Unknown = "unknown",
    }

    /// A part of an eviction.
    pub(super) enum Phase {
        /// From waking for a kernel's edge to the end of the look that it caused.
        Detect = "detect",
        /// From the crossing that was seen to the decision.
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
        /// Below it pods are evicted after a grace period.
        Soft = "soft",
        /// Below it they are evicted at once.
        Hard = "hard",
    }

    /// A part of the machine whose pressure is told.
    pub enum Slice {
        /// The whole machine.
        Node = "node",
        /// All pods.
        Kubepods = "kubepods",
        /// Those of the class Burstable.
        Burstable = "burstable",
        /// Those of the class BestEffort.
        BestEffort = "besteffort",
        /// The system's services.
        System = "system.slice",
    }
}

read! { Signal, Qos, Failure, Suppressed, Scope, }
