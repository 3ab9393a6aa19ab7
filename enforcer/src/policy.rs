//! All decision rules: pure functions and state machines over [`crate::model`], without IO and clock.

pub mod admission;
pub mod alignment;
pub mod allocatable;
pub mod cpu;
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
pub mod name;
pub mod oom_score;
pub mod order;
mod plan;
pub mod preemption;
pub mod preference;
pub mod pressure;
pub mod qos;
pub mod rank;
#[cfg(test)]
pub(crate) mod sample;
mod settings;
pub mod threshold;
pub mod values;
pub mod what_if;
pub mod wire;

pub use self::{
    plan::{CgroupPlan, ContainerPlan, FileName, Plan, PodPlan, plan, plan_decided},
    settings::{
        CgroupDriver, CpuWeightFormula, EvictionSettings, MemoryReservationPolicy, ReservedCgroup,
        ReservedScope, Settings, SettingsError, SwapBehavior,
    },
};
