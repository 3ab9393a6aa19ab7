//! The `enforcer` binary.
fn main() {}
