//! A request that arrived and waits for a decision.

use std::sync::Arc;

use ibwire::{RejReason, ServiceId};
use tracing::Span;

use crate::accept::Accept;
use crate::backlog::{Place, Taken};
use crate::clock::now;
use crate::peer::Peer;
use crate::proto::message::{IpHeader, Req};
use crate::proto::{Reject, Request, Transport};
use crate::shared::Shared;
use crate::slot::{End, Slot};

/// A request in a listener's backlog.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) slot: Arc<Slot>,
    pub(crate) request: Box<Request>,
}

impl Waiting {
    /// Whether its peer still waits for an answer.
    pub(crate) fn is_undecided(&self, shared: &Shared) -> bool {
        self.slot.with(shared, |state| state.end.is_none())
    }

    /// Answers with a REJ. A peer that has withdrawn needs none; then it is false.
    pub(crate) fn reject(self, shared: &Arc<Shared>, reject: Reject) -> bool {
        let _span = self.slot.span.enter();
        tracing::debug!(reason = %reject.reason, "rejected");
        let result = shared.command(|engine| engine.endpoint.reject(now(), self.slot.handle, reject));
        if let Err(error) = result {
            tracing::debug!(%error, "no rejection sent");
        }
        self.slot.end(shared, if result.is_ok() { End::Closed } else { End::Withdrawn });
        result.is_ok()
    }

    /// Forgets the request. False if its peer has withdrawn.
    fn ignore(self, shared: &Arc<Shared>) -> bool {
        let _span = self.slot.span.enter();
        tracing::debug!("ignored");
        let forgotten = shared.command(|engine| engine.endpoint.ignore(now(), self.slot.handle)).is_ok();
        self.slot.end(shared, End::Closed);
        forgotten
    }
}

/// A peer's request for a connection.
///
/// It is answered by moving it: [`accept`](Self::accept), [`reject`](Self::reject) or [`ignore`](Self::ignore).
/// Dropped, it is rejected with reason 28. While it is undecided the peer is kept patient by MRAs.
///
/// ```
/// # use ibcm::{ConnectError, Connection, Hca, Listener, RejReason, Reject, ServiceId};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (hca, sid) = (Hca::open("soft").await?, ServiceId::new(0x1000_0000_0000_0001));
/// # let listener = Listener::bind(sid).device(&hca).await?;
/// # let path = hca.path_to(hca.gid()).service_id(sid).await?;
/// # let dialing = tokio::spawn(async move { Connection::connect(path).private_data(b"v1").await });
/// let request = listener.accept().await?;
/// assert_eq!(&request.private_data()[..2], b"v1");
/// request.reject(Reject::new(RejReason::CONSUMER).private_data(b"v2 is needed"));
/// # let Err(ConnectError::Rejected(no)) = dialing.await? else { return Err("not rejected".into()) };
/// assert_eq!(no.private_data.trimmed(), b"v2 is needed");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "dropped, the request is rejected"]
pub struct IncomingRequest {
    shared: Arc<Shared>,
    /// `None` once it is answered.
    held: Option<(Waiting, Place)>,
    peer: Peer,
    service_id: ServiceId,
    ip: Option<IpHeader>,
}

/// A request in parts.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) shared: Arc<Shared>,
    pub(crate) waiting: Waiting,
    pub(crate) place: Place,
    pub(crate) peer: Peer,
    /// It came to an IP address.
    pub(crate) by_ip: bool,
}

impl IncomingRequest {
    pub(crate) fn new(shared: Arc<Shared>, Taken { waiting, ip, place }: Taken) -> Self {
        let (peer, service_id) = (Peer::of_request(&waiting.request), waiting.request.req.service_id);
        Self { shared, held: Some((waiting, place)), peer, service_id, ip }
    }

    fn waiting(&self) -> &Waiting {
        let (waiting, _) = self.held.as_ref().expect("it is answered only by moving it");
        waiting
    }

    /// What the peer's program sent along, zero-padded: 92 bytes, or the 56 behind the IP header of a request
    /// that is addressed by IP.
    pub fn private_data(&self) -> &[u8] {
        let area = self.req().private_data.as_bytes();
        match self.ip {
            Some(_) => &area[IpHeader::LEN..],
            None => area,
        }
    }

    /// The whole request as it came.
    pub fn req(&self) -> &Req {
        &self.waiting().request.req
    }

    /// Who asks.
    pub fn peer(&self) -> Peer {
        self.peer
    }

    /// The service ID that it asks for.
    pub fn service_id(&self) -> ServiceId {
        self.service_id
    }

    /// The transport that it asks for, one of those that the listener takes ([`Bind::transport`](crate::Bind::transport)).
    pub fn transport(&self) -> Transport {
        self.waiting().request.transport
    }

    /// The IP addresses and ports of a request that came to [`Listener::bind_ip`](crate::Listener::bind_ip).
    pub fn ip(&self) -> Option<&IpHeader> {
        self.ip.as_ref()
    }

    /// Accepts: a REP goes out, and the connection is there when the RTU or the peer's first data has come.
    pub fn accept(self) -> Accept {
        Accept::new(self)
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(crate) fn span(&self) -> &Span {
        &self.waiting().slot.span
    }

    /// Its parts. What it is answered with is another's affair from here on.
    pub(crate) fn into_parts(mut self) -> Parts {
        let (waiting, place) = self.held.take().expect("it is answered only by moving it");
        let (shared, peer, by_ip) = (Arc::clone(&self.shared), self.peer, self.ip.is_some());
        Parts { shared, waiting, place, peer, by_ip }
    }

    /// Rejects. The same REJ meets the peer's repetitions for a while. A peer that has withdrawn meanwhile is
    /// told nothing.
    pub fn reject(mut self, reject: impl Into<Reject>) {
        if let Some((waiting, _place)) = self.held.take() {
            waiting.reject(&self.shared, reject.into());
        }
    }

    /// Answers nothing, as if the request had never come. Its peer repeats it, and then it is a new request.
    pub fn ignore(mut self) {
        if let Some((waiting, place)) = self.held.take() {
            match waiting.ignore(&self.shared) {
                true => place.ignored(),
                false => place.withdrawn(),
            }
        }
    }
}

impl Drop for IncomingRequest {
    fn drop(&mut self) {
        if let Some((waiting, _place)) = self.held.take() {
            waiting.reject(&self.shared, Reject::new(RejReason::CONSUMER));
        }
    }
}
