//! A reliable connection.

use std::borrow::Cow;
use std::future::poll_fn;
use std::sync::Arc;

use ibdev::{Buf, Status};
use ibwire::{Qpn, ServiceId};
use tokio::task::coop::cooperative;

use crate::closed::{Closed, How};
use crate::disconnect::Disconnect;
use crate::error::{OpCause, OpError, RecvError};
use crate::handshake::{Handshake, poll_slot, wait};
use crate::message::Message;
use crate::parked::Ticket;
use crate::peer::Peer;
use crate::proto::Role;
use crate::shared::Shared;
use crate::slot::{End, Slot, SlotState};
use crate::stats::ConnectionStats;

/// A reliable connection: messages arrive once, in order and whole.
///
/// All methods take `&self`, so one task may send while another receives.
///
/// ```
/// use ibcm::{Connection, Hca, Listener, ServiceId};
/// const SID: ServiceId = ServiceId::new(0x1000_0000_0000_0001);
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (server, client) = (Hca::open("soft").await?, Hca::open("soft").await?);
/// let listener = Listener::bind(SID).device(&server).await?;
/// let echo = tokio::spawn(async move {
///     let conn = listener.accept().await?.accept().await?;
///     while let Some(message) = conn.recv().await? {
///         conn.send(message.into_buf()).await?;
///     }
///     Ok::<_, ibcm::Error>(())
/// });
/// let path = client.path_to(server.gid()).service_id(SID).await?;
/// let conn = Connection::connect(path).await?;
/// conn.send_copy(b"hello").await?;
/// let reply = conn.recv().await?.ok_or("closed before the echo")?;
/// assert_eq!(&reply[..], b"hello");
/// conn.disconnect().await;
/// # Ok(echo.await??)
/// # }
/// ```
///
/// Dropped, it disconnects in the background: the whole DREQ exchange, without waiting for sends that have not
/// completed. Messages that were not read are lost and counted.
#[derive(Debug)]
pub struct Connection {
    shared: Arc<Shared>,
    slot: Arc<Slot>,
    parts: Parts,
}

/// What a connection knows of itself.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) role: Role,
    pub(crate) peer: Peer,
    pub(crate) service_id: ServiceId,
    pub(crate) private_data: Cow<'static, [u8]>,
}

impl Connection {
    pub(crate) fn new(handshake: Handshake, parts: Parts) -> Self {
        let (shared, slot) = handshake.finish();
        Self { shared, slot, parts }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(crate) fn slot(&self) -> &Arc<Slot> {
        &self.slot
    }

    /// The next message; `None` when the peer has disconnected and all that it had sent was read.
    ///
    /// # Errors
    /// [`RecvError`]: the connection broke, or this side has closed it. What came before is given first.
    ///
    /// # Cancel safety
    /// A dropped future loses no message.
    pub async fn recv(&self) -> Result<Option<Message>, RecvError> {
        let mut ticket = Ticket::new(&self.slot.parked);
        let next = poll_fn(|cx| poll_slot(&self.shared, &self.slot, &mut ticket, cx, &mut next_message));
        cooperative(next).await
    }

    /// Posts a buffer of the program's for one message, behind the receives that are posted already: messages take
    /// buffers in the order in which they were posted. The [`Message`] that comes in it gives it back; dropped,
    /// it goes to its own pool, or is freed.
    ///
    /// As many may be posted at once as the connection has receive buffers of its own.
    ///
    /// # Errors
    /// [`OpError`] with the buffer: [`OpCause::Invalid`] if as many are posted, [`OpCause::Device`] with a shared
    /// receive queue, [`OpCause::Closed`] once the connection has ended.
    pub fn post_recv(&self, buf: Buf) -> Result<(), OpError> {
        let result = self.slot.with(&self.shared, |state| match (&state.end, &mut state.queues) {
            (None, Some(queues)) => match queues.broken() {
                None => queues.post_recv(buf),
                Some(status) => Err((OpCause::Status(status), buf)),
            },
            _ => Err((OpCause::Closed, buf)),
        });
        result.map_err(|(cause, buf)| OpError { cause, buf: Some(buf) })
    }

    /// Disconnects: no new sends, then the posted ones complete, then the DREQ exchange. Gives a report and
    /// can't fail; may be repeated, and gives the same report.
    pub fn disconnect(&self) -> Disconnect<'_> {
        Disconnect::new(self)
    }

    /// Waits until the connection has ended, and tells how. It does nothing to end it.
    ///
    /// # Cancel safety
    /// A dropped future has no effect.
    pub async fn closed(&self) -> Closed {
        wait(&self.shared, &self.slot, |state| {
            let broken = state.queues.as_ref().and_then(|queues| queues.broken());
            state.end.as_ref().map(|end| Closed::new(end, broken))
        })
        .await
    }

    /// What the peer's program sent along when the connection was made, zero-padded: 92 bytes of the REQ (56 if
    /// it was addressed by IP) on the passive side, 196 of the REP on the active side.
    pub fn private_data(&self) -> &[u8] {
        &self.parts.private_data
    }

    /// The other end.
    pub fn peer(&self) -> Peer {
        self.parts.peer
    }

    /// Which side this is.
    pub fn role(&self) -> Role {
        self.parts.role
    }

    /// The service that was connected to.
    pub fn service_id(&self) -> ServiceId {
        self.parts.service_id
    }

    /// The number of this side's queue pair; `None` when the connection is over.
    pub fn local_qpn(&self) -> Option<Qpn> {
        self.slot.with(&self.shared, |state| Some(state.queues.as_ref()?.qp()?.qpn()))
    }

    /// What has gone over it so far.
    pub fn stats(&self) -> ConnectionStats {
        self.slot.with(&self.shared, |state| {
            let counters = state.queues.as_mut().map(|queues| {
                queues.drain();
                queues.counters()
            });
            ConnectionStats::from(counters.unwrap_or_default())
        })
    }
}

/// What `recv` gives, if there is anything to give.
fn next_message(state: &mut SlotState) -> Option<Result<Option<Message>, RecvError>> {
    let queues = state.queues.as_mut()?;
    if let Some(arrived) = queues.next_message() {
        queues.repost();
        return Some(Ok(Some(Message::new(arrived.buf, arrived.imm))));
    }
    if let Some(status) = queues.broken() {
        return Some(Err(RecvError::Broken(status)));
    }
    if let Some(end) = &state.end {
        // A message may be in the completion queue until the queue pair is stopped.
        return state.flushed.then(|| ended(end, state.disconnecting));
    }
    queues.repost();
    None
}

fn ended(end: &End, here: bool) -> Result<Option<Message>, RecvError> {
    match end {
        _ if here => Err(RecvError::Closed),
        End::Disconnected(closed) if closed.how == How::ByPeer => Ok(None),
        End::Disconnected(_) | End::Rejected(_) => Err(RecvError::Broken(Status::GENERAL_ERR)),
        End::DeviceRemoved => Err(RecvError::Gone),
        _ => Err(RecvError::Closed),
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let over = self.slot.with(&self.shared, |state| {
            state.disconnecting = true;
            if let Some(queues) = &mut state.queues {
                queues.discard_messages();
            }
            state.end.is_some()
        });
        if over {
            return;
        }
        // A future of `disconnect` that was dropped may have left it anywhere before the DREQ or behind it.
        let _span = self.slot.span.enter();
        tracing::debug!("dropped: disconnecting in the background");
        self.shared.abort(&self.slot);
    }
}
