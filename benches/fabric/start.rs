//! How long a subnet takes to come up, by itself and with a manager, and how long a manager that is new there takes to find
//! and configure everything, each in a process of its own.

use std::time::Instant;

use benches::{Options, Table, resident_bytes};
use ibcm::sim::Subnet;

use crate::net::{Shape, counter};
use crate::{Result, alone, runtime};

/// What is measured.
#[derive(Debug, Clone, Copy)]
enum What {
    /// A subnet that is configured by nobody who could be seen.
    Alone,
    /// The same with a manager, which has swept through it once.
    Managed,
    /// Its manager is replaced by one that gives all ports other LIDs, by packets that take their time.
    Swept,
}

type Case = (Shape, What);

const QUICK: [Case; 3] =
    [(Shape::SMALL, What::Alone), (Shape::SMALL, What::Managed), (Shape::SMALL, What::Swept)];
const CASES: [Case; 6] = [
    (Shape::HUNDRED, What::Alone),
    (Shape::HUNDRED, What::Managed),
    (Shape::HUNDRED, What::Swept),
    (Shape::THOUSAND, What::Alone),
    (Shape::THOUSAND, What::Managed),
    (Shape::THOUSAND, What::Swept),
];

fn name((shape, what): Case) -> String {
    let what = match what {
        What::Alone => "",
        What::Managed => ", managed",
        What::Swept => ", a new manager",
    };
    format!("start: {}{what}", shape.name())
}

pub(crate) fn run(options: &Options) -> Result {
    let cases: &[Case] = if options.quick { &QUICK } else { &CASES };
    let mut table = Table::new(["until it is up", "s", "s of its time", "SMPs", "packets", "KiB each HCA"]);
    for name in cases.iter().map(|case| name(*case)).filter(|name| options.selects(name)) {
        table.row(alone::row::<6>(&name)?);
    }
    println!("{table}");
    Ok(())
}

/// The case of this name, if it is one of these, in this process.
pub(crate) fn case(wanted: &str) -> Result<bool> {
    let Some(case) = QUICK.into_iter().chain(CASES).find(|case| name(*case) == wanted) else {
        return Ok(false);
    };
    alone::say(&started(case)?);
    Ok(true)
}

fn started((shape, what): Case) -> Result<[String; 6]> {
    runtime()?.block_on(async {
        let before = resident_bytes().ok_or("this system does not tell what is resident")?;
        let (mut real, mut its) = (Instant::now(), tokio::time::Instant::now());
        let build = shape.build();
        let net = match what {
            What::Alone => build.await?,
            What::Managed => build.managed().await?,
            What::Swept => build.timed().managed().await?,
        };
        let packets = counter(&net, "sent");
        if let What::Swept = what {
            (real, its) = (Instant::now(), tokio::time::Instant::now());
            net.sm(FIRST).restart_with_new_lids();
            net.sweep().await?;
        }
        let (real, its) = (real.elapsed().as_secs_f64(), its.elapsed().as_secs_f64());
        let memory = resident_bytes().unwrap_or(before).saturating_sub(before) >> 10;
        let row = [
            name((shape, what)),
            format!("{real:.3}"),
            format!("{its:.3}"),
            smps(&net, what),
            (counter(&net, "sent") - packets).to_string(),
            (memory / shape.hcas as u64).to_string(),
        ];
        net.quiet().await?;
        Ok(row)
    })
}

/// The switch with the manager.
const FIRST: &str = "spine0";

/// What the manager has sent, if one can be asked.
fn smps(net: &Subnet, what: What) -> String {
    match what {
        What::Alone => String::new(),
        What::Managed | What::Swept => {
            let counters = net.sm(FIRST).counters();
            counters.iter().find(|(name, _)| *name == "smps_sent").map_or(0, |(_, value)| *value).to_string()
        }
    }
}
