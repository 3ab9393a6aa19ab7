//! Fuzzes `enforcer_fuzz::event`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| enforcer_fuzz::event::check(bytes));
