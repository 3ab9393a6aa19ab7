//! How each type of event appears in systemd's journal. The ids are part of the public contract.

use crate::journal::EventType;

/// How an event of one type appears in the journal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Meaning {
    /// The 128-bit id of all messages of the type, which `packaging/enforcer.catalog` explains.
    pub(crate) message_id: &'static str,
    /// The syslog priority, 3 (error) to 6 (informational).
    pub(crate) priority: u8,
    /// The predicate of the message, after the pod or node and before the details.
    pub(super) says: &'static str,
}

/// The meaning of a type.
pub(crate) const fn meaning(kind: EventType) -> Meaning {
    let (message_id, priority, says) = match kind {
        EventType::PressureRising => ("b189a0e082ade3e50205370ce25a9b80", 4, "comes under memory pressure"),
        EventType::PressureCleared => ("072d04c45e2780028114bd7a76a1fa3e", 6, "is no longer under pressure"),
        EventType::ThresholdCrossed => {
            ("956c88398ded7f91bbcc9b9af130a7eb", 4, "crossed an eviction threshold")
        }
        EventType::EvictionDecided => ("33bdaa708d8a55290ff2ff258271238e", 4, "is chosen for eviction"),
        EventType::EvictionContained => {
            ("56620fb5ab95eea56f4e23acbc2fd28b", 5, "is to be throttled by memory.high")
        }
        EventType::EvictionSignalled => {
            ("68f5799e78ab876c4b4be9d1091fd0cd", 4, "was signalled to end for its eviction")
        }
        EventType::EvictionCompleted => ("9aa2901801e38fde1f5d62397cc8c3ef", 5, "was evicted"),
        EventType::EvictionFailed => ("2c7a0aebfc3e19cab5f1de0e56a8b464", 3, "could not be evicted"),
        EventType::EvictionSuppressed => {
            ("5c7a7330be4b366945b62a0d89996d3e", 4, "is short of a resource, and no pod is evicted")
        }
        EventType::EvictionRequested => {
            ("6fd56c073f1143e589ab9d0c4649cf7c", 5, "has a result from the API server for its eviction")
        }
        EventType::EvictionConfirmed => {
            ("cb55740d236d4c41ad415fa417821cd4", 6, "is gone from the API server after its eviction")
        }
        EventType::EvictionRepeated => (
            "9e0a7656bba30db6cbdecaca559f3eda",
            4,
            "has containers that were started again after its eviction",
        ),
        EventType::EvictionForeign => ("3b345a2330174cea8197173c137bc921", 4, "was evicted by the kubelet"),
        EventType::OomDetected => {
            ("a1e488dd6fa1b52a8ac48bbcbfca9e0a", 3, "lost a process to the kernel's OOM killer")
        }
        EventType::OomIncident => ("3d65569c05aa1de0b96dbc0e3bb13305", 3, "had an OOM kill"),
        EventType::OomAverted => (
            "50de3376ddd28b669a6bc7a6a7ccfcf2",
            6,
            "had a process marked by the kernel's OOM killer that was dying already",
        ),
        EventType::PodAdded => ("5a6003c4613433f862ceddf0d4b54356", 6, "is known now"),
        EventType::PodChanged => ("4ee4458553bf6a669752078114249449", 6, "has another manifest"),
        EventType::PodRemoved => ("aef9fcbfab61479c88927bc9b06322fa", 6, "is gone from its source"),
        EventType::PodRejected => ("27e2f516ae066d893ea8e6be10ad89be", 4, "may not run"),
        EventType::LimitsApplied => ("0cfdf6b0ae666af67ae9302d951b78a1", 6, "had limits written"),
        EventType::LimitsDrifted => {
            ("68fd8ac391ffe5bc5bc2ae1a7f9a9df4", 4, "had a limit changed by another process")
        }
        EventType::LimitsRestored => ("3a3435effa1409d35a730ecade01d636", 6, "has its planned limits again"),
        EventType::ConfigLoaded => ("8c2f8b1cb0208c3dd95a043a9c13cd82", 6, "has a configuration in force"),
        EventType::ConfigRejected => ("cad70e5ca50753da45900f5ac6aa10c5", 3, "refused a configuration"),
        EventType::SourceUp => ("64858d95a669b147f19630f7ddacec8b", 6, "has a source of pods that works"),
        EventType::SourceDown => {
            ("8ec30109933d58a05a5380de53d64f6f", 4, "has a source of pods that does not work")
        }
        EventType::ReservationMade => {
            ("466c483ec41240788532ef7bf99ae185", 6, "has resources reserved for others than pods")
        }
        EventType::ReservationEnded => {
            ("b273a2354be1463ca7e2245cbd1d11e9", 6, "has a reservation that ended")
        }
        EventType::ReservationExceeded => {
            ("e145e48f67534cdcb667d59345e488f1", 4, "has a part that uses more than is reserved for it")
        }
        EventType::DegradedEntered => ("8d2521bb498965be3cabe663a1968da7", 4, "is degraded"),
        EventType::DegradedLeft => ("bec7f824533ecbb9e15f259de9b8afa3", 5, "recovered from a degradation"),
        EventType::StreamGap => {
            ("ccdba047e6f1f1a734986d7ae171f8e1", 4, "no longer keeps events that this sink needed")
        }
    };
    Meaning { message_id, priority, says }
}
