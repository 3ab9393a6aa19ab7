//! The end of an eviction whose victim this process never had among its candidates.

use enforcer_events::{Payload, eviction::EvictionEnded};

use super::{failed_data, milliseconds, timeline};
use crate::{
    evict::{End, InheritedEviction},
    journal::{Event, Subject},
    policy::engine::{Completion, Failure},
};

pub(super) fn ended(eviction: &InheritedEviction, end: &End) -> Event {
    let InheritedEviction { id, pod, uid, facts, .. } = eviction;
    let data = EvictionEnded {
        eviction_id: id.to_string(),
        namespace: Some(pod.namespace.clone()),
        name: Some(pod.name.clone()),
        uid: Some(uid.to_string()),
        signal: Some(facts.shortage.signal.as_str().into()),
        ..EvictionEnded::default()
    };
    let payload = match *end {
        End::Completed(Completion { moments, predicted_freed_bytes, freed_bytes, .. }) => {
            Payload::EvictionCompleted(EvictionEnded {
                timeline: timeline(&moments),
                predicted_freed_bytes: Some(predicted_freed_bytes),
                freed_bytes,
                ..data
            })
        }
        End::Failed(Failure { moments, given_up_ns, predicted_freed_bytes, freed_bytes, reason, .. }) => {
            let data = EvictionEnded {
                timeline: timeline(&moments),
                crossed_to_given_up_ms: Some(milliseconds(moments.crossed_ns, given_up_ns)),
                predicted_freed_bytes: Some(predicted_freed_bytes),
                freed_bytes,
                ..data
            };
            Payload::EvictionFailed(failed_data(data, reason))
        }
    };
    Event::new(Subject::Pod(pod.clone()), payload)
}
