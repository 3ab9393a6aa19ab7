//! The cases' shape, and pods made from them.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use enforcer::model::{
    Container, ContainerKind, Pod, PodName, PodUid, Requirements, ResourceList, ResourceName,
};
use serde::Deserialize;

/// The cases of one upstream test.
#[derive(Debug, Deserialize)]
pub(crate) struct Group<T> {
    /// File and function.
    pub(crate) upstream: String,
    pub(crate) cases: Vec<T>,
}

pub(crate) trait Named {
    fn name(&self) -> &str;
}

macro_rules! named {
    ($($case:ty),*) => { $(impl Named for $case { fn name(&self) -> &str { &self.name } })* };
}

named!(QosClassCase, OomScore, Effective, RankingRequest, PodFiles, ContainerFiles, Huge);

/// Quantities as a manifest writes them, by resource.
pub(crate) type Texts = BTreeMap<String, String>;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct QosClassCase {
    name: String,
    pub(crate) pod: PodCase,
    pub(crate) expected: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct OomScore {
    name: String,
    pub(crate) memory_bytes: u64,
    pub(crate) pod: PodCase,
    /// By container.
    pub(crate) expected: BTreeMap<String, i16>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct Effective {
    name: String,
    pub(crate) pod: PodCase,
    /// Without pod level and overhead.
    #[serde(default)]
    pub(crate) containers_alone: bool,
    /// Absent where upstream does not look at them.
    pub(crate) requests: Option<Texts>,
    pub(crate) limits: Option<Texts>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RankingRequest {
    name: String,
    pub(crate) pod: PodCase,
    pub(crate) resource: String,
    pub(crate) expected: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct PodFiles {
    name: String,
    pub(crate) pod: PodCase,
    pub(crate) cpu_cfs_quota: bool,
    pub(crate) period_us: u64,
    pub(crate) files: Texts,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct ContainerFiles {
    name: String,
    pub(crate) pod: PodCase,
    #[serde(default)]
    pub(crate) single_process_oom_kill: bool,
    pub(crate) files: Texts,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Huge {
    name: String,
    pub(crate) pod: PodCase,
    /// The page sizes that the node has.
    pub(crate) sizes: Vec<String>,
    pub(crate) files: Texts,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(crate) struct PodCase {
    pub(crate) priority: Option<i32>,
    pub(crate) priority_class_name: Option<String>,
    pub(crate) overhead: Texts,
    pub(crate) resources: Option<RequirementsCase>,
    pub(crate) init_containers: Vec<ContainerCase>,
    pub(crate) containers: Vec<ContainerCase>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RequirementsCase {
    pub(crate) requests: Texts,
    pub(crate) limits: Texts,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(crate) struct ContainerCase {
    pub(crate) name: String,
    pub(crate) restart_policy: Option<String>,
    pub(crate) requests: Texts,
    pub(crate) limits: Texts,
}

impl PodCase {
    pub(crate) fn build(&self) -> Result<Pod> {
        let init = self.init_containers.iter().map(|container| {
            let is_sidecar = container.restart_policy.as_deref() == Some("Always");
            (container, if is_sidecar { ContainerKind::Sidecar } else { ContainerKind::Init })
        });
        let app = self.containers.iter().map(|container| (container, ContainerKind::App));
        let containers = init
            .chain(app)
            .map(|(container, kind)| {
                let resources = requirements(&container.requests, &container.limits)?;
                Ok(Container { name: container.name.clone(), kind, resources })
            })
            .collect::<Result<_>>()?;
        let resources = self
            .resources
            .as_ref()
            .map(|resources| requirements(&resources.requests, &resources.limits))
            .transpose()?;
        let name = PodName { namespace: String::from("default"), name: String::from("case") };
        Ok(Pod {
            priority: self.priority,
            priority_class_name: self.priority_class_name.clone(),
            overhead: list(&self.overhead)?,
            resources,
            ..Pod::new(name, PodUid::new("case").context("no uid")?, containers)
        })
    }
}

fn requirements(requests: &Texts, limits: &Texts) -> Result<Requirements> {
    Ok(Requirements { requests: list(requests)?, limits: list(limits)? })
}

pub(crate) fn list(texts: &Texts) -> Result<ResourceList> {
    texts.iter().map(|(name, text)| Ok((ResourceName::new(name), text.parse()?))).collect()
}
