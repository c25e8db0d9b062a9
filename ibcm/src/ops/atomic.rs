//! Atomics on the peer's memory.

use ibdev::RemoteRegion;
use pin_project::pin_project;

use super::op::Op;
use super::operation;
use crate::connection::Connection;
use crate::data::Request;
use crate::established::Established;

/// An atomic: a builder that is itself the future of its completion, and gives the value that was there before.
///
/// # Cancel safety
/// As [`SendOp`](crate::SendOp): dropped before it has its place in the send queue, nothing happened; later, it goes
/// on by itself.
#[pin_project(!Unpin)]
#[must_use = "nothing is changed before it is awaited"]
pub struct AtomicOp<'a> {
    op: Op<'a, u64>,
}

/// The place for the value before it.
const WORD: &[u8] = &[0; 8];

impl Connection {
    /// Adds to the 64-bit word at the front of the peer's memory `at`, modulo 2^64. Awaited, it gives the value before
    /// it. The word is in the byte order of the peer's machine; the peer looks at it with
    /// [`Region::atomic`](crate::Region::atomic).
    ///
    /// ```
    /// # use std::sync::atomic::Ordering;
    /// # use ibcm::{Access, Connection, Hca, Listener, RemoteRegion, ServiceId};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (hca, sid) = (Hca::open("soft").await?, ServiceId::new(0x1000_0000_0000_0001));
    /// # let listener = Listener::bind(sid).device(&hca).await?;
    /// # let path = hca.path_to(hca.gid()).service_id(sid).await?;
    /// # let region = hca.expose(8, Access::REMOTE_ATOMIC).await?;
    /// # let advert = region.remote().to_bytes();
    /// # let accepting = async { Ok::<_, ibcm::Error>(listener.accept().await?.accept().private_data(&advert).await?) };
    /// # let dialing = async { Ok(Connection::connect(path).await?) };
    /// # let (conn, _peer) = tokio::try_join!(dialing, accepting)?;
    /// let counter = RemoteRegion::from_bytes(conn.private_data())?;
    /// assert_eq!(conn.fetch_add(counter, 5).await?, 0);
    /// assert_eq!(conn.fetch_add(counter, 1).await?, 5);
    /// assert_eq!(conn.compare_swap(counter, 6, 100).await?, 6);
    /// # assert_eq!(region.atomic(0)?.load(Ordering::Relaxed), 100);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`OpError`](crate::OpError). [`OpCause::Invalid`](crate::OpCause::Invalid) if `at` is shorter than 8 bytes or
    /// its address no multiple of 8, or if the peer serves no reads and atomics;
    /// [`OpCause::Device`](crate::OpCause::Device) if this device has no atomics: nothing was posted.
    /// [`OpCause::Status`](crate::OpCause::Status) [`REM_ACCESS_ERR`](crate::Status::REM_ACCESS_ERR) if the peer does not
    /// expose that memory for atomics: the connection is broken.
    ///
    /// # Cancel safety
    /// Dropped before it has its place in the send queue, nothing happened. Later, it is carried out all the same,
    /// its value is lost, and a failure ends the connection.
    pub fn fetch_add(&self, at: RemoteRegion, add: u64) -> AtomicOp<'_> {
        AtomicOp::fetch_add(self.held(), at, add)
    }

    /// Replaces the 64-bit word at the front of the peer's memory `at` by `swap` if it is `compare`. Awaited, it gives
    /// the value before: it was replaced if that is `compare`.
    ///
    /// # Errors
    /// As [`fetch_add`](Self::fetch_add).
    ///
    /// # Cancel safety
    /// As [`fetch_add`](Self::fetch_add).
    pub fn compare_swap(&self, at: RemoteRegion, compare: u64, swap: u64) -> AtomicOp<'_> {
        AtomicOp::compare_swap(self.held(), at, compare, swap)
    }
}

impl<'a> AtomicOp<'a> {
    pub(crate) fn fetch_add(conn: &'a Established, at: RemoteRegion, add: u64) -> Self {
        Self::new(conn, Request::fetch_add(&at, add))
    }

    pub(crate) fn compare_swap(conn: &'a Established, at: RemoteRegion, compare: u64, swap: u64) -> Self {
        Self::new(conn, Request::compare_swap(&at, compare, swap))
    }

    fn new(conn: &'a Established, request: Request) -> Self {
        Self { op: Op::with_copy(conn, request, WORD, |done| Some(done.value)) }
    }
}

operation!(['a] AtomicOp<'a> => u64);
