//! A transport packet as a whole: BTH, extended headers, payload, padding.

use super::{Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Ieth, ImmDt, Opcode, Reth};

/// Why bytes are not a transport packet. To be dropped and counted, each cause on its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum PacketError {
    /// The packet ends before its headers and padding do.
    #[error("packet of {have} bytes, its headers and padding need {need}")]
    TooShort {
        /// What BTH, extended headers and padding need, in bytes.
        need: usize,
        /// How many bytes there are.
        have: usize,
    },
    /// Which headers the packet has is not known.
    #[error("unknown {0}")]
    UnknownOpcode(Opcode),
    /// Another version of the transport header.
    #[error("transport header version {0}")]
    BadVersion(u8),
}

/// A view of a packet from the BTH through the padding, its lengths checked once.
///
/// ```
/// use ibwire::packet::{Opcode, TransportPacket};
/// // RC SEND_ONLY of seven bytes, so with one byte of padding.
/// let bytes = [0x04, 0x90, 0xff, 0xff, 0, 0, 0, 0x11, 0x80, 0x11, 0x11, 0x17, 0, 1, 2, 3, 4, 5, 6, 0];
/// let packet = TransportPacket::parse(&bytes)?;
/// assert_eq!(packet.bth().opcode, Opcode::RC_SEND_ONLY);
/// assert_eq!(packet.payload(), [0, 1, 2, 3, 4, 5, 6]);
/// assert_eq!(packet.deth(), None);
/// # Ok::<(), ibwire::packet::PacketError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransportPacket<'a> {
    bth: Bth,
    extended: &'a [u8],
    payload: &'a [u8],
    padding: &'a [u8],
}

impl<'a> TransportPacket<'a> {
    /// Checks `bytes`: a packet from the BTH through the padding, without the ICRC.
    ///
    /// The pad count is believed as it stands, whatever the length of the payload is (spec/softhca.md 1.7).
    ///
    /// # Errors
    /// [`PacketError`], in the order: too short for a BTH, opcode, too short for its headers, version.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, PacketError> {
        let too_short = |need| PacketError::TooShort { need, have: bytes.len() };
        let bth = Bth::parse(bytes).map_err(|_| too_short(Bth::LEN))?;
        if !bth.opcode.is_known() {
            return Err(PacketError::UnknownOpcode(bth.opcode));
        }
        let headers = Bth::LEN + bth.opcode.headers_len();
        let pad = usize::from(bth.pad);
        let end =
            bytes.len().checked_sub(pad).filter(|&end| end >= headers).ok_or(too_short(headers + pad))?;
        if bth.version != 0 {
            return Err(PacketError::BadVersion(bth.version));
        }
        Ok(Self {
            bth,
            extended: &bytes[Bth::LEN..headers],
            payload: &bytes[headers..end],
            padding: &bytes[end..],
        })
    }

    /// The base transport header.
    #[inline]
    pub fn bth(&self) -> &Bth {
        &self.bth
    }

    /// The payload without its padding.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// The padding, as many bytes as the pad count says. Senders write zeros; nobody has to.
    #[inline]
    pub fn padding(&self) -> &'a [u8] {
        self.padding
    }

    /// The DETH, if the opcode has one.
    #[inline]
    pub fn deth(&self) -> Option<Deth> {
        self.bth.opcode.has_deth().then(|| Deth::parse(self.extended).ok())?
    }

    /// The RETH, if the opcode has one.
    #[inline]
    pub fn reth(&self) -> Option<Reth> {
        self.bth.opcode.has_reth().then(|| Reth::parse(self.extended).ok())?
    }

    /// The AtomicETH, if the opcode has one.
    #[inline]
    pub fn atomic_eth(&self) -> Option<AtomicEth> {
        self.bth.opcode.has_atomic_eth().then(|| AtomicEth::parse(self.extended).ok())?
    }

    /// The AETH, if the opcode has one.
    #[inline]
    pub fn aeth(&self) -> Option<Aeth> {
        self.bth.opcode.has_aeth().then(|| Aeth::parse(self.extended).ok())?
    }

    /// The AtomicAckETH, if the opcode has one.
    #[inline]
    pub fn atomic_ack(&self) -> Option<AtomicAckEth> {
        self.bth.opcode.has_atomic_ack().then(|| AtomicAckEth::parse(&self.extended[Aeth::LEN..]).ok())?
    }

    /// The immediate data, if the opcode has some. It stands behind all other headers.
    #[inline]
    pub fn immdt(&self) -> Option<ImmDt> {
        let at = self.extended.len().checked_sub(ImmDt::LEN)?;
        self.bth.opcode.has_immdt().then(|| ImmDt::parse(&self.extended[at..]).ok())?
    }

    /// The IETH, if the opcode has one.
    #[inline]
    pub fn ieth(&self) -> Option<Ieth> {
        self.bth.opcode.has_ieth().then(|| Ieth::parse(self.extended).ok())?
    }
}
