//! The client of subnet administration: what records cost, what the cache brings, and queries to OpenSM.

mod opensm;
mod process;
mod records;

use std::error::Error;

use benches::{Estimate, Options, Table};

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result {
    let options = Options::start("sa: records, queries for paths and their cache");
    records::run(&options);
    process::run(&options)?;
    opensm::run(&options)
}

/// Queries a second and what one takes, each next to the first with as many in flight.
fn queries(heading: &str, estimates: &[Estimate]) -> Table {
    let in_flight = |case: &Estimate| case.name.split_once(", ").map(|(_, rest)| rest.to_owned());
    let mut table =
        Table::new([heading, "queries/s", "us each", "quartiles", "of the first", "CPU us", "of the first"]);
    for case in estimates {
        let first = estimates.iter().find(|other| in_flight(other) == in_flight(case)).unwrap_or(case);
        let us = |ns: f64| ns / 1e3;
        table.row([
            case.name.clone(),
            format!("{:.0}", case.per_second()),
            format!("{:.2}", us(case.median)),
            format!("{:.2} .. {:.2}", us(case.quartiles.0), us(case.quartiles.1)),
            format!("{:.2}", case.median / first.median),
            format!("{:.2}", us(case.cpu)),
            format!("{:.2}", case.cpu / first.cpu),
        ]);
    }
    table
}
