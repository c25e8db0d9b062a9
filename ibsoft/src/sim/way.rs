//! The way of a packet through the switches: by their forwarding tables, over links that have an MTU and a rate, past
//! ports that enforce P_Keys.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ibsa::record::{Offender, PortState};
use ibwire::packet::{Bth, Grh, Lrh, NextHeader, TransportPacket};
use ibwire::{Lid, PKey, Qpn, Rate};

use super::fabric::{Fabric, PortId};
use super::node::ports_of;
use super::trace::Fate;

/// The addresses of a packet that a switch did not let through, and its P_Key.
pub(super) fn offender(frame: &[u8]) -> Option<(PKey, Offender)> {
    let lrh = Lrh::parse(frame).ok()?;
    let rest = frame.get(Lrh::LEN..)?;
    let (grh, transport) = match lrh.next {
        NextHeader::Grh => (Grh::parse(rest).ok(), rest.get(Grh::LEN..)?),
        _ => (None, rest),
    };
    let bth = Bth::parse(transport).ok()?;
    let packet = TransportPacket::parse(transport).ok();
    let source_qp = packet.and_then(|packet| packet.deth()).map_or(Qpn::SMI, |deth| deth.src_qp);
    let (sgid, dgid) = grh.map_or_else(Default::default, |grh| (grh.sgid, grh.dgid));
    let (slid, dlid, sl, destination_qp) = (lrh.slid, lrh.dlid, lrh.sl, bth.dest_qp);
    Some((bth.pkey, Offender { slid, dlid, sl, source_qp, destination_qp, sgid, dgid }))
}

/// What switches look at in a packet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Label {
    pub dlid: Lid,
    sl: u8,
    /// Bytes from the LRH through the ICRC.
    bytes: usize,
    /// `None` for raw packets, which have none.
    pkey: Option<PKey>,
}

impl Label {
    /// `None` for what has no LRH.
    pub(super) fn of(frame: &[u8]) -> Option<Self> {
        let lrh = Lrh::parse(frame).ok()?;
        let bth = match lrh.next {
            NextHeader::Bth => Some(Lrh::LEN),
            NextHeader::Grh => Some(Lrh::LEN + Grh::LEN),
            _ => None,
        };
        let pkey = bth.and_then(|at| Bth::parse(frame.get(at..)?).ok()).map(|bth| bth.pkey);
        Some(Self { dlid: lrh.dlid, sl: lrh.sl.get(), bytes: usize::from(lrh.words) * 4, pkey })
    }
}

/// A port that a packet leaves by, and the VL that it does so on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hop {
    pub out: PortId,
    pub vl: u8,
}

/// Where a copy of a packet gets, and how.
#[derive(Debug, Clone)]
pub(super) struct Way {
    /// The port where it arrives, or was stopped if that is known.
    pub to: Option<PortId>,
    pub hops: Arc<[Hop]>,
    /// When it has passed all links.
    pub at: Instant,
    /// Why it gets no further.
    pub stopped: Option<Fate>,
}

impl Way {
    /// No way.
    pub(super) fn stopped(at: Instant, fate: Fate) -> Self {
        Self { to: None, hops: Arc::new([]), at, stopped: Some(fate) }
    }
}

/// A copy that is about to leave a node.
struct Leaving {
    out: PortId,
    /// The port by which it came in; 0 where it began.
    entered: u8,
    at: Instant,
    hops: Vec<Hop>,
}

/// Most links on a way: what goes on longer goes round in circles.
const MOST_HOPS: usize = 64;
/// Most copies of a packet.
const MOST_COPIES: usize = 1 << 16;
/// Headers and ICRC of a packet with a full payload at most (spec/raw.md 2).
const MOST_HEADERS: usize = 124;
/// From this code on a packet may wait for ever.
const HOQ_INFINITE: u8 = 20;

impl Fabric {
    /// The ways of a packet that leaves a port now. Wires are taken for the time that it needs.
    pub(super) fn ways(&mut self, now: Instant, from: PortId, label: Label) -> Vec<Way> {
        let mut ways = Vec::with_capacity(1);
        let own = self.nodes[from.node].port(from.port);
        // An HCA takes what is for itself by itself.
        let is_own = own.is_some_and(|port| port.has_lid(label.dlid));
        if is_own || self.is_member(from, label.dlid) {
            let stopped = own.is_none_or(|port| !port.is_active()).then_some(Fate::LinkDown);
            ways.push(Way { to: Some(from), hops: Arc::new([]), at: now, stopped });
        }
        if is_own {
            return ways;
        }
        let mut leaving = Vec::new();
        if self.nodes[from.node].is_switch() {
            self.fan_out(from, now, Vec::new(), label, &mut leaving, &mut ways);
        } else {
            leaving.push(Leaving { out: from, entered: 0, at: now, hops: Vec::new() });
        }
        while let Some(Leaving { out, entered, mut at, mut hops }) = leaving.pop() {
            let passed = match ways.len() + leaving.len() < MOST_COPIES {
                true => self.pass(out, entered, &mut at, &mut hops, label),
                false => Err(Fate::Circling),
            };
            match passed {
                Err(Fate::PKey) => {
                    // It has left by the port if that let it out.
                    let is_out = hops.last().is_some_and(|hop| hop.out == out);
                    let to = if is_out { self.peer(out) } else { Some(out) };
                    ways.push(Way { to, ..Way::stopped(at, Fate::PKey) });
                }
                Err(fate) => ways.push(Way::stopped(at, fate)),
                Ok(to) if self.nodes[to.node].is_switch() => {
                    self.fan_out(to, at, hops, label, &mut leaving, &mut ways);
                }
                Ok(to) => ways.push(Way { to: Some(to), hops: hops.into(), at, stopped: None }),
            }
        }
        if ways.is_empty() {
            // A group without members.
            ways.push(Way::stopped(now, Fate::NoRoute));
        }
        ways
    }

