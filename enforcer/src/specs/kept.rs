//! A pod as it is kept for the disk: as text, which takes less memory than the parsed pod.

use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::{RawValue, to_raw_value};

use super::ApiPod;

/// The JSON of an [`ApiPod`]. Clones share it.
#[derive(Clone, Debug)]
pub struct KeptPod(Arc<RawValue>);

impl KeptPod {
    /// The text of a pod; `None` if it cannot be written as JSON.
    #[must_use]
    pub fn of(pod: &ApiPod) -> Option<Self> {
        to_raw_value(pod).ok().map(|text| Self(text.into()))
    }

    /// The pod; `None` if the text is not one.
    #[must_use]
    pub fn read(&self) -> Option<ApiPod> {
        serde_json::from_str(self.0.get()).ok()
    }
}

impl Serialize for KeptPod {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(to)
    }
}

impl<'de> Deserialize<'de> for KeptPod {
    /// Reads a pod, not a text: what is no pod makes the whole file invalid.
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let pod = ApiPod::deserialize(from)?;
        Self::of(&pod).ok_or_else(|| serde::de::Error::custom("the pod has no JSON"))
    }
}
