//! SIDR, service ID resolution: from a service ID to the queue pair number and Q_Key of a datagram service
//! (spec/cm.md 4.13).
//!
//! A query is one message that is repeated until it is answered; it makes no connection. Services are found by the rules
//! of listeners, among themselves: a service ID may have a listener for connections and a datagram service at once.

mod command;
mod event;
mod handle;
mod queries;
mod requests;
mod services;

pub use command::{SidrAnswer, SidrHandling, SidrQuery, SidrServe};
pub use event::{SidrEvent, SidrRequest};
pub use handle::{SidrQueryHandle, SidrRequestHandle, SidrServiceId};

use std::collections::VecDeque;
use std::time::Instant;

use ibdev::MadSource;

use super::config::Config;
use super::core::Core;
use super::ids::Keyed;
use super::message::SidrRep;
use queries::Queries;
use requests::Requests;
use services::Services;

/// What an endpoint has of SIDR.
#[derive(Debug)]
pub(super) struct Sidr {
    pub(super) queries: Queries,
    services: Services,
    requests: Requests,
    events: VecDeque<SidrEvent>,
}

impl Sidr {
    pub(super) fn new(config: &Config, keyed: Keyed) -> Self {
        Self {
            queries: Queries::new(keyed),
            services: Services::new(keyed),
            requests: Requests::new(config.max_sidr_answers, keyed),
            events: VecDeque::new(),
        }
    }

    pub(super) fn poll_event(&mut self) -> Option<SidrEvent> {
        self.events.pop_front()
    }

    #[cfg(test)]
    pub(super) fn held(&self) -> [usize; 3] {
        self.requests.held()
    }

    /// How many requests wait for their answer.
    pub(super) fn undecided(&self) -> usize {
        self.requests.undecided_len()
    }

    /// A SIDR_REP came in.
    pub(super) fn handle_rep(&mut self, core: &mut Core, now: Instant, from: &MadSource, rep: &SidrRep) {
        self.queries.handle_rep(core, now, from, rep, &mut self.events);
    }

    pub(super) fn handle_timeout(&mut self, core: &mut Core, now: Instant) {
        self.queries.handle_timeout(core, now, &mut self.events);
    }

    /// The device is gone: queries end, services take nothing more.
    pub(super) fn handle_device_removed(&mut self, core: &mut Core) {
        self.queries.handle_device_removed(core, &mut self.events);
        self.services.shut();
        self.requests.clear();
    }
}
