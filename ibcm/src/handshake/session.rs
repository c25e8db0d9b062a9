//! A connection, whoever has its queue pair.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ibwire::{PrivateData, ServiceId};

use super::guard::Handshake;
use super::wait::wait;
use crate::closed::Closed;
use crate::disconnect::{Disconnect, disconnect};
use crate::events::ConnectionEvents;
use crate::peer::Peer;
use crate::proto::{Role, Transport};
use crate::shared::Shared;
use crate::slot::Slot;

/// How long sends may take behind a drop that lets them, and the DREQ exchange with them.
const DRAIN_ON_DROP: Duration = Duration::from_secs(10);

/// What happens to sends that have not completed when the connection is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnDrop {
    /// The DREQ goes out at once.
    Abandon,
    /// The DREQ goes out behind them.
    Drain,
}

/// What a connection knows of itself.
pub(crate) struct Parts {
    pub(crate) role: Role,
    pub(crate) transport: Transport,
    pub(crate) peer: Peer,
    pub(crate) service_id: ServiceId,
    pub(crate) private_data: Cow<'static, [u8]>,
}

/// An established connection without its queue pair: that is the program's.
///
/// Dropped, it disconnects in the background: the whole DREQ exchange, re-sends included. Keep the queue pair until
/// [`finish`](Self::finish) is over: then no packet of the connection is alive any more, and its number may be used again.
///
/// The SDK never touches the queue pair. When [`closed`](Self::closed) is over, move it to the error state, which gives back
/// what is posted; when it fails by itself, [`disconnect`](Self::disconnect) tells the peer.
///
/// # A peer that is gone
/// A host that dies sends no DREQ, and all repetitions of one may be lost. Then `closed` waits for ever: there is no
/// keepalive for a queue pair that is not the SDK's. Let an idle queue pair ask from time to time by an RDMA write of no
/// length ([`RcQp::post_probe`](crate::verbs::RcQp::post_probe) is one). When its completion fails the peer is gone, or has
/// ended: [`disconnect`](Self::disconnect), which is over within its deadline, answered or not.
#[must_use = "dropped, it disconnects"]
pub struct Session {
    shared: Arc<Shared>,
    slot: Arc<Slot>,
    parts: Parts,
    on_drop: OnDrop,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Parts { role, transport, peer, service_id, private_data: _ } = &self.parts;
        f.debug_struct("Session")
            .field("hca", &self.shared.name)
            .field("role", role)
            .field("transport", transport)
            .field("peer", peer)
            .field("service_id", service_id)
            .finish_non_exhaustive()
    }
}

impl Session {
    pub(super) fn new(handshake: Handshake, parts: Parts) -> Self {
        let (shared, slot) = handshake.finish();
        Self { shared, slot, parts, on_drop: OnDrop::Abandon }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(crate) fn slot(&self) -> &Arc<Slot> {
        &self.slot
    }

    pub(crate) fn set_on_drop(&mut self, on_drop: OnDrop) {
        self.on_drop = on_drop;
    }

    /// The other end.
    pub fn peer(&self) -> Peer {
        self.parts.peer
    }

    /// Which side this is.
    pub fn role(&self) -> Role {
        self.parts.role
    }

    /// The transport.
    pub fn transport(&self) -> Transport {
        self.parts.transport
    }

    /// The service that was connected to.
    pub fn service_id(&self) -> ServiceId {
        self.parts.service_id
    }

    /// What the peer's program sent along when the connection was made, zero-padded: 92 bytes of the REQ (56 if
    /// it was addressed by IP) on the passive side, 196 of the REP on the active side.
    pub fn private_data(&self) -> &[u8] {
        &self.parts.private_data
    }

    /// What happened to it, and happens, besides its end.
    pub fn events(&self) -> ConnectionEvents {
        ConnectionEvents::new(&self.slot.events)
    }

    /// Waits until the connection has ended, and tells how. It does nothing to end it.
    ///
    /// # Cancel safety
    /// A dropped future has no effect.
    pub async fn closed(&self) -> Closed {
        closed(&self.shared, &self.slot).await
    }

    /// Disconnects: the DREQ exchange. What is in the program's send queue may be lost: a DREQ travels on another queue pair.
    /// Gives a report and can't fail; may be repeated, and gives the same report.
    pub fn disconnect(&self) -> Disconnect<'_> {
        Disconnect::new(self)
    }

    /// Disconnects, unless that has happened, and waits until TimeWait is over: from here on the queue pair's number may be
    /// used again.
    ///
    /// # Cancel safety
    /// Dropped, the same happens in the background, and nobody is told when it is over.
    pub async fn finish(self) -> Closed {
        let closed = self.disconnect().await;
        wait(&self.shared, &self.slot, |state| state.released.then_some(())).await;
        closed
    }
}

/// Waits until a connection has ended, and tells how.
pub(crate) async fn closed(shared: &Arc<Shared>, slot: &Arc<Slot>) -> Closed {
    wait(shared, slot, |state| {
        let broken = state.queues.as_ref().and_then(|queues| queues.broken());
        state.end.as_ref().map(|end| Closed::new(end, broken))
    })
    .await
}

impl Drop for Session {
    fn drop(&mut self) {
        let (over, drains) = self.slot.with(&self.shared, |state| {
            let first = !std::mem::replace(&mut state.disconnecting, true);
            let sending = state.queues.as_mut().is_some_and(|queues| {
                queues.discard_messages();
                queues.is_sending() && queues.broken().is_none()
            });
            (state.end.is_some(), first && sending && self.on_drop == OnDrop::Drain)
        });
        if over {
            return;
        }
        let _span = self.slot.span.enter();
        if drains {
            tracing::debug!("dropped: sends complete and then it disconnects, in the background");
            let draining = disconnect(
                Arc::clone(&self.shared),
                Arc::clone(&self.slot),
                PrivateData::EMPTY,
                DRAIN_ON_DROP,
            );
            self.shared.begin(async move {
                draining.await;
            });
            return;
        }
        // A future of `disconnect` that was dropped may have left it anywhere before the DREQ or behind it.
        tracing::debug!("dropped: disconnecting in the background");
        self.shared.abort(&self.slot);
    }
}
