//! What manages a subnet, as the fabric sees it: datagrams and times in, datagrams out.
//!
//! A manager (a subnet manager, with or without subnet administration) lives on port 0 of a switch. The fabric gives it
//! every MAD that reaches QP0 of that port and is not for the switch's own agent, and every MAD that reaches its QP1;
//! the manager's own SMPs to its switch are answered by the switch's agent like those from elsewhere.

use std::fmt;
use std::time::Instant;

use ibdev::MAD_LEN;
use ibwire::{Gid, Lid, PKey, Qpn, ServiceLevel};

use crate::manager::SubnetManager;

/// A MAD and the other end of its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ManagerMad {
    /// [`Qpn::SMI`] for SMPs, [`Qpn::GSI`] for all others: the manager's own QP.
    pub qp: Qpn,
    /// The other end's QP.
    pub remote_qp: Qpn,
    /// The other end's LID; [`Lid::PERMISSIVE`] for SMPs that go by a directed route alone. Of a MAD that came in its
    /// low bits tell which path it took.
    pub lid: Lid,
    /// The other end's GID, if the packet has a GRH.
    pub gid: Option<Gid>,
    /// Service level; SMPs have none.
    pub sl: ServiceLevel,
    /// The packet's P_Key; SMPs have none.
    pub pkey: PKey,
    /// The MAD.
    pub mad: [u8; MAD_LEN],
}

/// A subnet manager on a node: a state machine that the fabric drives in the order of its one event queue.
///
/// After any call the fabric polls [`poll_transmit`](Self::poll_transmit) until it has nothing more, and then calls
/// [`handle_timeout`](Self::handle_timeout) at the time that [`poll_timeout`](Self::poll_timeout) says.
pub(crate) trait Manager: fmt::Debug + Send {
    /// Takes a MAD that arrived.
    fn handle_mad(&mut self, now: Instant, mad: &ManagerMad);
    /// Does what is due.
    fn handle_timeout(&mut self, now: Instant);
    /// The next MAD to send.
    fn poll_transmit(&mut self, now: Instant) -> Option<ManagerMad>;
    /// When to call [`handle_timeout`](Self::handle_timeout); `None` for never.
    fn poll_timeout(&self) -> Option<Instant>;
    /// The subnet manager that it is.
    fn sm(&self) -> Option<&SubnetManager>;
    /// The same, to be told something. Its timer is due after that.
    fn sm_mut(&mut self) -> Option<&mut SubnetManager>;
}
