//! Raw packets that are sent.

use ibdev::{PostError, RawDest, Status};
use ibwire::packet::{Lrh, NextHeader};
use ibwire::raw::{EtherType, Ipv6Header, Rwh, size};
use ibwire::{Lid, Qpn};

use super::super::net::{Destination, NetHeader};
use super::super::post::Work;
use super::super::qp::Qp;
use super::super::sg;
use super::super::shared::Shared;
use super::super::{Engine, Framing};
use super::{Raw, RawFailure};

/// Where a raw packet goes, looked up when it is posted.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct RawAddress {
    net: NetHeader,
    ether_type: Option<EtherType>,
}

/// A packet that goes to other QPs of the port that sends it.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Local {
    lrh: Lrh,
    sender: Qpn,
    /// It is for nobody else.
    only: bool,
}

impl Raw {
    /// Looks up where a packet with a message of `len` bytes goes.
    ///
    /// # Errors
    /// [`PostError::TooLong`] if it does not fit one packet, [`PostError::Limit`] if an IPv6 packet is shorter than its header,
    /// [`PostError::Invalid`] if the port has no way there.
    pub(in super::super) fn address(
        &self,
        number: u8,
        to: &RawDest,
        ether_type: Option<EtherType>,
        len: usize,
        shared: &Shared,
    ) -> Result<RawAddress, PostError> {
        let invalid = |why| PostError::Invalid { why };
        if ether_type.is_some() != (self.next == NextHeader::RawEtherType) {
            return Err(invalid("raw IPv6 and raw EtherType need a queue pair of their own type"));
        }
        let port = shared.port(number).ok_or(invalid("no such port"))?;
        let mtu = port.attr.active_mtu;
        let limit = match self.next {
            NextHeader::RawIpv6 => size::max_ipv6_payload(mtu).map(|len| len + Ipv6Header::LEN),
            _ => size::max_ether_payload(mtu),
        };
        let limit = limit.unwrap_or(0);
        if len > limit {
            return Err(PostError::TooLong { len, limit });
        }
        if self.next == NextHeader::RawIpv6 && len < Ipv6Header::LEN {
            let (what, value) = ("too short for an IPv6 header: bytes", len as u64);
            return Err(PostError::Limit { what, value, limit: Ipv6Header::LEN as u64 });
        }
        if !to.dlid.is_unicast() && !to.dlid.is_multicast() {
            return Err(invalid("the destination LID is neither a port's nor a group's"));
        }
        if to.dlid.is_multicast() && !shared.device.raw_multicast {
            return Err(invalid("raw multicast, which the device does not have"));
        }
        if u32::from(to.path_bits) >= 1 << (port.attr.lmc & 7) {
            return Err(invalid("path bits beyond the port's LMC"));
        }
        let slid = Lid(port.attr.lid.0 | u16::from(to.path_bits));
        if !slid.is_unicast() {
            return Err(invalid("the port has no LID"));
        }
        let net = NetHeader { slid, dlid: to.dlid, sl: to.sl, route: None };
        Ok(RawAddress { net, ether_type })
    }

    pub(in super::super) fn post(&mut self, work: Work, to: RawAddress) {
        self.work.push_back((work, to));
    }

    pub(in super::super) fn pop(&mut self) -> Option<Work> {
        self.work.pop_front().map(|(work, _)| work)
    }

    pub(in super::super) fn can_send(&self) -> bool {
        !self.work.is_empty()
    }
}

impl Qp {
    /// Appends the next raw packet to `out`, from behind the LRH through the padding, returns its length and completes its
    /// work request.
    pub(in super::super) fn poll_raw(&mut self, out: &mut Vec<u8>, shared: &mut Shared) -> Option<usize> {
        let (qpn, port, cq) = (self.qpn, self.port, self.sq.cq);
        let raw = self.raw_mut()?;
        let (work, _) = raw.work.front()?;
        if work.sg.iter().any(|buf| buf.memory_key().is_some()) {
            // Memory that another device has registered.
            self.fail_send_queue(Status::LOC_PROT_ERR, shared);
            return None;
        }
        let (work, to) = raw.work.pop_front()?;
        raw.counters.sent += 1;
        let start = out.len();
        let message = work.message_len();
        let (framing, padding) = match to.ether_type {
            Some(ether_type) => {
                out.extend_from_slice(&Rwh::new(ether_type).to_bytes());
                (Framing::RawEtherType, size::ether_padding(message))
            }
            None => (Framing::RawIpv6, size::ipv6_padding(message)),
        };
        sg::gather(&work.sg, 0..message, out);
        out.resize(out.len() + padding, 0);
        let len = out.len() - start;
        let next = raw.next;
        shared.destination = Destination { port, net: to.net, framing };
        let only = shared.port(port).is_some_and(|port| port.has_lid(to.net.dlid));
        let loops =
            to.net.dlid.is_multicast() && shared.raws.of(qpn).is_some_and(|entry| entry.filter.loopback);
        if only || loops {
            let words = ((Lrh::LEN + len) / 4) as u16;
            let NetHeader { slid, dlid, sl, .. } = to.net;
            let lrh = Lrh { vl: 0, sl, next, dlid, words, slid, reserved: 0 };
            shared.local = Some(Local { lrh, sender: qpn, only });
        }
        if work.is_signaled() && !shared.has_room(cq) {
            // The packet leaves all the same.
            shared.released.extend(work.sg);
            self.fail_raw(RawFailure::Completion, shared);
        } else {
            work.succeed(0, &mut self.sq, shared);
        }
        Some(len)
    }
}

impl Engine {
    /// Gives what was sent last to other QPs of its port, if it is for them. Whether it is for nobody else.
    pub(in super::super) fn loop_raw(&mut self, port: u8, packet: &[u8]) -> bool {
        let Some(Local { lrh, sender, only }) = self.shared.local.take() else { return false };
        self.deliver_raw(port, &lrh, packet, Some(sender));
        only
    }
}
