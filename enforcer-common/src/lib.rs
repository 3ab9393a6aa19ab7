//! Records that the eBPF programs write and the daemon reads, and the small decisions both share.
#![no_std]
