//! The target `transport-engine` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz::transport_engine::run(bytes));
