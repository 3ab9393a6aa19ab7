//! What the guest scenarios and the demonstration share: a daemon to drive, what it tells, and what the kernel says.
pub mod cgroup;
pub mod daemon;
pub mod figures;
pub mod host;
pub mod kernel;
pub mod load;
pub mod plan;
pub mod pods;
pub mod process;
pub mod random;
pub mod rate;
pub mod sampler;
pub mod signals;
pub mod stream;
pub mod trace;
pub mod wait;
pub mod writes;
