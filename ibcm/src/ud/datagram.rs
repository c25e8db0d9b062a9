//! Received datagrams.

use std::fmt;
use std::ops::Deref;

use ibdev::Buf;
use ibwire::packet::GrhArea;

use super::peer::Peer;

/// A datagram that was received. The 40 bytes of its GRH area are not part of it.
///
/// Dropped, its buffer is posted again: who keeps datagrams loses others.
pub struct Datagram {
    buf: Buf,
    imm: Option<u32>,
    from: Peer,
}

impl Datagram {
    /// `buf` has the GRH area in front.
    pub(super) const fn new(buf: Buf, imm: Option<u32>, from: Peer) -> Self {
        Self { buf, imm, from }
    }

    /// Who sent it: the way back, its queue pair, and the Q_Key of the socket that received it, which by convention is the
    /// sender's too.
    pub fn from(&self) -> Peer {
        self.from.clone()
    }

    /// The four bytes that came beside the datagram, as a number in network order.
    pub const fn imm(&self) -> Option<u32> {
        self.imm
    }

    /// The buffer with the datagram alone in it, to change it or send it on. Dropped, it goes where the datagram would have
    /// gone.
    pub fn into_buf(self) -> Buf {
        let mut buf = self.buf;
        buf.copy_within(GrhArea::LEN.., 0);
        let len = buf.len() - GrhArea::LEN;
        buf.resize(len, 0);
        buf
    }
}

impl Deref for Datagram {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buf[GrhArea::LEN..]
    }
}

impl AsRef<[u8]> for Datagram {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Datagram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Datagram")
            .field("len", &self.len())
            .field("imm", &self.imm)
            .field("from", &self.from)
            .finish()
    }
}
