//! The orderly end of a connection.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use ibwire::PrivateData;
use pin_project::pin_project;
use tracing::Instrument;

use crate::clock::now;
use crate::closed::Closed;
use crate::handshake::{Session, before, closed, wait};
use crate::proto;
use crate::shared::Shared;
use crate::slot::Slot;

/// How to disconnect: a builder that is itself a future and ends in a report.
///
/// Awaited, it refuses new sends, waits until those that are posted have completed, sends a DREQ, repeats it,
/// and waits for the answer. TimeWait passes in the background.
///
/// # Cancel safety
/// Dropped before the DREQ is out, the connection takes no more sends and is not disconnected yet; call it
/// again or drop the connection. Dropped later, the exchange goes on in the background.
#[pin_project(!Unpin)]
#[must_use = "nothing is sent before it is awaited"]
pub struct Disconnect<'a> {
    config: Option<DisconnectConfig<'a>>,
    run: Option<BoxFuture<'a, Closed>>,
}

#[derive(Debug)]
struct DisconnectConfig<'a> {
    session: &'a Session,
    private_data: PrivateData<220>,
    deadline: Duration,
}

impl<'a> Disconnect<'a> {
    pub(crate) fn new(session: &'a Session) -> Self {
        let config =
            DisconnectConfig { session, private_data: PrivateData::EMPTY, deadline: Duration::from_secs(10) };
        Self { config: Some(config), run: None }
    }

    fn set(mut self, f: impl FnOnce(&mut DisconnectConfig<'a>)) -> Self {
        if let Some(config) = &mut self.config {
            f(config);
        }
        self
    }

    /// What goes to the peer's program in the DREQ.
    pub fn private_data(self, data: impl Into<PrivateData<220>>) -> Self {
        self.set(|config| config.private_data = data.into())
    }

    /// How long the posted sends and the peer's answer may take together; then the connection ends without
    /// them. Default 10 s. It ends before that when as many DREQs as the REQ allowed are unanswered
    /// ([`max_cm_retries`](crate::Connect::max_cm_retries)): with [`Retry::backoff`](crate::Retry::backoff) after some nine
    /// seconds over RoCE. [`How::Unconfirmed`](crate::How::Unconfirmed) tells how many there were.
    pub fn deadline(self, deadline: Duration) -> Self {
        self.set(|config| config.deadline = deadline)
    }
}

impl<'a> DisconnectConfig<'a> {
    fn run(self) -> impl Future<Output = Closed> + 'a {
        let (shared, slot) = (Arc::clone(self.session.shared()), Arc::clone(self.session.slot()));
        disconnect(shared, slot, self.private_data, self.deadline)
    }
}

/// Lets no new sends in, waits for those that are posted, and disconnects.
pub(crate) fn disconnect(
    shared: Arc<Shared>,
    slot: Arc<Slot>,
    private_data: PrivateData<220>,
    limit: Duration,
) -> impl Future<Output = Closed> + Send + use<> {
    let span = slot.span.clone();
    let exchange = async move {
        let started = now();
        let deadline = started.checked_add(limit);
        // Whoever still reads is told how it ended, not that this came later.
        slot.with(&shared, |state| state.disconnecting |= state.end.is_none());
        slot.wake_all(&shared);
        // A DREQ travels on QP1 and would overtake what is still in the send queue.
        let drained = wait(&shared, &slot, |state| {
            let sending =
                state.queues.as_ref().is_some_and(|queues| queues.is_sending() && queues.broken().is_none());
            (!sending || state.end.is_some()).then_some(())
        });
        if let Err(waited) = before(started, deadline, drained).await {
            tracing::debug!(?waited, "sends have not completed");
        }
        if slot.with(&shared, |state| state.end.is_none()) {
            shared.disconnect(slot.handle, proto::Disconnect { private_data, deadline });
        }
        closed(&shared, &slot).await
    };
    exchange.instrument(span)
}

impl Future for Disconnect<'_> {
    type Output = Closed;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Closed> {
        let this = self.project();
        crate::builder::poll(this.config, this.run, DisconnectConfig::run, cx)
    }
}

impl std::fmt::Debug for Disconnect<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Disconnect").field("config", &self.config).finish_non_exhaustive()
    }
}
