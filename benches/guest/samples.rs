//! What the guest has measured, and the tables of it: medians next to each other, with the lowest and the highest sample.

use std::collections::BTreeMap;

use benches::Table;
use benches::traffic::{MESSAGE, Result};

/// Nanoseconds of everything that was measured, a sample a round.
#[derive(Debug, Default)]
pub(crate) struct Samples(BTreeMap<String, Vec<f64>>);

impl Samples {
    /// Takes the lines "sample WHAT NANOSECONDS" out of what a round has printed.
    pub(crate) fn take(&mut self, log: &str) -> Result {
        for line in log.lines().filter_map(|line| line.strip_prefix("sample ")) {
            let (what, ns) = line.rsplit_once(' ').ok_or("a sample without a number")?;
            self.0.entry(what.to_owned()).or_default().push(ns.parse()?);
        }
        Ok(())
    }

    fn sorted(&self, key: &str, shown: fn(f64) -> f64) -> Option<Vec<f64>> {
        let mut values: Vec<f64> = self.0.get(key)?.iter().copied().map(shown).collect();
        values.sort_by(f64::total_cmp);
        Some(values)
    }

    fn median(&self, key: &str, shown: fn(f64) -> f64) -> Option<f64> {
        self.sorted(key, shown).map(|values| values[values.len() / 2])
    }

    fn number(&self, key: &str, shown: fn(f64) -> f64) -> String {
        self.median(key, shown).map(|value| format!("{value:.0}")).unwrap_or_default()
    }

    fn spread(&self, key: &str, shown: fn(f64) -> f64) -> String {
        let ends = self.sorted(key, shown).and_then(|values| Some((*values.first()?, *values.last()?)));
        ends.map(|(least, most)| format!("{least:.0} .. {most:.0}")).unwrap_or_default()
    }

    fn ratio(&self, key: &str, other: &str, shown: fn(f64) -> f64) -> String {
        let ratio = self.median(key, shown).zip(self.median(other, shown)).map(|(key, other)| key / other);
        ratio.map(|ratio| format!("{ratio:.2}")).unwrap_or_default()
    }

    /// Messages over the software HCA, rdma_rxe and UDP.
    pub(crate) fn traffic(&self) -> Table {
        let mut table =
            Table::new(["half RTT us; MB/s", "rxe", "spread", "ours", "spread", "of rxe", "UDP", "of UDP"]);
        let mut row = |name: String, [rxe, ours, udp]: [&str; 3], shown: fn(f64) -> f64| {
            table.row([
                name,
                self.number(rxe, shown),
                self.spread(rxe, shown),
                self.number(ours, shown),
                self.spread(ours, shown),
                self.ratio(ours, rxe, shown),
                self.number(udp, shown),
                self.ratio(ours, udp, shown),
            ]);
        };
        for waiting in ["blocking", "spinning"] {
            let what = format!("ping-pong {waiting}");
            let keys = ["rxe", "rc", "udp"].map(|who| format!("{who} {what}"));
            row(format!("64 bytes, {waiting}"), keys.each_ref().map(String::as_str), half_trip);
        }
        for mtu in ["1024", "4096"] {
            for what in ["write", "read", "send"] {
                // Plain UDP only sends.
                let keys =
                    [format!("rxe {what} {mtu}"), format!("rc {what} {mtu}"), format!("udp send {mtu}")];
                row(format!("64 KiB {what}, MTU {mtu}"), keys.each_ref().map(String::as_str), |ns| {
                    MESSAGE as f64 / ns * 1e3
                });
            }
        }
        table
    }

    /// The SDK on rdma_rxe next to what Linux has for the same device.
    pub(crate) fn on_rxe(&self) -> Table {
        let mut table = Table::new(["both on rxe", "Linux's", "spread", "ours", "spread", "of Linux's"]);
        let mut row = |name: &str, linux: &str, ours: &str, shown: fn(f64) -> f64| {
            table.row([
                name.to_owned(),
                self.number(linux, shown),
                self.spread(linux, shown),
                self.number(ours, shown),
                self.spread(ours, shown),
                self.ratio(ours, linux, shown),
            ]);
        };
        for waiting in ["blocking", "spinning"] {
            let [linux, ours] = ["rxe", "sdk"].map(|who| format!("{who} ping-pong {waiting}"));
            row(&format!("64 bytes, {waiting}: half RTT us"), &linux, &ours, half_trip);
        }
        for step in ["path", "queue pair", "connect", "all three", "disconnect", "destroy"] {
            let [linux, ours] = ["cmtime", "steps"].map(|who| format!("{who} {step}"));
            row(&format!("{step}: us a connection"), &linux, &ours, |ns| ns / 1e3);
        }
        let per_second: fn(f64) -> f64 = |ns| 1e9 / ns;
        row("step by step: connections/s", "cmtime all three", "steps all three", per_second);
        row("`Connection`: connections/s", "cmtime all three", "sdk all three", per_second);
        table
    }
}

fn half_trip(ns: f64) -> f64 {
    ns / 2e3
}
