//! Scenarios that need root and a kernel of their own; `cargo xtask vm test` runs them in guests.
#![cfg(test)]

#[macro_use(guest_test)]
extern crate guest_test;

mod admission;
mod agreement;
mod cgroup;
mod cleanup;
mod controllers;
mod cpus;
mod daemon;
mod debian;
mod doctor;
mod enforcement;
mod evict;
mod eviction;
mod floods;
mod inherited;
mod kube;
mod kube_current;
mod kubelet;
mod limits;
mod ooms;
mod outlook;
mod pins;
mod preference;
mod privileges;
mod reserved;
mod restarted;
mod rig;
mod scores;
mod sense;
mod stalls;
mod units;
