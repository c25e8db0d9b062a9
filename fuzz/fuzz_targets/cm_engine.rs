//! The target `cm-engine` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz::cm_engine::run(bytes));
