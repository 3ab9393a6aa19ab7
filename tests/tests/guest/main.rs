//! Scenarios that need root and a kernel of their own; `cargo xtask vm test` runs them in guests.
mod admission;
mod agreement;
#[cfg(test)]
mod cgroup;
mod daemon;
mod doctor;
#[cfg(test)]
mod enforcement;
mod evict;
mod eviction;
mod limits;
#[cfg(test)]
mod ooms;
mod outlook;
mod pins;
mod preference;
mod rig;
mod scores;
#[cfg(test)]
mod sense;
#[cfg(test)]
mod stalls;
#[cfg(test)]
mod units;
