//! What the programs did and saw, in the order of time.

use std::fmt::{self, Write as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// A journal of one simulation. Clones write into the same.
#[derive(Debug, Clone)]
pub struct Journal(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    start: Instant,
    lines: Mutex<Vec<(Duration, String)>>,
}

impl Journal {
    /// Times count from now on.
    pub fn start() -> Self {
        Self(Arc::new(Inner { start: Instant::now(), lines: Mutex::default() }))
    }

    fn guard(&self) -> MutexGuard<'_, Vec<(Duration, String)>> {
        self.0.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The time of the simulation.
    pub fn now(&self) -> Duration {
        self.0.start.elapsed()
    }

    pub fn note(&self, line: fmt::Arguments<'_>) {
        let now = self.now();
        self.guard().push((now, line.to_string()));
    }

    pub fn lines(&self) -> Vec<(Duration, String)> {
        self.guard().clone()
    }

    /// The journal and the packets of the subnet's log, one order of time. What a program did comes before the packets of
    /// the same moment.
    pub fn with_packets(&self, packets: &[String]) -> String {
        let mut all: Vec<(Duration, String)> = self.lines();
        all.extend(packets.iter().map(|line| {
            let (sent, rest) = line.split_once(' ').unwrap_or(("", line));
            (parse(sent).unwrap_or_default(), format!("    {rest}"))
        }));
        all.sort_by_key(|(at, _)| *at);
        let mut text = String::new();
        for (at, line) in all {
            _ = writeln!(text, "{:>11.6} {line}", at.as_secs_f64());
        }
        text
    }
}

/// Reads a duration as `{:?}` writes it.
fn parse(text: &str) -> Option<Duration> {
    let unit = text.find(|c: char| c != '.' && !c.is_ascii_digit())?;
    let seconds = match &text[unit..] {
        "s" => 1.0,
        "ms" => 1e-3,
        "µs" => 1e-6,
        "ns" => 1e-9,
        _ => return None,
    };
    Some(Duration::from_secs_f64(text[..unit].parse::<f64>().ok()? * seconds))
}
