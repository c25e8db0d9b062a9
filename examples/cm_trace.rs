//! Prints each CM message as it passes.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use ibcm::{Gid, MAD_TARGET};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, fmt as log};

/// Starts printing. With `RUST_LOG` set, the library's own log goes to standard error besides.
pub fn start() -> CmTrace {
    let trace = CmTrace { start: Instant::now(), names: Arc::default() };
    let printer = trace.clone().with_filter(Targets::new().with_target(MAD_TARGET, LevelFilter::TRACE));
    let log = std::env::var_os("RUST_LOG")
        .map(|_| log::layer().with_writer(std::io::stderr).with_filter(EnvFilter::from_default_env()));
    tracing_subscriber::registry().with(printer).with(log).init();
    trace
}

/// Prints the CM messages that the HCAs of this process send and receive: time since the start, who to whom,
/// name and communication IDs.
#[derive(Debug, Clone)]
pub struct CmTrace {
    start: Instant,
    /// What an HCA or an address is called.
    names: Arc<Mutex<HashMap<String, String>>>,
}

impl CmTrace {
    /// Calls an HCA, or an address, by this name. A message between two HCAs with names is printed once, by its
    /// sender.
    pub fn name(&self, what: impl ToString, name: &str) {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        names.insert(what.to_string(), name.to_owned());
    }

    fn print(&self, message: &CmMessage) {
        let ms = self.start.elapsed().as_secs_f64() * 1e3;
        let names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let (here, there) = (names.get(&message.hca), names.get(&message.peer));
        if message.direction == "in" && here.is_some() && there.is_some() {
            return;
        }
        let here = here.map_or("here", String::as_str);
        let ip = message.peer.parse::<Gid>().map(|gid| gid.to_ip().to_string());
        let there = there.or(ip.as_ref().ok()).unwrap_or(&message.peer);
        let arrow = if message.direction == "out" { "->" } else { "<-" };
        let CmMessage { name, local, remote, error, .. } = message;
        if error.is_empty() {
            println!("{ms:>10.3} ms  {here} {arrow} {there}  {name:<4}  from id {local} to id {remote}");
        } else {
            println!("{ms:>10.3} ms  {here} {arrow} {there}  ?     {error}");
        }
    }
}

impl<S: Subscriber> Layer<S> for CmTrace {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut message = CmMessage::default();
        event.record(&mut message);
        self.print(&message);
    }
}

/// The fields of one event.
#[derive(Debug, Default)]
struct CmMessage {
    hca: String,
    direction: String,
    peer: String,
    name: String,
    local: String,
    remote: String,
    error: String,
}

impl Visit for CmMessage {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let place = match field.name() {
            "hca" => &mut self.hca,
            "direction" => &mut self.direction,
            "peer" => &mut self.peer,
            "mad" => &mut self.name,
            "local" => &mut self.local,
            "remote" => &mut self.remote,
            "error" => &mut self.error,
            _ => return,
        };
        *place = format!("{value:?}");
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }
}
