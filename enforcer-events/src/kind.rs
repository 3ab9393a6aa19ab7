//! The types of events.

use std::fmt;

use serde::Serialize;

macro_rules! event_types {
    ($(#[doc = $doc:literal] $variant:ident = $name:literal,)*) => {
        /// The type of an event. The names are part of the public contract.
        #[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
        pub enum EventType {
            $(#[doc = $doc] $variant,)*
        }

        impl EventType {
            /// Every type.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The full name, with the prefix `dev.enforcer.`.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => concat!("dev.enforcer.", $name),)*
                }
            }

            /// What its events report, in a sentence or two.
            #[must_use]
            pub fn summary(self) -> &'static str {
                match self {
                    $(Self::$variant => $doc.trim_ascii(),)*
                }
            }
        }
    };
}

event_types! {
    /// At the present rate a threshold will be crossed soon.
    PressureRising = "pressure.rising",
    /// The pressure is over.
    PressureCleared = "pressure.cleared",
    /// A threshold was crossed.
    ThresholdCrossed = "threshold.crossed",
    /// A victim was chosen. Carries the whole decision.
    EvictionDecided = "eviction.decided",
    /// A candidate was throttled to gain time.
    EvictionContained = "eviction.contained",
    /// The victim was signalled.
    EvictionSignalled = "eviction.signalled",
    /// The victim is gone. Carries how much was reclaimed.
    EvictionCompleted = "eviction.completed",
    /// The victim did not end.
    EvictionFailed = "eviction.failed",
    /// No victim was chosen, and why.
    EvictionSuppressed = "eviction.suppressed",
    /// The API server was asked to evict the victim, or did not have to be.
    EvictionRequested = "eviction.requested",
    /// The API server no longer has the victim.
    EvictionConfirmed = "eviction.confirmed",
    /// The kubelet started containers of the victim again, which are killed again.
    EvictionRepeated = "eviction.repeated",
    /// The kubelet evicted a pod by its own decision.
    EvictionForeign = "eviction.foreign",
    /// The kernel's OOM killer marked its first victim.
    OomDetected = "oom.detected",
    /// One kernel OOM, closed and reconciled.
    OomIncident = "oom.incident",
    /// The kernel marked a task that was already dying.
    OomAverted = "oom.averted",
    /// A source reported a new pod.
    PodAdded = "pod.added",
    /// A pod's specification changed.
    PodChanged = "pod.changed",
    /// A pod is gone from its source.
    PodRemoved = "pod.removed",
    /// A pod was not admitted, or its manifest not accepted.
    PodRejected = "pod.rejected",
    /// Limits were written.
    LimitsApplied = "limits.applied",
    /// A cgroup file that enforcer owns holds another value.
    LimitsDrifted = "limits.drifted",
    /// The value was restored.
    LimitsRestored = "limits.restored",
    /// A configuration came into force.
    ConfigLoaded = "config.loaded",
    /// A configuration was refused.
    ConfigRejected = "config.rejected",
    /// A source of pods works.
    SourceUp = "source.up",
    /// A source of pods does not work.
    SourceDown = "source.down",
    /// Resources were reserved for others than pods.
    ReservationMade = "reservation.made",
    /// A reservation ended: they are for pods again.
    ReservationEnded = "reservation.ended",
    /// A part of the system uses more than is reserved for it.
    ReservationExceeded = "reservation.exceeded",
    /// The node lacks something; says what does not work without it.
    DegradedEntered = "degraded.entered",
    /// It is available again.
    DegradedLeft = "degraded.left",
    /// This reader missed events.
    StreamGap = "stream.gap",
}

impl EventType {
    /// Finds a type by its name, with or without the prefix `dev.enforcer.`.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let short = name.strip_prefix("dev.enforcer.").unwrap_or(name);
        Self::ALL.iter().copied().find(|kind| kind.short() == short)
    }

    /// The name without the prefix.
    #[must_use]
    pub fn short(self) -> &'static str {
        let name = self.as_str();
        name.strip_prefix("dev.enforcer.").unwrap_or(name)
    }
}

impl fmt::Display for EventType {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.short())
    }
}

impl Serialize for EventType {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}
