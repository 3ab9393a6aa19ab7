//! The messages of `runtime.v1` (`kubernetes/cri-api`, `pkg/apis/runtime/v1/api.proto`), cut to what is used. What else
//! a runtime sends is skipped.

use prost::{DecodeError, Message};

use crate::policy::critical::CONFIG_SOURCE;

/// What every method's path begins with.
pub(super) const SERVICE: &str = "/runtime.v1.RuntimeService/";

/// A container whose process does not run yet (`CONTAINER_CREATED`).
pub(super) const CREATED: i32 = 0;

/// A container that runs (`CONTAINER_RUNNING`).
pub(super) const RUNNING: i32 = 1;

/// A sandbox that runs (`SANDBOX_READY`).
const READY: i32 = 0;

/// The field of both answers that lists: `ListPodSandboxResponse.items` and `ListContainersResponse.containers`.
const ITEMS: usize = 1;

#[derive(Clone, PartialEq, Message)]
pub(super) struct VersionRequest {}

#[derive(Clone, PartialEq, Message)]
pub(super) struct VersionResponse {
    #[prost(string, tag = "2")]
    pub(super) runtime_name: String,
    #[prost(string, tag = "3")]
    pub(super) runtime_version: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ListPodSandboxRequest {}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ListContainersRequest {
    #[prost(message, optional, tag = "1")]
    filter: Option<ContainerFilter>,
}

#[derive(Clone, PartialEq, Message)]
struct ContainerFilter {
    /// The whole id; empty for all.
    #[prost(string, tag = "1")]
    id: String,
    #[prost(message, optional, tag = "2")]
    state: Option<ContainerStateValue>,
}

#[derive(Clone, PartialEq, Message)]
struct ContainerStateValue {
    #[prost(int32, tag = "1")]
    state: i32,
}

#[derive(Clone, PartialEq, Message)]
struct PodSandbox {
    #[prost(string, tag = "1")]
    id: String,
    #[prost(message, optional, tag = "2")]
    metadata: Option<PodSandboxMetadata>,
    #[prost(int32, tag = "3")]
    state: i32,
    #[prost(message, repeated, tag = "6")]
    annotations: Vec<Annotation>,
}

/// One entry of the map of annotations. A tenant can give it bytes that are no text, which must not hide the sandbox.
#[derive(Clone, PartialEq, Message)]
struct Annotation {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct PodSandboxMetadata {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    uid: String,
    #[prost(string, tag = "3")]
    namespace: String,
    #[prost(uint32, tag = "4")]
    attempt: u32,
}

#[derive(Clone, PartialEq, Message)]
struct Container {
    #[prost(string, tag = "1")]
    id: String,
    #[prost(string, tag = "2")]
    pod_sandbox_id: String,
    #[prost(message, optional, tag = "3")]
    metadata: Option<ContainerMetadata>,
    #[prost(int32, tag = "6")]
    state: i32,
}

#[derive(Clone, PartialEq, Message)]
struct ContainerMetadata {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(uint32, tag = "2")]
    attempt: u32,
}

impl ListContainersRequest {
    /// Those in a state.
    pub(super) fn in_state(state: i32) -> Self {
        let state = Some(ContainerStateValue { state });
        Self { filter: Some(ContainerFilter { id: String::new(), state }) }
    }

    /// The one with an id, in any state.
    pub(super) fn with_id(id: &str) -> Self {
        Self { filter: Some(ContainerFilter { id: id.to_owned(), state: None }) }
    }
}

/// Reads a sandbox. One without metadata names nothing.
pub(super) fn sandbox(bytes: &[u8]) -> Result<super::message::Sandbox, DecodeError> {
    let PodSandbox { id, metadata, state, annotations } = PodSandbox::decode(bytes)?;
    let PodSandboxMetadata { name, uid, namespace, attempt } = metadata.unwrap_or_default();
    let is_static =
        annotations.iter().any(|entry| entry.key == CONFIG_SOURCE.as_bytes() && entry.value != b"api");
    let ready = state == READY;
    Ok(super::message::Sandbox { id, pod_uid: uid, namespace, name, attempt, ready, is_static })
}

/// Reads a container.
pub(super) fn container(bytes: &[u8]) -> Result<super::message::Container, DecodeError> {
    let Container { id, pod_sandbox_id, metadata, state } = Container::decode(bytes)?;
    let ContainerMetadata { name, attempt } = metadata.unwrap_or_default();
    let running = state == RUNNING;
    Ok(super::message::Container { id, sandbox_id: pod_sandbox_id, name, attempt, running })
}

/// The answer is not a message.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("the runtime's answer is not a valid protobuf message")]
pub(super) struct Garbled;

/// The items of an answer, one by one and not decoded: a million empty ones would take a hundred megabytes, and one that
/// cannot be read must not hide the others.
pub(super) struct Items<'a>(&'a [u8]);

