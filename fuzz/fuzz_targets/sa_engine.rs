//! The target `sa-engine` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz::sa_engine::run(bytes));
