//! What the API server sends in a watch: lines, each with an event in JSON.

use serde::{Deserialize, de::IgnoredAny};

use super::super::pod::{ApiPod, nullable};
use crate::helper::is_id;

/// The longest line that is read. The largest object that a cluster stores has 1.5 MiB, and JSON may write a byte of it as
/// six.
pub(super) const MOST_LINE_BYTES: usize = 16 << 20;

/// The room for a line that is kept for the next one.
const KEPT_BYTES: usize = 256 << 10;

/// A stream that is cut into lines.
#[derive(Debug, Default)]
pub(super) struct Lines {
    line: Vec<u8>,
    is_too_long: bool,
}

/// What has happened.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum Event {
    /// A pod is new, or was there when the watch began.
    Added(Box<ApiPod>),
    /// A pod has changed.
    Modified(Box<ApiPod>),
    /// A pod is gone.
    Removed(String),
    /// A pod has changed, and cannot be read; its uid, if that can be.
    Unreadable(Option<String>),
    /// Nothing: it says which version has been reached.
    Bookmark {
        /// Whether all pods that there were when the watch began have come.
        ends_initial: bool,
    },
    /// The watch has failed, with a status as HTTP has it, and why.
    Failed {
        /// The status.
        code: u16,
        /// Why.
        words: String,
    },
}

/// A line is not an event.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("it sends what is no event of a watch")]
pub(in crate::specs) struct NoEvent;

/// What is read of an event at first: its pod may not be readable.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Head {
    #[serde(rename = "type")]
    kind: String,
    object: HeadObject,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct HeadObject {
    metadata: HeadMetadata,
    /// Of a `Status`.
    code: u16,
    /// Of a `Status`.
    message: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct HeadMetadata {
    uid: String,
    resource_version: String,
    #[serde(deserialize_with = "nullable")]
    annotations: HeadAnnotations,
}

/// On a pod it is a tenant's word and is not read; on a bookmark it is the server's.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct HeadAnnotations {
    #[serde(rename = "k8s.io/initial-events-end")]
    initial_events_end: Option<IgnoredAny>,
}

#[derive(Debug, Deserialize)]
struct WithPod {
    object: Box<ApiPod>,
}

impl Lines {
    /// Takes the next part. Calls `each` with every line that ends in it, without its end, until it fails; `None` is a line
    /// that is too long.
    pub(super) fn add<E>(
        &mut self,
        part: &[u8],
        mut each: impl FnMut(Option<&[u8]>) -> Result<(), E>,
    ) -> Result<(), E> {
        for piece in part.split_inclusive(|byte| *byte == b'\n') {
            let content = piece.strip_suffix(b"\n").unwrap_or(piece);
            self.is_too_long |= self.line.len() + content.len() > MOST_LINE_BYTES;
            if self.is_too_long {
                self.line = Vec::new();
            } else {
                self.line.extend_from_slice(content);
            }
            if content.len() < piece.len() {
                let is_too_long = std::mem::take(&mut self.is_too_long);
                let said = each((!is_too_long).then_some(&self.line));
                self.line.clear();
                self.line.shrink_to(KEPT_BYTES);
                said?;
            }
        }
        Ok(())
    }
}

