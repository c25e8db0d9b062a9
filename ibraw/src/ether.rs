//! Binding a socket for packets of an EtherType.

use crate::backend::{Backend, Ether};
use crate::bind::{Bind, Plan};
use crate::link::Inner;
use crate::meta::Vlan;
use crate::net::ether::PacketSocket;
#[cfg(feature = "soft")]
use crate::subnet::socket::SubnetSocket;
use crate::{EtherType, Link, RawError, RawSocket, Ring};

/// A socket for packets of one or more EtherTypes.
pub type RawEtherSocket = RawSocket<Ether>;

/// Binds a [`RawEtherSocket`].
pub type BindEther = Bind<Ether>;

/// Which tagged frames a socket takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum VlanPolicy {
    /// Those without a tag, or with a priority alone.
    #[default]
    Untagged,
    /// All.
    Any,
    /// Those of one VLAN.
    Id(u16),
}

impl VlanPolicy {
    pub(crate) fn takes(self, vlan: Option<Vlan>) -> bool {
        match self {
            Self::Untagged => vlan.is_none_or(|vlan| vlan.id == 0),
            Self::Any => true,
            Self::Id(id) => vlan.is_some_and(|vlan| vlan.id == id),
        }
    }
}

#[allow(unnameable_types)]
#[derive(Debug, Clone, Copy, Default)]
pub struct EtherOptions {
    pub(crate) is_any: bool,
    pub(crate) is_promiscuous: bool,
    pub(crate) accepts_other_host: bool,
    pub(crate) sees_outgoing: bool,
    pub(crate) vlan: VlanPolicy,
    pub(crate) ring: Option<Ring>,
    pub(crate) fanout: Option<(u16, u16)>,
}

impl RawSocket<Ether> {
    /// Binds a socket that receives packets of these EtherTypes.
    ///
    /// With one it is the kernel that sorts out the others; with more, and with a VLAN policy, a filter program in the
    /// kernel looks at every frame of the link.
    ///
    /// # Errors
    /// Of the awaited builder: [`RawError::Permission`] without CAP_NET_RAW; [`RawError::NoFilter`];
    /// [`RawError::EtherTypeNotOnLink`]; [`RawError::FilterConflict`]; [`RawError::LinkGone`]; [`RawError::Io`].
    pub fn bind(link: &Link, ether_types: impl IntoIterator<Item = EtherType>) -> BindEther {
        Bind::new(link, ether_types.into_iter().collect(), open)
    }

    /// Binds a socket that receives packets of every EtherType.
    ///
    /// # Errors
    /// As [`bind`](Self::bind).
    pub fn bind_any(link: &Link) -> BindEther {
        let mut bind = Self::bind(link, []);
        bind.plan.own.is_any = true;
        bind
    }
}

impl Bind<Ether> {
    /// Frames come through a ring of memory that is shared with the kernel, in the place of its queue: see [`Ring`]. Not on a
    /// subnet. Default: by system calls.
    pub fn ring(mut self, ring: Ring) -> Self {
        self.plan.own.ring = Some(ring);
        self
    }

    /// Which tagged frames are received. Default: [`VlanPolicy::Untagged`].
    pub fn vlan(mut self, policy: VlanPolicy) -> Self {
        self.plan.own.vlan = policy;
        self
    }

    /// Frames for other stations that arrive are received. Default: not.
    pub fn accept_other_host(mut self) -> Self {
        self.plan.own.accepts_other_host = true;
        self
    }

    /// The interface takes all frames that pass, and they are received. Default: not.
    pub fn promiscuous(mut self) -> Self {
        self.plan.own.is_promiscuous = true;
        self
    }

    /// Frames that other sockets of this machine send are received. Default: not.
    pub fn see_outgoing(mut self) -> Self {
        self.plan.own.sees_outgoing = true;
        self
    }

    /// Shares what arrives with the other sockets that name the same group: each frame goes to one of them, chosen as
    /// `mode` says (packet(7), `PACKET_FANOUT`): 1 in turn, 2 by processor.
    pub fn fanout(mut self, group: u16, mode: u16) -> Self {
        self.plan.own.fanout = Some((group, mode));
        self
    }
}

fn open(link: &Link, plan: &Plan<Ether>) -> Result<Box<dyn Backend<Ether>>, RawError> {
    if plan.own.is_any && plan.is_exclusive {
        return Err(RawError::Unsupported("a claim to every EtherType"));
    }
    if plan.filter.is_empty() && !plan.own.is_any {
        return Err(RawError::NoFilter);
    }
    if plan.own.ring.is_some() && plan.recv_buffer.is_some() {
        return Err(RawError::Unsupported("a queue beside a ring"));
    }
    if let VlanPolicy::Id(id @ 4096..) = plan.own.vlan {
        return Err(RawError::Invalid { field: "VLAN", value: id.into(), limit: 4095 });
    }
    Ok(match &link.inner {
        Inner::Interface(interface) => Box::new(PacketSocket::bind(interface, plan)?),
        #[cfg(feature = "soft")]
        Inner::Subnet(port) => Box::new(SubnetSocket::bind(port, plan)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_t22_a_priority_alone_is_no_vlan() {
        let tag = |id| Some(Vlan { id, priority: 7, drop_eligible: false });
        let taken = [VlanPolicy::Untagged, VlanPolicy::Any, VlanPolicy::Id(5)]
            .map(|policy| [None, tag(0), tag(5), tag(6)].map(|vlan| policy.takes(vlan)));
        assert_eq!(taken, [[true, true, false, false], [true; 4], [false, false, true, false]]);
    }
}
