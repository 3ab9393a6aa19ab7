//! Reads and writes cgroup v2, below one directory handle and never outside it.

mod dir;

pub use self::dir::{CgroupDir, Error};
