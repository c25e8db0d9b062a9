//! The targets as plain tests: over their seeds, over damaged seeds, and over random bytes.
//!
//! `FUZZ_CASES=100000 cargo test -p fuzz` tries more. A failing input prints itself.

#![allow(clippy::unwrap_used, reason = "a test that cannot read its data fails")]

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use fuzz::{TARGETS, Target};
use rand::rngs::ChaCha8Rng;
use rand::{Rng, RngExt, SeedableRng};

fn target(name: &str) -> Target {
    TARGETS.into_iter().find(|target| target.name == name).unwrap()
}

fn cases() -> u64 {
    std::env::var("FUZZ_CASES").map_or(300, |cases| cases.parse().expect("FUZZ_CASES is a number"))
}

/// Runs over one input. One that fails is written down.
fn check(target: Target, name: &str, bytes: &[u8]) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (target.run)(bytes))) {
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        eprintln!("target {} fails on {name}: {hex}", target.name);
        resume_unwind(panic);
    }
}

fn run(name: &str) {
    let target = target(name);
    let seeds = (target.seeds)();
    assert!(!seeds.is_empty());
    for seed in &seeds {
        check(target, &seed.name, &seed.bytes);
    }
    for case in 0..cases() {
        let mut rng = ChaCha8Rng::seed_from_u64(case);
        let mut bytes = vec![0; rng.random_range(0..=600)];
        rng.fill_bytes(&mut bytes);
        check(target, &format!("random bytes {case}"), &bytes);

        let mut bytes = seeds[rng.random_range(0..seeds.len())].bytes.clone();
        for _ in 0..rng.random_range(1..8) {
            damage(&mut bytes, &mut rng);
        }
        check(target, &format!("damaged seed {case}"), &bytes);
    }
}

/// Changes, removes, repeats or adds something.
fn damage(bytes: &mut Vec<u8>, rng: &mut ChaCha8Rng) {
    let at = rng.random_range(0..=bytes.len());
    let end = bytes.len().min(at + rng.random_range(0..40));
    match rng.random_range(0..5) {
        0 => bytes[at..end].iter_mut().for_each(|byte| *byte = rng.random()),
        1 => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << rng.random_range(0..8)),
        2 => drop(bytes.drain(at..end)),
        3 => bytes.extend_from_within(at..end),
        _ => bytes.truncate(end),
    }
}

#[test]
fn hca_t09_packets() {
    run("packet");
}

#[test]
fn hca_t09_every_length_and_every_opcode() {
    let target = target("packet");
    for len in 0..=100 {
        for fill in [0x00, 0x45, 0x60, 0xff] {
            check(target, "one value", &vec![fill; len]);
        }
        for opcode in 0..=255 {
            for flags in [0x00, 0x10, 0x20, 0x30, 0x31] {
                let mut bytes = vec![0; len];
                bytes.iter_mut().zip([opcode, flags]).for_each(|(byte, value)| *byte = value);
                check(target, "an opcode", &bytes);
            }
        }
    }
}

#[test]
fn raw_packets() {
    run("raw");
}

#[test]
fn mads() {
    run("mad");
}

#[test]
fn cm_engine() {
    run("cm-engine");
}

#[test]
fn transport_engine() {
    run("transport-engine");
}

#[test]
fn sa_records() {
    run("sa-records");
}

#[test]
fn rmpp() {
    run("rmpp");
}

#[test]
fn sa_engine() {
    run("sa-engine");
}
