//! The target `sa-records` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz::sa_records::run(bytes));
