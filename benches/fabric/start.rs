//! How long a subnet takes to come up, by itself and swept by a manager.

use std::time::Instant;

use benches::{Options, Table, resident_bytes};

use crate::net::{Shape, counter};
use crate::{Result, runtime};

pub(crate) fn run(options: &Options) -> Result {
    let shapes: &[Shape] = if options.quick { &[Shape::SMALL] } else { &[Shape::HUNDRED, Shape::THOUSAND] };
    let mut table = Table::new(["until it is up", "s", "s of its time", "packets", "KiB each HCA"]);
    for shape in shapes {
        for managed in [false, true] {
            let name = format!("start: {}{}", shape.name(), if managed { ", managed" } else { "" });
            if options.selects(&name) {
                table.row(started(*shape, managed, name)?);
            }
        }
    }
    println!("{table}");
    Ok(())
}

fn started(shape: Shape, managed: bool, name: String) -> Result<[String; 5]> {
    runtime()?.block_on(async {
        let before = resident_bytes().unwrap_or(0);
        let (real, its) = (Instant::now(), tokio::time::Instant::now());
        let build = shape.build();
        let net = if managed { build.managed().await? } else { build.await? };
        let real = real.elapsed();
        let memory = resident_bytes().unwrap_or(0).saturating_sub(before) >> 10;
        net.quiet().await?;
        Ok([
            name,
            format!("{:.3}", real.as_secs_f64()),
            format!("{:.3}", its.elapsed().as_secs_f64()),
            counter(&net, "sent").to_string(),
            format!("{}", memory / shape.hcas as u64),
        ])
    })
}
