//! Received messages.

use std::fmt;
use std::ops::Deref;

use ibdev::Buf;

/// A message that was received.
///
/// A peer's write with immediate data arrives as one too, in order with what was sent: with [`imm`](Self::imm) and an
/// empty body, because the data lies in the region.
///
/// Dropped, its buffer is posted again for the next message: who keeps messages makes the peer wait. A buffer of
/// [`Connection::post_recv`](crate::Connection::post_recv) goes to its own pool instead.
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

    /// The buffer, to change it or send it on. Dropped, it goes where the message would have gone.
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
