//! Management packets: over the wires, to the agents of nodes and to managers, and back.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use ibdev::MAD_LEN;
use ibwire::mad::MadStatus;
use ibwire::packet::{Bth, Deth, Grh, Lrh, NextHeader, Opcode, TransportPacket, link_frame};
use ibwire::{FlowLabel, Gid, Lid, PKey, Psn, QKey, Qpn, ServiceLevel};

use super::fabric::{Cargo, Fabric, Owner, PortId};
use super::frame::{self, Content};
use super::management::{Manager, ManagerMad};
use super::node::{Handled, Smp, Step};
use super::trace::Fate;
use super::way::{Hop, Way};

/// The VL of management packets.
const MANAGEMENT_VL: u8 = 15;
/// Most links on a way.
const MOST_HOPS: usize = 64;

impl Fabric {
    pub(super) fn manager_timeout(&mut self, now: Instant, node: usize) {
        self.with_manager(now, node, |manager| manager.handle_timeout(now));
    }

    /// Calls the manager on a switch, sends what it has to send, and notes when it is due.
    fn with_manager(&mut self, now: Instant, node: usize, call: impl FnOnce(&mut dyn Manager)) {
        let Some(manager) = self.managers.get_mut(&node) else { return };
        call(&mut **manager);
        while let Some(out) = self.managers.get_mut(&node).and_then(|manager| manager.poll_transmit(now)) {
            self.send_of_manager(now, node, &out);
        }
        let due = self.managers.get(&node).and_then(|manager| manager.poll_timeout());
        self.set_timer(Owner::Manager(node), due);
    }

    fn send_of_manager(&mut self, now: Instant, node: usize, out: &ManagerMad) {
        let from = PortId { node, port: 0 };
        if out.qp == Qpn::SMI {
            match Smp::parse(&out.mad) {
                Some(smp) => self.send_smp(now, from, out.lid, smp),
                None => self.counters.smp_discarded += 1,
            }
            return;
        }
        let source = self.nodes[node].port(0);
        let own = source.map_or((Lid::NONE, None), |port| (port.info.lid, port.gid(0)));
        let gids = out.gid.zip(own.1);
        let route = gids.map(|(dgid, sgid)| (sgid, dgid));
        let frame =
            datagram(0, (own.0, out.lid), route, out.sl, out.pkey, (Qpn::GSI, out.remote_qp), &out.mad);
        self.send(now, from, frame);
    }

    pub(super) fn agent_timeout(&mut self, now: Instant, node: usize) {
        while let Some((port, to, trap)) = self.nodes[node].poll_trap(now) {
            self.send_smp(now, PortId { node, port }, to, trap);
        }
        self.set_timer(Owner::Agent(node), self.nodes[node].poll_timeout());
    }

    /// Sends a management packet from a node: to a LID, or by the route that it carries if that is permissive.
    fn send_smp(&mut self, now: Instant, from: PortId, to: Lid, smp: Smp) {
        let own = self.nodes[from.node].port(from.port).map_or(Lid::NONE, |port| port.info.lid);
        let slid = if smp.is_directed() { Lid::PERMISSIVE } else { own };
        let sl = ServiceLevel::truncate(0);
        let qps = (Qpn::SMI, Qpn::SMI);
        let frame = datagram(MANAGEMENT_VL, (slid, to), None, sl, PKey::DEFAULT, qps, &smp.to_mad());
        let mut carried = smp;
        let (way, entered) = match self.smp_way(from, to, &mut carried) {
            Ok((to, hops)) => {
                let end = PortId { port: if self.nodes[to.node].is_switch() { 0 } else { to.port }, ..to };
                (Way { to: Some(end), hops, at: now, stopped: None }, to.port)
            }
            Err(fate) => (Way::stopped(now, fate), 0),
        };
        let cargo = Cargo::Smp { smp: Box::new(carried), entered, slid };
        self.send_on(now, from, way, frame, cargo);
    }

    /// The port where a management packet comes in at last.
    pub(super) fn smp_way(&self, from: PortId, to: Lid, smp: &mut Smp) -> Result<(PortId, Arc<[Hop]>), Fate> {
        let mut hops = Vec::new();
        let (mut at, mut entered) = (from, None);
        while hops.len() < MOST_HOPS {
            let node = &self.nodes[at.node];
            let out = if smp.is_directed() {
                match smp.step(entered, node.is_switch()) {
                    Step::Here => return Ok((at, hops.into())),
                    Step::Discard => return Err(Fate::SmpDiscarded),
                    Step::Out(port) => port,
                }
            } else {
                let is_here = |own: u8| own == 0 || own == at.port;
                if node.port_of_lid(to).is_some_and(is_here) {
                    return Ok((at, hops.into()));
                }
                match &node.forwarding {
                    Some(tables) => tables.port(to).ok_or(Fate::NoRoute)?,
                    None if entered.is_none() => from.port,
                    None => return Err(Fate::NoRoute),
                }
            };
            let hop = Hop { out: PortId { node: at.node, port: out }, vl: MANAGEMENT_VL };
            if !self.is_open(&[hop]) {
                return Err(Fate::LinkDown);
            }
            hops.push(hop);
            at = self.peer(hop.out).ok_or(Fate::LinkDown)?;
            entered = Some(at.port);
        }
        Err(Fate::Circling)
    }

