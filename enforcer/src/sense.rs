//! Turns kernel facts into observations. Reads only.

mod edge;
mod meminfo;
pub mod raw;
mod sampler;

pub use self::{
    edge::EdgeSource,
    meminfo::{Meminfo, MeminfoError, MemoryInfo, PROC_MEMINFO},
    sampler::Sampler,
};
