//! Tests of the CPU rules, on the topologies of real machines.

mod assignments;
mod machines;
mod properties;
mod reconcile;
mod set;
mod take;
mod wanted;
