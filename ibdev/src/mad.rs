//! Management datagrams: agents on a port instead of a raw QP1.

use std::fmt;
use std::task::{Context, Poll};

pub use ibwire::mad::MAD_LEN;
use ibwire::mad::{Method, MgmtClass};
use ibwire::{Lid, QKey, Qpn, ServiceLevel};

use crate::{AddressVector, DeviceError, GlobalRoute};

/// What an agent wants to receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AgentSpec {
    /// The port, from 1.
    pub port: u8,
    /// Management class.
    pub class: MgmtClass,
    /// Class version that the agent speaks. MADs of other versions reach it too where the device can tell them
    /// apart by class alone (umad delivers its own version only).
    pub class_version: u8,
    /// Methods of unsolicited MADs for this agent; responses to what it sent always reach it.
    pub methods: &'static [Method],
}

/// Where a MAD goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MadAddr {
    /// The remote port.
    pub av: AddressVector,
    /// Destination QP; [`Qpn::GSI`] unless redirected.
    pub qpn: Qpn,
    /// Q_Key of the destination QP; [`QKey::GSI`] unless redirected.
    pub qkey: QKey,
    /// Index of the P_Key that goes into the BTH.
    pub pkey_index: u16,
}

/// Where a MAD came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MadSource {
    /// The local port that it arrived on, from 1.
    pub port: u8,
    /// Source LID; [`Lid::NONE`] on RoCE.
    pub slid: Lid,
    /// Service level that it came with.
    pub sl: ServiceLevel,
    /// Low bits of the LID that it was sent to.
    pub path_bits: u8,
    /// Source QP.
    pub qpn: Qpn,
    /// Index of the P_Key in the BTH.
    pub pkey_index: u16,
    /// The route back if a GRH came along: `dgid` is the sender, `sgid_index` our GID that it was sent to.
    pub grh: Option<GlobalRoute>,
}

impl MadSource {
    /// The address of the sender: where an answer goes.
    pub const fn reply(&self) -> MadAddr {
        MadAddr {
            av: AddressVector {
                port: self.port,
                dlid: self.slid,
                sl: self.sl,
                path_bits: self.path_bits,
                rate: ibwire::Rate::PORT_CURRENT,
                grh: self.grh,
            },
            qpn: self.qpn,
            qkey: QKey::GSI,
            pkey_index: self.pkey_index,
        }
    }
}

/// A MAD to send.
#[derive(Clone)]
pub struct OutgoingMad {
    /// Where it goes.
    pub to: MadAddr,
    /// Its 256 bytes, header included. umad puts bits of its own into the upper half of the transaction ID unless
    /// the method is a response, and a CM message never is: a peer's transaction ID comes back to it changed.
    pub mad: [u8; MAD_LEN],
}

/// A MAD that arrived.
#[derive(Clone)]
pub struct ReceivedMad {
    /// Where it came from.
    pub from: MadSource,
    /// Its 256 bytes, header included.
    pub mad: [u8; MAD_LEN],
}

// What is in a MAD may be a key, or a program's private data.

impl fmt::Debug for OutgoingMad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutgoingMad").field("to", &self.to).finish_non_exhaustive()
    }
}

impl fmt::Debug for ReceivedMad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReceivedMad").field("from", &self.from).finish_non_exhaustive()
    }
}

/// The right to send and receive MADs of one class on one port. Dropped, the class is free again; what was sent before
/// still goes out.
pub trait MadAgent: fmt::Debug + Send + Sync {
    /// Sends from the front of `batch` while the send window has room; what remains did not fit. Never blocks: where
    /// the system's own call does (umad waits up to a second for an unknown neighbour) the device has a queue, and
    /// the window is its length. MADs to different ports may overtake each other.
    /// A MAD that the network refuses counts as sent and lost: the device counts it.
    ///
    /// # Errors
    /// [`DeviceError::Gone`] when the device is gone; then nothing of the rest will ever be sent.
    fn send(&self, batch: &mut std::collections::VecDeque<OutgoingMad>) -> Result<(), DeviceError>;

    /// Ready when the send window has room again. Wakes the last task that asked.
    fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<Result<(), DeviceError>>;

    /// Appends at most `max` MADs to `out`; pending, and the task is woken, when there is none. Wakes the last
    /// task that asked.
    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        out: &mut Vec<ReceivedMad>,
        max: usize,
    ) -> Poll<Result<(), DeviceError>>;
}
