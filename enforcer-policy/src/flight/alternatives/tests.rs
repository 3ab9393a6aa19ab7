//! Shortages of which each number can be computed by hand.

mod kernel;
mod kubelet;
mod scene;
mod unknown;
