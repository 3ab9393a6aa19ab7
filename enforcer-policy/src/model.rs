//! Pods, containers, nodes and their resources. Pure data: no IO, no clock.

mod adoption;
mod cgroup;
mod common;
mod component;
mod fingerprint;
mod id;
mod labels;
mod limit;
mod node;
mod owner;
mod owner_reference;
mod placement;
mod pod;
mod qos;
mod quantity;
mod resources;
mod small_map;
mod texts;
mod toleration;
mod values;

pub use self::{
    adoption::Adoption,
    cgroup::{CgroupId, CgroupPath, InvalidCgroupName},
    common::Common,
    component::{InvalidComponent, NodeComponent},
    id::{ContainerId, PodName, PodUid},
    labels::{LabelTexts, Labels},
    limit::Limit,
    node::Node,
    owner::{Owner, OwnerLevel},
    owner_reference::OwnerReference,
    placement::{Freshness, Knowledge, Placement, SpecOrigin, Unnamed},
    pod::{Container, ContainerKind, Instance, Pod},
    qos::QosClass,
    quantity::{BinarySi, ParseQuantityError, Quantity},
    resources::{Requirements, ResourceList, ResourceName},
    small_map::SmallMap,
    toleration::{TaintEffect, Toleration, TolerationTaints},
    values::{CgroupFile, CgroupValue, CgroupValues, CpuMax, TemporaryValue},
};
