//! Where the messages of a connection are received.

use ibdev::DeviceAttr;

use crate::proto::Invalid;
use crate::shared_recv::SharedRecv;

/// The receive buffers of a connection. They are posted before the peer can know of the connection.
///
/// # Memory
/// Buffers of its own take `count` times `len` bytes, by default 16 times 4 KiB: 64 KiB a connection, 64 MiB for a
/// thousand of them. [`shared`](Self::shared) ones are those of the queue, however many connections use it.
/// Beside them a connection makes buffers of `len` bytes for what it copies
/// ([`send_copy`](crate::Connection::send_copy), atomics; not what is sent in buffers of the program), one for each
/// that is under way at once, up to 64, and keeps them. When a connection ends, its buffers are kept for the next ones of
/// the HCA's same domain, up to 64 MiB.
///
/// # Slow readers
///
/// A peer that sends while no buffer is posted waits and tries again (receiver-not-ready): for ever, as long as its RNR
/// retry count is 7, the default, so a slow reader stalls the peer and never kills the connection. A peer that sends a
/// message longer than the buffer breaks the connection: here [`recv`](crate::Connection::recv) ends in
/// [`RecvError::Broken`](crate::RecvError::Broken) with [`LOC_LEN_ERR`](crate::Status::LOC_LEN_ERR), there the send
/// fails with [`REM_INV_REQ_ERR`](crate::Status::REM_INV_REQ_ERR).
///
/// ```
/// # use ibcm::{Connection, Hca, Listener, Recv, ServiceId};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (hca, sid) = (Hca::open("soft").await?, ServiceId::new(0x1000_0000_0000_0001));
/// # let listener = Listener::bind(sid).device(&hca).await?;
/// # let path = hca.path_to(hca.gid()).service_id(sid).await?;
/// let dialing = tokio::spawn(async move { Connection::connect(path).recv(Recv::buffers(2, 512)).await });
/// let conn = listener.accept().await?.accept().recv(Recv::buffers(64, 8192)).await?;
/// # dialing.await??;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Recv(Source);

/// Where receive buffers come from.
#[derive(Debug, Clone)]
pub(crate) enum Source {
    Own { count: usize, len: usize },
    Shared(SharedRecv),
}

impl Recv {
    /// `count` buffers of `len` bytes. The default is 16 of 4096.
    pub const fn buffers(count: usize, len: usize) -> Self {
        Self(Source::Own { count, len })
    }

    /// The buffers of a queue that many connections share. The connection is in the queue's domain then.
    pub fn shared(queue: &SharedRecv) -> Self {
        Self(Source::Shared(queue.clone()))
    }

    pub(crate) const fn source(&self) -> &Source {
        &self.0
    }

    /// Own buffers: at least one, no more than the device can have posted, none longer than a message.
    pub(crate) fn check(&self, device: &DeviceAttr) -> Result<(), Invalid> {
        let Source::Own { count, len } = self.0 else { return Ok(()) };
        if count == 0 {
            return Err(Invalid::at_least("receive buffers", 0, 1));
        }
        Invalid::at_most("receive buffers", count as u64, device.max_qp_wr)?;
        Invalid::at_most("receive buffer length", len as u64, device.max_message)
    }

    /// Whether messages come from a shared queue.
    pub(crate) const fn is_shared(&self) -> bool {
        matches!(self.0, Source::Shared(_))
    }

    /// Room for a message.
    pub(crate) fn len(&self) -> usize {
        match &self.0 {
            Source::Own { len, .. } => *len,
            Source::Shared(queue) => queue.queue().len(),
        }
    }
}

impl Default for Recv {
    fn default() -> Self {
        Self::buffers(16, 4096)
    }
}
