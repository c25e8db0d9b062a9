//! How fast two CM engines connect and disconnect: REQ, REP, RTU, DREQ, DREP, each encoded and decoded, both ends in one
//! thread, no socket, a virtual clock.
//!
//! With TimeWait populated the clock moves on as if [`PACE`] connections were made in a second, so that each rests in
//! TimeWait for as long as its path demands and then leaves it. With TimeWait empty the clock jumps over it as soon as a
//! connection has ended.

use std::time::Duration;

use benches::engines::{Delivery, MADS, PAST_TIME_WAIT, Pair};
use benches::{Case, Clock, Estimate, Options, Sampling, Table, resident_bytes, side_by_side};

/// Connections per second of the virtual clock.
const PACE: u32 = 300_000;
fn main() {
    let options = Options::start("handshake: two CM engines, REQ to DREP, both ends on one core");
    let sampling = Sampling::new(&options, Clock::Cpu, Duration::from_millis(100), 41);
    let mut pairs: Vec<(String, Pair)> = Vec::new();
    let pace = if options.quick { PACE / 100 } else { PACE };
    for (time_wait, tick) in [("empty", PAST_TIME_WAIT), ("populated", Duration::from_secs(1) / pace)] {
        for in_flight in [1, 1000] {
            let name = format!("TimeWait {time_wait}, {in_flight} in flight");
            if options.selects(&name) {
                pairs.push((name, Pair::new(in_flight, tick, Delivery::Together)));
            }
        }
    }
    let mut state_bytes = None;
    for (_, pair) in &mut pairs {
        let before = resident_bytes();
        pair.fill();
        if let (Some(before), Some(after), count @ 10_000..) = (before, resident_bytes(), pair.connections())
        {
            state_bytes = Some((after.saturating_sub(before) / count as u64, count));
        }
    }
    let cases =
        pairs.iter_mut().map(|(name, pair)| Case::new(name.clone(), |count| pair.run(count))).collect();
    let estimates = side_by_side(sampling, cases);
    print!("{}", table(&estimates, &pairs));
    if let Some((bytes, count)) = state_bytes {
        println!("\n{bytes} bytes resident per connection in TimeWait and end ({count} connections)");
    }
    for (name, pair) in &mut pairs {
        pair.check();
        println!("{name}: {} connections, no message sent twice, none refused", pair.started());
    }
}

fn table(estimates: &[Estimate], pairs: &[(String, Pair)]) -> Table {
    let mut table =
        Table::new(["", "handshakes/s", "ns each", "quartiles", "ns per MAD", "of the first", "in TimeWait"]);
    for (case, (_, pair)) in estimates.iter().zip(pairs) {
        table.row([
            case.name.clone(),
            format!("{:.0}", case.per_second()),
            format!("{:.0}", case.median),
            case.spread(),
            format!("{:.0}", case.median / MADS),
            format!("{:.2}", case.median / estimates[0].median),
            pair.connections().to_string(),
        ]);
    }
    table
}
