//! Every numbered scenario of spec/cm.md, spec/softhca.md, spec/raw.md and spec/sa.md is there, as a test whose name says so.
//!
//! A name begins with all numbers that it stands for: `cm_t31_…`, `hca_t10_t11_…`.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::path::Path;
use std::{fs, io};

/// The workspace's members that have tests.
const FOLDERS: [&str; 9] =
    ["benches", "examples", "ibcm", "ibcm-sys", "ibraw", "ibsa", "ibsoft", "ibwire", "tests"];

/// What stands before the name of a case that is no function: one of the guest, one with programs that may be missing, one that
/// runs in two ways.
const CASES: [&str; 6] =
    ["case(\"", "both(\"", "alone(\"", "Trial::test(\"", "Case::new(\"", "Case::new(format!(\""];

/// Numbers that the names of tests in the workspace begin with, for scenarios of `family`.
fn scenarios(family: &str) -> io::Result<BTreeSet<u32>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package lies in the workspace");
    let mut found = BTreeSet::new();
    for folder in FOLDERS {
        search(&root.join(folder), family, &mut found)?;
    }
    Ok(found)
}

fn search(folder: &Path, family: &str, found: &mut BTreeSet<u32>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            search(&path, family, found)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.extend(tests(&fs::read_to_string(path)?).flat_map(|name| numbers(&name, family)));
        }
    }
    Ok(())
}

/// The tests of a source file: functions with an attribute that says so, and cases that run in a guest.
fn tests(source: &str) -> impl Iterator<Item = String> {
    let mut is_test = false;
    let name = move |line: &str| {
        let line = line.trim();
        if line.starts_with("#[") {
            is_test |= line.contains("test");
            return None;
        }
        let function = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ");
        let name =
            function.filter(|_| is_test).or_else(|| CASES.iter().find_map(|case| line.strip_prefix(case)))?;
        is_test = false;
        Some(name.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next()?.to_owned())
    };
    source.lines().filter_map(name).collect::<Vec<_>>().into_iter()
}

/// The numbers that a name begins with, if it is of `family`.
fn numbers(name: &str, family: &str) -> Vec<u32> {
    let rest = name.strip_prefix(family).unwrap_or("").strip_prefix("_t");
    rest.map_or_else(Vec::new, |rest| rest.split("_t").map_while(number).collect())
}

/// The number of a part of a name: two digits, and no more of a word.
fn number(part: &str) -> Option<u32> {
    let (digits, rest) = part.split_at_checked(2)?;
    if rest.is_empty() || rest.starts_with('_') { digits.parse().ok() } else { None }
}

fn all_are_there(family: &str, last: u32, open: &[u32]) -> io::Result<()> {
    let found = scenarios(family)?;
    let missing: Vec<_> = (1..=last)
        .filter(|n| !found.contains(n) && !open.contains(n))
        .map(|n| format!("{family}_t{n:02}"))
        .collect();
    assert!(missing.is_empty(), "no test is named after {}", missing.join(", "));
    let done: Vec<_> = open.iter().filter(|n| found.contains(n)).collect();
    assert!(done.is_empty(), "{family} {done:?} have tests: they are not open any more");
    let unknown: Vec<_> = found.into_iter().filter(|n| !(1..=last).contains(n)).collect();
    assert!(unknown.is_empty(), "{family} has no scenarios {unknown:?}");
    Ok(())
}

#[test]
fn all_of_connection_management() -> io::Result<()> {
    all_are_there("cm", 87, &[])
}

#[test]
fn all_of_the_software_hca() -> io::Result<()> {
    all_are_there("hca", 65, &[])
}

#[test]
fn all_of_subnet_administration() -> io::Result<()> {
    all_are_there("sa", 83, &[])
}

#[test]
fn all_of_raw_datagrams() -> io::Result<()> {
    all_are_there("raw", 36, &[])
}

#[test]
fn names_are_read() {
    let source = "
        #[test]
        fn cm_t01_one() {}
        #[tokio::test(start_paused = true)]
        async fn cm_t02_t03_two_at_once() {}
        fn cm_t04_helper() {}
        // fn cm_t05_comment
        case(\"cm_t06_guest.sh\", &[]),
        #[test]
        #[cfg(unix)]
        fn cm_t07_t08() {}
        #[test]
        fn hca_t09_t1_text_t10() {}
        Case::new(format!(\"hca_t11_{who}\"), \"script.sh\", &[]),
        let trial = Trial::test(\"hca_t12\", run);
        Trial::test(\"hca_t13_programs\", run),
        both(\"hca_t14_two_ways\", run),
    ";
    let numbers_of = |family| tests(source).flat_map(|name| numbers(&name, family)).collect::<Vec<_>>();
    assert_eq!(numbers_of("cm"), [1, 2, 3, 6, 7, 8]);
    assert_eq!(numbers_of("hca"), [9, 11, 13, 14]);
}
