//! Every rule that decides something: pure functions and state machines over [`crate::model`], without IO and clock.

mod plan;
mod settings;

pub use self::{
    plan::{CgroupPlan, ContainerPlan, FileName, Plan, PodPlan},
    settings::{CpuWeightFormula, Settings},
};
