//! `cargo xtask test`: everything that has to hold, in one command. See [`USAGE`].
#![forbid(unsafe_code)]

mod floor;
mod packages;
mod process;
mod tally;
mod workspace;

use std::env;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use floor::{Context, FLOORS, Floor};
use tally::{Tally, Verdict};

const USAGE: &str = "\
usage: cargo xtask test [--floor NAME]...

Runs all floors, or the named ones, and ends with one line `N passed, N failed`.
Missing Debian packages are installed when this is root; otherwise the floors that need them are left out.
With CI=true a floor that lacks a package has failed. Two checks hold without what does not exist: a release to compare with,
and a toolchain of the minimum Rust that can't be had.";

fn main() -> ExitCode {
    match arguments() {
        Ok(floors) => test(&floors),
        Err(wrong) => {
            eprintln!("{wrong}\n\n{USAGE}\n\nfloors:");
            for floor in FLOORS {
                eprintln!("  {:10} {}", floor.name, floor.about);
            }
            ExitCode::from(2)
        }
    }
}

fn arguments() -> Result<Vec<&'static Floor>, String> {
    let mut words = env::args().skip(1);
    match words.next().as_deref() {
        Some("test") => {}
        other => return Err(format!("unknown command: {}", other.unwrap_or("none"))),
    }
    let mut floors = Vec::new();
    while let Some(word) = words.next() {
        let name = match word.as_str() {
            "--floor" => words.next().ok_or("--floor wants a name")?,
            other => return Err(format!("unknown argument: {other}")),
        };
        floors.push(FLOORS.iter().find(|floor| floor.name == name).ok_or(format!("unknown floor: {name}"))?);
    }
    Ok(if floors.is_empty() { FLOORS.iter().collect() } else { floors })
}

fn test(floors: &[&Floor]) -> ExitCode {
    let began = Instant::now();
    let ci = env::var("CI").is_ok_and(|value| value == "true");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."));
    let wanted: Vec<&str> = floors.iter().flat_map(|floor| floor.packages).copied().collect();
    let missing = packages::provide(&wanted);
    packages::components();
    let context = Context { root, missing: &missing, root_user: packages::root_user(), ci };

    let mut total = Tally::default();
    let mut lines = Vec::new();
    for floor in floors {
        println!("\n== {}: {}", floor.name, floor.about);
        let began = Instant::now();
        let verdict = match floor.lacks(&context) {
            Some(reason) if ci => Verdict::Failed(reason),
            Some(reason) => Verdict::LeftOut(reason),
            None => (floor.run)(&context),
        };
        let line = format!("{:10} {verdict} ({:.1} s)", floor.name, began.elapsed().as_secs_f32());
        println!("== {line}");
        lines.push(line);
        total += verdict.tally();
    }
    println!("\n{}\n\n{:.0} s in all", lines.join("\n"), began.elapsed().as_secs_f32());
    println!("{} passed, {} failed", total.passed, total.failed);
    if total.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
