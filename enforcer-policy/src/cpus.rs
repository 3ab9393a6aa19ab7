//! CPUs of their own for containers: the rules of the kubelet's static CPU manager policy, for one node.
//!
//! A container of a Guaranteed pod whose CPU request is a whole number gets that many logical CPUs which no other
//! container runs on; all others share the rest, the shared pool. [`wanted`] says who gets CPUs of its own, [`take`]
//! which ones, and [`reconcile`] what changes when pods come and go. [`Assignments`] is the content of the kubelet's
//! checkpoint `cpu_manager_state`.
//!
//! The source of the rules is `pkg/kubelet/cm/cpumanager` of Kubernetes 1.37: `policy_static.go`, `cpu_assignment.go`
//! and `policy_options.go`. Where the rules here differ, the documentation of the item says so.

mod assignments;
mod nodes;
mod options;
mod reconcile;
mod set;
mod take;
mod topology;
mod wanted;

#[cfg(test)]
mod tests;

pub use self::{
    assignments::{Assignments, Owner, POLICY_NAME, Problem},
    options::{CpuOptions, DISTRIBUTE_CPUS_ACROSS_CORES, FULL_PCPUS_ONLY, OptionsError},
    reconcile::{Change, Reconciled, Refused, reconcile},
    set::{CpuSet, CpuSetError, MAX_CPU},
    take::{Refusal, reserve, take},
    topology::{LogicalCpu, Topology, TopologyError},
    wanted::{Wanted, wanted, wanted_cpus},
};