impl<'a> Items<'a> {
    pub(super) fn of(answer: &'a [u8]) -> Self {
        Self(answer)
    }

    /// The next field, if it is an item.
    fn field(&mut self) -> Result<Option<&'a [u8]>, Garbled> {
        let key = self.number()?;
        // The key's low bits say how the value is written.
        match key & 7 {
            0 => self.number().map(|_value| None),
            1 => self.bytes(8).map(|_value| None),
            5 => self.bytes(4).map(|_value| None),
            2 => {
                let length = self.number()?;
                let bytes = self.bytes(length)?;
                Ok((key >> 3 == ITEMS).then_some(bytes))
            }
            _ => Err(Garbled),
        }
    }

    /// A number of variable length.
    fn number(&mut self) -> Result<usize, Garbled> {
        prost::decode_length_delimiter(&mut self.0).map_err(|_error| Garbled)
    }

    fn bytes(&mut self, length: usize) -> Result<&'a [u8], Garbled> {
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(Garbled)?;
        self.0 = rest;
        Ok(bytes)
    }
}

impl<'a> Iterator for Items<'a> {
    type Item = Result<&'a [u8], Garbled>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.0.is_empty() {
            match self.field() {
                Ok(None) => {}
                Ok(Some(item)) => return Some(Ok(item)),
                Err(garbled) => {
                    self.0 = &[];
                    return Some(Err(garbled));
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn items(bytes: &[u8]) -> Result<Vec<&[u8]>, Garbled> {
        Items::of(bytes).collect()
    }

    #[test]
    fn items_are_found_among_fields_of_every_kind() {
        let number = [0x10, 0x96, 0x01];
        let fixed = [0x19, 1, 2, 3, 4, 5, 6, 7, 8, 0x25, 1, 2, 3, 4];
        let other = [0x2a, 2, b'n', b'o'];
        let answer =
            [&[0x0a, 1, b'a'][..], &number, &fixed, &other, &[0x0a, 0], &[0x0a, 2, b'b', b'c']].concat();
        assert_eq!(items(&answer), Ok(vec![&b"a"[..], b"", b"bc"]));
        assert_eq!(items(b""), Ok(vec![]));
    }

    #[test]
    fn what_is_cut_off_or_no_message_is_an_error() {
        for wrong in [&[0x0a, 5, b'a'][..], &[0x0a], &[0x0b], &[0xff; 20], &[0x19, 1], &[0x10, 0x80]] {
            assert_eq!(items(wrong), Err(Garbled), "{wrong:?}");
        }
    }

    #[test]
    fn a_filter_by_the_state_zero_is_written_out() {
        assert_eq!(ListContainersRequest::in_state(CREATED).encode_to_vec(), [0x0a, 2, 0x12, 0]);
        assert_eq!(ListContainersRequest::in_state(RUNNING).encode_to_vec(), [0x0a, 4, 0x12, 2, 8, 1]);
    }

    #[test]
    fn a_filter_by_an_id_has_no_state() {
        assert_eq!(ListContainersRequest::with_id("ab").encode_to_vec(), [0x0a, 4, 0x0a, 2, b'a', b'b']);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_to_an_end(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            for item in Items::of(&bytes) {
                let item = item.unwrap_or_default();
                drop((sandbox(item), container(item)));
            }
        }
    }
}
