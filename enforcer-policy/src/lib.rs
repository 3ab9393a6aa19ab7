//! The rules of quality of service for the pods of one node, as the Kubernetes API and the kubelet have them: QoS
//! class, effective requests and limits, allocatable, admission, cgroup values, `oom_score_adj`, and whom to evict.
//!
//! Pure functions and state machines over [`model`]: no IO, no clock, no runtime. [`plan()`] says what a node's cgroups
//! must hold, [`rank`] in which order pods are evicted, and [`engine`] what to do when; `examples/rank_and_plan.rs` is a
//! start.

pub mod admission;
pub mod alignment;
pub mod allocatable;
pub mod cpu;
pub mod cpus;
pub mod critical;
pub mod duration;
pub mod effective;
pub mod engine;
mod few;
pub mod flight;
pub mod forecast;
pub mod hugepages;
mod lists;
pub mod message;
pub mod model;
pub mod name;
pub mod oom_score;
pub mod order;
mod plan;
pub mod preemption;
pub mod preference;
pub mod pressure;
pub mod qos;
pub mod rank;
pub mod reservation;
#[cfg(test)]
mod sample;
mod settings;
pub mod threshold;
pub mod values;
pub mod what_if;

pub use self::{
    plan::{CgroupPlan, ContainerPlan, Plan, PodPlan, plan, plan_decided, plan_placed},
    settings::{
        CgroupDriver, CpuManagerPolicy, CpuWeightFormula, EvictionSettings, KubeReservedPolicy,
        MemoryProtection, MemoryReservationPolicy, ReservedCgroup, ReservedScope, Settings, SettingsError,
        SwapBehavior,
    },
};
