//! `metadata` of a pod, cut to what is used here.

use std::{fmt, sync::Arc};

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{SeqAccess, Visitor},
};

use super::pod::nullable;
use crate::{
    helper::{is_id, is_name},
    model::{Labels, OwnerReference},
};

/// The most owners that are kept of a pod, beside its controller.
const MOST_OWNERS: usize = 4;

/// Stands for an invalid kind, name or uid of an owner.
const INVALID: &str = "(invalid)";

/// `metadata` of a pod.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Metadata {
    /// The pod's name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Its uid as the source has it.
    pub uid: String,
    /// Whether its deletion was requested: whether it has a `deletionTimestamp`, whatever that is.
    #[serde(
        rename = "deletionTimestamp",
        deserialize_with = "is_there",
        skip_serializing_if = "std::ops::Not::not"
    )]
    pub is_terminating: bool,
    /// Its labels.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    /// What it belongs to.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Owners::is_empty")]
    pub owner_references: Owners,
    /// What a kubelet has noted about it.
    #[serde(deserialize_with = "nullable")]
    pub annotations: Annotations,
}

/// Whether a field is there and not null.
fn is_there<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Ok(Option::<serde::de::IgnoredAny>::deserialize(deserializer)?.is_some())
}

/// The objects that a pod belongs to: the controller, and a few others.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct Owners(Vec<ApiOwner>);

/// An object that a pod belongs to.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default)]
pub(super) struct ApiOwner {
    pub(super) kind: String,
    pub(super) name: String,
    pub(super) uid: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) controller: Option<bool>,
}

impl Owners {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A controller is kept even if its name is invalid: without it the pod would look like one that nothing recreates.
    pub(super) fn add(&mut self, owner: ApiOwner) {
        let ApiOwner { kind, name, uid, controller } = owner;
        let has_controller = self.0.iter().any(|known| known.controller == Some(true));
        let is_controller = controller == Some(true) && !has_controller;
        if !is_controller && self.0.len() >= MOST_OWNERS + usize::from(has_controller) {
            return;
        }
        let word = |text: String, is_valid: bool| if is_valid { text } else { INVALID.to_owned() };
        let (is_kind, is_name, is_id) = (is_name(&kind), is_name(&name), is_id(&uid));
        self.0.push(ApiOwner {
            kind: word(kind, is_kind),
            name: word(name, is_name),
            uid: word(uid, is_id),
            controller: is_controller.then_some(true),
        });
    }

    /// Leaves the controller.
    pub(super) fn keep_controller(&mut self) {
        self.0.retain(|owner| owner.controller == Some(true));
    }

    /// The owner references of the model.
    pub(super) fn read(&self) -> Vec<Arc<OwnerReference>> {
        let read = |ApiOwner { kind, name, uid, controller }: &ApiOwner| {
            Arc::new(OwnerReference {
                kind: kind.clone(),
                name: name.clone(),
                uid: uid.clone(),
                is_controller: *controller == Some(true),
            })
        };
        self.0.iter().map(read).collect()
    }
}

impl<'de> Deserialize<'de> for Owners {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Reading;
        impl<'de> Visitor<'de> for Reading {
            type Value = Owners;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("owner references")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut references: A) -> Result<Owners, A::Error> {
                let mut owners = Owners::default();
                while let Some(owner) = references.next_element()? {
                    owners.add(owner);
                }
                Ok(owners)
            }
        }
        from.deserialize_seq(Reading)
    }
}

/// The annotations that a kubelet sets. All others are tenants' input, and are left out: they must neither spare a pod nor
/// give it another cgroup. Of these too, the source decides which are a kubelet's word.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default)]
pub struct Annotations {
    /// Where the kubelet has the pod from: `api`, or `file` and the like for a static pod. A kubelet sets it on each pod that
    /// it serves, whatever the pod's author wrote; the API server has it as the author wrote it.
    #[serde(rename = "kubernetes.io/config.source", skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The uid of the static pod that this is the mirror of, as the API server has it. Anyone can write it there.
    #[serde(rename = "kubernetes.io/config.mirror", skip_serializing_if = "Option::is_none")]
    pub mirror: Option<String>,
    /// The same uid: the kubelet sets both annotations of a mirror to it.
    #[serde(rename = "kubernetes.io/config.hash", skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
}

impl Annotations {
    /// Keeps only the annotation that the kubelet sets on pods that it serves itself.
    pub(crate) fn keep_kubelets(&mut self) {
        let Self { source, mirror: _, hash: _ } = std::mem::take(self);
        self.source = source;
    }

    /// Leaves what counts of a pod of the API server: of which static pod it says that it is the mirror. That makes no pod
    /// static, and is believed only where the container runtime knows that pod under the same name.
    pub(crate) fn keep_mirrors(&mut self) {
        self.source = None;
        if self.mirrored().is_none() {
            *self = Self::default();
        }
    }

    /// The uid of the static pod that this one says to be the mirror of.
    #[must_use]
    pub fn mirrored(&self) -> Option<&str> {
        let Self { source: _, mirror, hash } = self;
        mirror.as_deref().filter(|mirror| hash.as_deref() == Some(mirror) && is_id(mirror))
    }
}