    /// What a switch does with a packet that came in by a port, 0 for one of its own.
    fn fan_out(
        &self,
        entered: PortId,
        at: Instant,
        hops: Vec<Hop>,
        label: Label,
        leaving: &mut Vec<Leaving>,
        ways: &mut Vec<Way>,
    ) {
        let PortId { node, port: entered } = entered;
        let Some(tables) = &self.nodes[node].forwarding else { return };
        let leave = |port, hops| Leaving { out: PortId { node, port }, entered, at, hops };
        if label.dlid.is_multicast() {
            match tables.ports(label.dlid) {
                // Never back where it came from.
                Some(mask) => {
                    let first = leaving.len();
                    let others = ports_of(mask).filter(|port| *port != entered && *port != 0);
                    leaving.extend(others.map(|port| leave(port, hops.clone())));
                    leaving[first..].reverse();
                }
                None => ways.push(Way::stopped(at, Fate::NoRoute)),
            }
            return;
        }
        match tables.port(label.dlid) {
            Some(0) => {
                let to = Some(PortId { node, port: 0 });
                ways.push(Way { to, hops: hops.into(), at, stopped: None });
            }
            Some(port) => leaving.push(leave(port, hops)),
            None => ways.push(Way::stopped(at, Fate::NoRoute)),
        }
    }

    /// Lets a packet out by a port and in by the other end of its link.
    fn pass(
        &mut self,
        out: PortId,
        entered: u8,
        at: &mut Instant,
        hops: &mut Vec<Hop>,
        label: Label,
    ) -> Result<PortId, Fate> {
        if hops.len() >= MOST_HOPS {
            return Err(Fate::Circling);
        }
        let is_switch = self.nodes[out.node].is_switch();
        let port = self.nodes[out.node].port(out.port).ok_or(Fate::NoRoute)?;
        if !port.is_active() {
            return Err(Fate::LinkDown);
        }
        let vl = port.vl(entered, label.sl);
        if vl >= port.data_vls() {
            return Err(Fate::NoVl);
        }
        let mtu = port.info.neighbor_mtu.bytes().unwrap_or(256) as usize;
        if label.bytes > mtu + MOST_HEADERS {
            return Err(Fate::TooLong);
        }
        if is_switch {
            let info = &port.info;
            let lets = |pkey| !info.partition_enforcement_outbound || port.admits(pkey);
            check(lets, info.filter_raw_outbound, label)?;
        }
        if self.timed {
            let (rate, hoq_life) = (port.rate, port.info.hoq_life);
            let wire = &mut self.busy[out.node][usize::from(out.port)];
            let start = (*at).max(wire.unwrap_or(*at));
            if hoq_life.get() < HOQ_INFINITE && start - *at > hoq_life.duration() {
                return Err(Fate::HoqLife);
            }
            *at = start + time_on_wire(label.bytes, rate);
            *wire = Some(*at);
        }
        hops.push(Hop { out, vl });
        let entered = self.peer(out).ok_or(Fate::LinkDown)?;
        let node = &mut self.nodes[entered.node];
        if node.port(entered.port).is_some_and(|port| port.info.port_state == PortState::ARMED) {
            node.activate_armed(entered.port);
            self.changed(entered.node);
        }
        let node = &self.nodes[entered.node];
        let port = node.port(entered.port).filter(|port| port.is_active()).ok_or(Fate::LinkDown)?;
        if node.is_switch() {
            let lets = |pkey| !port.info.partition_enforcement_inbound || port.grants(pkey);
            check(lets, port.info.filter_raw_inbound, label)?;
        }
        Ok(entered)
    }

    /// Whether what has left by these ports still arrives.
    pub(super) fn is_open(&self, hops: &[Hop]) -> bool {
        let is_up = |id: PortId| {
            self.nodes[id.node].port(id.port).is_some_and(|port| port.info.port_state != PortState::DOWN)
        };
        hops.iter().all(|hop| is_up(hop.out) && self.peer(hop.out).is_some_and(is_up))
    }

    /// The ports by which packets from a port to a LID leave, as far as there is a way.
    pub(super) fn route(&self, from: PortId, dlid: Lid) -> Vec<PortId> {
        let mut outs = Vec::new();
        let mut out = from;
        while outs.len() < MOST_HOPS {
            outs.push(out);
            let next = self.peer(out).and_then(|entered| {
                let port = self.nodes[entered.node].forwarding.as_ref()?.port(dlid)?;
                (port != 0).then_some(PortId { node: entered.node, port })
            });
            match next {
                Some(next) => out = next,
                None => break,
            }
        }
        outs
    }
}

/// What a port of a switch lets through.
fn check(lets: impl Fn(PKey) -> bool, filters: bool, label: Label) -> Result<(), Fate> {
    match label.pkey {
        Some(pkey) if !lets(pkey) => Err(Fate::PKey),
        None if filters => Err(Fate::RawFiltered),
        _ => Ok(()),
    }
}

/// How long a packet takes to pass a link.
fn time_on_wire(bytes: usize, rate: Rate) -> Duration {
    let mbps = u64::from(rate.mbps().unwrap_or(2_500));
    Duration::from_nanos((bytes as u64 * 8 * 1_000).div_ceil(mbps))
}

#[cfg(test)]
mod tests;
