//! One request on its way.

use std::time::Instant;

use ibdev::MadAddr;
use ibwire::TransactionId;
use ibwire::mad::{MadHeader, MgmtClass};

use super::request::{Effort, Request};
use crate::mad::SaHeader;
use crate::proto::rmpp::{Receiver, Sender};

/// A request, what was done for it, and where it stands.
#[derive(Debug)]
pub(super) struct Transaction {
    pub(super) request: Request,
    pub(super) state: State,
    /// The low half of its transaction ID, while it has one.
    pub(super) tid: Option<u32>,
    /// Where it was sent.
    pub(super) to: Option<MadAddr>,
    /// Copies since it was last BUSY or redirected.
    pub(super) tries: u32,
    pub(super) redirects: u32,
    pub(super) first_sent: Option<Instant>,
    pub(super) sent: u32,
    pub(super) busy: u32,
    /// Our entry in the client's timers.
    pub(super) timer: Option<Instant>,
}

/// Where a request stands.
#[derive(Debug)]
pub(super) enum State {
    /// It waits for its turn.
    Queued,
    /// It rests after BUSY.
    Resting,
    /// It was sent whole.
    Asked,
    /// It is being sent in several MADs.
    Sending(Box<Sender>),
    /// Its answer comes in several MADs. The headers are those of the first.
    Receiving(Box<(Receiver, SaHeader)>),
}

impl Transaction {
    pub(super) fn new(request: Request) -> Self {
        Self {
            request,
            state: State::Queued,
            tid: None,
            to: None,
            tries: 0,
            redirects: 0,
            first_sent: None,
            sent: 0,
            busy: 0,
            timer: None,
        }
    }

    /// Whether it takes a place in the window.
    pub(super) const fn is_under_way(&self) -> bool {
        matches!(self.state, State::Asked | State::Sending(_) | State::Receiving(_))
    }

    /// The headers of the request.
    pub(super) fn header(&self, tid: u32) -> SaHeader {
        let Request { method, attribute, attribute_modifier, component_mask, sm_key, .. } = self.request;
        let tid = TransactionId(tid.into());
        let mad = MadHeader::new(MgmtClass::SA, SaHeader::CLASS_VERSION, method, attribute, tid);
        SaHeader { sm_key, component_mask, ..SaHeader::new(MadHeader { attribute_modifier, ..mad }) }
    }

    pub(super) fn effort(&self, now: Instant) -> Effort {
        let waited = self.first_sent.map(|first| now.saturating_duration_since(first));
        Effort { sent: self.sent, busy: self.busy, waited: waited.unwrap_or_default() }
    }
}
