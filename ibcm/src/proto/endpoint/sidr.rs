//! Datagram services: queries, and answers to those of others.

use std::time::Instant;

use ibdev::MadSource;
use ibwire::TransactionId;

use super::super::error::{CommandError, ConnectError, ListenError};
use super::super::message::{SidrRep, SidrReq};
use super::super::sidr::{
    SidrAnswer, SidrEvent, SidrQuery, SidrQueryHandle, SidrRequestHandle, SidrServe, SidrServiceId,
};
use super::Endpoint;

impl Endpoint {
    /// Asks a peer for the queue pair of a datagram service. What comes of it is told by one [`SidrEvent`].
    ///
    /// # Errors
    /// [`ConnectError`]; then nothing was sent.
    pub fn sidr_query(&mut self, _now: Instant, query: &SidrQuery) -> Result<SidrQueryHandle, ConnectError> {
        if self.core.gone {
            return Err(ConnectError::DeviceRemoved);
        }
        let handle = self.sidr.queries.start(&mut self.core, query)?;
        self.sweep();
        Ok(handle)
    }

    /// Forgets a query. No event follows. Does nothing if it is over.
    pub fn sidr_cancel(&mut self, query: SidrQueryHandle) {
        self.sidr.queries.cancel(&mut self.core, query);
    }

    /// How many queries have no answer yet.
    pub fn sidr_queries(&self) -> usize {
        self.sidr.queries.len()
    }

    /// Offers a datagram service. One with a GID or port is preferred to one without.
    ///
    /// # Errors
    /// [`ListenError::AddrInUse`] if there is one with the same service ID, port and GID; [`ListenError::Invalid`] for a port
    /// that the HCA does not have, and other values out of range.
    pub fn sidr_serve(&mut self, serve: SidrServe) -> Result<SidrServiceId, ListenError> {
        if self.core.gone {
            return Err(ListenError::DeviceRemoved);
        }
        self.core.ca.check_port(serve.port)?;
        self.sidr.serve(&self.core.config, serve)
    }

    /// Offers it no more: further requests meet status 1. Those that have been reported are the caller's to answer.
    pub fn sidr_unserve(&mut self, service: SidrServiceId) {
        self.sidr.unserve(service);
    }

    /// How many requests of this service are unanswered; `None` if there is no such service.
    pub fn sidr_pending_requests(&self, service: SidrServiceId) -> Option<usize> {
        self.sidr.pending_requests(service)
    }

    /// How many requests found this service without room; `None` if there is no such service.
    pub fn sidr_overflowed_requests(&self, service: SidrServiceId) -> Option<u64> {
        self.sidr.overflowed_requests(service)
    }

    /// Answers a request, after [`SidrEvent::Request`]. For a while the same answer meets each repetition.
    ///
    /// # Errors
    /// [`CommandError`]; then nothing was sent. [`CommandError::Gone`] if it was answered already, or the device was removed.
    pub fn sidr_answer(
        &mut self,
        now: Instant,
        request: SidrRequestHandle,
        answer: &SidrAnswer,
    ) -> Result<(), CommandError> {
        self.sidr.answer(&mut self.core, now, request, answer)
    }

    /// Refuses all requests that are unanswered, of whatever service, with status 2.
    pub fn sidr_refuse_all(&mut self, now: Instant) {
        self.sidr.refuse_all(&mut self.core, now);
    }

    /// How many requests are unanswered, those of services that are offered no more included.
    pub fn sidr_requests(&self) -> usize {
        self.sidr.undecided()
    }

    /// The next event of SIDR.
    pub fn poll_sidr_event(&mut self) -> Option<SidrEvent> {
        self.sidr.poll_event()
    }

    /// Requests pending, answers remembered, and the names of both.
    #[cfg(test)]
    pub(in super::super) fn sidr_held(&self) -> [usize; 3] {
        self.sidr.held()
    }

    pub(super) fn handle_sidr_req(
        &mut self,
        now: Instant,
        from: &MadSource,
        tid: TransactionId,
        req: &SidrReq,
    ) {
        self.sidr.handle_req(&mut self.core, now, from, tid, req);
    }

    pub(super) fn handle_sidr_rep(&mut self, now: Instant, from: &MadSource, rep: &SidrRep) {
        self.sidr.handle_rep(&mut self.core, now, from, rep);
    }
}
