//! What the guest scenarios share.
pub mod cgroup;
pub mod load;
