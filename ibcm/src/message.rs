//! Received messages and the buffers for them.

use std::fmt;
use std::ops::Deref;

use ibdev::{Buf, DeviceAttr};

use crate::proto::Invalid;

/// The receive buffers of a connection. They are posted before the peer can know of the connection.
///
/// Their memory is `count` times `len` bytes. A peer that sends while none is posted waits (RNR) and tries
/// again; one that sends a longer message breaks the connection.
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recv {
    count: usize,
    len: usize,
}

impl Recv {
    /// `count` buffers of `len` bytes. The default is 16 of 4096.
    pub const fn buffers(count: usize, len: usize) -> Self {
        Self { count, len }
    }

    /// At least one buffer, no more than the device can have posted, none longer than a message.
    pub(crate) fn check(&self, device: &DeviceAttr) -> Result<(), Invalid> {
        if self.count == 0 {
            return Err(Invalid::at_least("receive buffers", 0, 1));
        }
        Invalid::at_most("receive buffers", self.count as u64, device.max_qp_wr)?;
        Invalid::at_most("receive buffer length", self.len as u64, device.max_message)
    }

    pub(crate) const fn count(&self) -> u32 {
        self.count as u32
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }
}

impl Default for Recv {
    fn default() -> Self {
        Self::buffers(16, 4096)
    }
}

/// A message that was received.
///
/// Dropped, its buffer is posted again for the next message: who keeps messages makes the peer wait.
pub struct Message {
    buf: Buf,
    imm: Option<u32>,
}

impl Message {
    pub(crate) const fn new(buf: Buf, imm: Option<u32>) -> Self {
        Self { buf, imm }
    }

    /// The four bytes that came beside the message, as a number in network order.
    pub const fn imm(&self) -> Option<u32> {
        self.imm
    }

    /// The buffer, to change it or send it on. It is posted for receiving again when it is dropped, wherever
    /// that happens.
    pub fn into_buf(self) -> Buf {
        self.buf
    }
}

impl Deref for Message {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buf
    }
}

impl AsRef<[u8]> for Message {
    fn as_ref(&self) -> &[u8] {
        &self.buf
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message").field("len", &self.buf.len()).field("imm", &self.imm).finish()
    }
}
