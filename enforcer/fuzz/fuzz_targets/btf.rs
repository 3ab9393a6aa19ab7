//! Fuzzes `enforcer_fuzz::btf`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| enforcer_fuzz::btf::check(bytes));