impl Event {
    /// Reads a line. Returns what has happened, and the version that was reached by it, if it names one. A pod has only those
    /// annotations that count, and is cut.
    pub(super) fn read(line: &[u8]) -> Result<(Self, Option<String>), NoEvent> {
        let Head { kind, object } = serde_json::from_slice(line).map_err(|_error| NoEvent)?;
        let HeadObject { metadata: HeadMetadata { uid, resource_version, annotations }, code, message } =
            object;
        let version = is_id(&resource_version).then_some(resource_version);
        let event = match kind.as_str() {
            "ADDED" | "MODIFIED" => match serde_json::from_slice::<WithPod>(line) {
                Ok(WithPod { object: mut pod }) => {
                    pod.metadata.annotations.keep_mirrors();
                    pod.cut();
                    if kind == "ADDED" { Self::Added(pod) } else { Self::Modified(pod) }
                }
                Err(_error) => Self::Unreadable(is_id(&uid).then_some(uid)),
            },
            "DELETED" => Self::Removed(uid),
            "BOOKMARK" => Self::Bookmark { ends_initial: annotations.initial_events_end.is_some() },
            "ERROR" => return Ok((Self::Failed { code, words: message }, None)),
            _ => return Err(NoEvent),
        };
        Ok((event, version))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn lines(parts: &[&[u8]]) -> Vec<String> {
        let mut lines = Lines::default();
        let mut found = Vec::new();
        for part in parts {
            let taken = lines.add(part, |line| {
                found.push(line.map_or("too long".into(), String::from_utf8_lossy).into_owned());
                Ok::<_, NoEvent>(())
            });
            taken.unwrap();
        }
        found
    }

    #[test]
    fn lines_are_found_however_they_are_cut() {
        let text = b"one\n\ntwo\nthree";
        for at in 0..=text.len() {
            let (first, second) = text.split_at(at);
            assert_eq!(lines(&[first, second]), ["one", "", "two"], "{at}");
        }
    }

    #[test]
    fn a_line_that_is_too_long_is_passed_over_and_not_kept() {
        let most = vec![b'x'; MOST_LINE_BYTES];
        let found = lines(&[b"a\n", &most, b"\n", &most, b"y", &most, &most, b"\nb\n"]);
        let lengths: Vec<_> = found.iter().map(String::len).collect();
        assert_eq!((lengths, found[2].as_str()), (vec![1, MOST_LINE_BYTES, 8, 1], "too long"));
        let mut lines = Lines::default();
        for _ in 0..2 {
            lines.add(&most, |_| Ok::<_, NoEvent>(())).unwrap();
        }
        assert_eq!(lines.line.capacity(), 0, "of one that is passed over nothing is held");
        lines.add(b"\n", |_| Ok::<_, NoEvent>(())).unwrap();
        lines.add(&most, |_| Ok::<_, NoEvent>(())).unwrap();
        lines.add(b"\n", |_| Ok::<_, NoEvent>(())).unwrap();
        assert!(lines.line.capacity() <= KEPT_BYTES, "nor of one that was read");
    }

    #[test]
    fn a_line_of_exactly_16_mib_is_taken_and_one_byte_more_is_passed_over() {
        for (bytes, length) in [(16 << 20, 16 << 20), ((16 << 20) + 1, "too long".len())] {
            let long = vec![b'x'; bytes];
            let found = lines(&[&long[..1_000], &long[1_000..], b"\na\n"]);
            assert_eq!((found[0].len(), &*found[1]), (length, "a"));
        }
    }

    #[test]
    fn lines_end_where_the_reader_fails() {
        let mut read = 0;
        let ended = Lines::default().add(b"a\nb\nc\n", |_| {
            read += 1;
            if read == 2 { Err(NoEvent) } else { Ok(()) }
        });
        assert_eq!((ended, read), (Err(NoEvent), 2));
    }

    fn read(event: &serde_json::Value) -> Result<(Event, Option<String>), NoEvent> {
        Event::read(event.to_string().as_bytes())
    }

    #[test]
    fn events_say_what_has_happened_and_which_version_is_reached() {
        let object = json!({"metadata": {"uid": "u", "resourceVersion": "7"}, "spec": {"priority": 3}});
        for kind in ["ADDED", "MODIFIED"] {
            let (event, version) = read(&json!({"type": kind, "object": object})).unwrap();
            let (Event::Added(pod) | Event::Modified(pod)) = event else { panic!("{event:?}") };
            assert_eq!((pod.spec.priority, version.as_deref()), (Some(3), Some("7")));
        }
        let version = Some(String::from("7"));
        assert_eq!(
            read(&json!({"type": "DELETED", "object": object})),
            Ok((Event::Removed("u".into()), version.clone()))
        );
        assert_eq!(
            read(&json!({"type": "BOOKMARK", "object": object})),
            Ok((Event::Bookmark { ends_initial: false }, version.clone()))
        );
        for (annotations, ends_initial) in [
            (json!({"k8s.io/initial-events-end": "true", "x": "y"}), true),
            (json!({"k8s.io/initial-events": "true"}), false),
            (json!(null), false),
        ] {
            let object = json!({"metadata": {"resourceVersion": "7", "annotations": annotations}});
            assert_eq!(
                read(&json!({"type": "BOOKMARK", "object": object})),
                Ok((Event::Bookmark { ends_initial }, version.clone()))
            );
        }
        let status =
            json!({"kind": "Status", "metadata": {}, "code": 410, "message": "too old", "reason": "Expired"});
        let failed = Event::Failed { code: 410, words: "too old".into() };
        assert_eq!(read(&json!({"type": "ERROR", "object": status})), Ok((failed, None)));
        // The uid is known where the rest cannot be read.
        let wrong = json!({"metadata": {"uid": "u", "resourceVersion": "7"}, "spec": {"priority": "high"}});
        assert_eq!(
            read(&json!({"type": "ADDED", "object": wrong})),
            Ok((Event::Unreadable(Some("u".into())), version))
        );
    }

    #[test]
    fn what_is_no_event_is_an_error() {
        for wrong in [
            json!({"kind": "PodList"}),
            json!({"type": "SYNCED"}),
            json!([]),
            json!({"type": "ADDED", "object": 7}),
        ] {
            assert_eq!(read(&wrong), Err(NoEvent), "{wrong}");
        }
        let hostile =
            json!({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "1&watch=false x"}}});
        assert_eq!(read(&hostile), Ok((Event::Bookmark { ends_initial: false }, None)));
    }

    /// A tenant writes what it likes there.
    #[test]
    fn annotations_make_no_pod_static() {
        let read = |annotations: serde_json::Value| {
            let object =
                json!({"metadata": {"uid": "u", "annotations": annotations, "labels": {"a": "\u{0}\"}\n"}}});
            match read(&json!({"type": "ADDED", "object": object})).unwrap().0 {
                Event::Added(pod) => pod.metadata.annotations,
                other => panic!("{other:?}"),
            }
        };
        let [source, mirror, hash] =
            ["source", "mirror", "hash"].map(|word| format!("kubernetes.io/config.{word}"));
        let mirrored = read(json!({&source: "file", &mirror: "abc", &hash: "abc", "x": "y"}));
        assert_eq!((mirrored.source.as_deref(), mirrored.mirrored()), (None, Some("abc")));
        let long = "x".repeat(100_000);
        for forged in [
            json!({&source: "file"}),
            json!({&mirror: "abc"}),
            json!({&hash: "abc"}),
            json!({&mirror: "abc", &hash: "abd"}),
            json!({&mirror: "a/b", &hash: "a/b"}),
            json!({&mirror: "", &hash: ""}),
            json!({&mirror: &long, &hash: &long}),
            json!(null),
        ] {
            assert_eq!(read(forged), super::super::super::metadata::Annotations::default());
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_to_an_end(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            drop(Event::read(&bytes));
            drop(lines(&[&bytes]));
        }
    }
}