    /// A management packet has arrived at a node by a port.
    pub(super) fn deliver_smp(&mut self, now: Instant, node: usize, entered: u8, slid: Lid, smp: Smp) {
        let handled = self.nodes[node].handle_smp(now, entered, smp);
        self.changed(node);
        self.retrain(now);
        let port = if self.nodes[node].is_switch() { 0 } else { entered };
        let from = PortId { node, port };
        match handled {
            Handled::Done => {}
            Handled::Answer(answer) => self.send_smp(now, from, slid, answer),
            Handled::Manager(smp) if self.managers.contains_key(&node) => {
                let mad = ManagerMad {
                    qp: Qpn::SMI,
                    remote_qp: Qpn::SMI,
                    lid: slid,
                    gid: None,
                    sl: ServiceLevel::truncate(0),
                    pkey: PKey::DEFAULT,
                    mad: smp.to_mad(),
                };
                self.with_manager(now, node, |manager| manager.handle_mad(now, &mad));
            }
            Handled::Manager(request) => {
                self.counters.no_agent += 1;
                if !request.header.method.is_response() {
                    self.send_smp(now, from, slid, request.answer(MadStatus::BAD_METHOD_ATTRIBUTE));
                }
            }
        }
    }

    /// A packet has arrived at port 0 of a switch: a MAD for the manager there, or nobody's.
    pub(super) fn deliver_to_switch(&mut self, now: Instant, node: usize, frame: &Bytes) {
        let (net, transport) = match frame::decode(frame) {
            Ok(Content::Transport(net, transport)) => (net, transport),
            Ok(Content::Raw(_)) => {
                self.counters.no_agent += 1;
                return;
            }
            Err(_) => {
                self.counters.damaged += 1;
                return;
            }
        };
        let packet = TransportPacket::parse(&frame[transport]).ok();
        let mad = packet.as_ref().and_then(|packet| {
            let deth = packet.deth().filter(|deth| deth.qkey == QKey::GSI)?;
            Some((packet.bth(), deth.src_qp, <[u8; MAD_LEN]>::try_from(packet.payload()).ok()?))
        });
        match mad.filter(|(bth, ..)| bth.dest_qp == Qpn::GSI && self.managers.contains_key(&node)) {
            Some((bth, ..)) if !self.nodes[node].port(0).is_some_and(|port| port.admits(bth.pkey)) => {
                self.counters.pkey += 1;
            }
            Some((bth, remote_qp, mad)) => {
                let gid = net.route.map(|route| route.sgid);
                let (lid, sl, pkey) = (net.slid, net.sl, bth.pkey);
                let mad = ManagerMad { qp: Qpn::GSI, remote_qp, lid, gid, sl, pkey, mad };
                self.with_manager(now, node, |manager| manager.handle_mad(now, &mad));
            }
            None => self.counters.no_agent += 1,
        }
    }
}

/// A packet with a MAD. `lids` and `qps` are source and destination, as are the GIDs of its GRH.
fn datagram(
    vl: u8,
    lids: (Lid, Lid),
    gids: Option<(Gid, Gid)>,
    sl: ServiceLevel,
    pkey: PKey,
    qps: (Qpn, Qpn),
    mad: &[u8; MAD_LEN],
) -> Bytes {
    let bth = Bth { pkey, ..Bth::new(Opcode::UD_SEND_ONLY, qps.1, Psn::truncate(0)) };
    let qkey = if qps.1 == Qpn::SMI { QKey(0) } else { QKey::GSI };
    let transport = [&bth.to_bytes()[..], &Deth::new(qkey, qps.0).to_bytes(), mad].concat();
    let grh = gids.map(|(sgid, dgid)| Grh {
        traffic_class: 0,
        flow_label: FlowLabel::truncate(0),
        payload_len: 0,
        next_header: Grh::NEXT_BTH,
        hop_limit: 64,
        sgid,
        dgid,
    });
    let lrh = Lrh { vl, sl, next: NextHeader::Bth, dlid: lids.1, words: 0, slid: lids.0, reserved: 0 };
    link_frame(lrh, grh, &transport).into()
}

#[cfg(test)]
mod tests;
