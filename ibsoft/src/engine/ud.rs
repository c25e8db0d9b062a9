//! Datagram QPs (spec/softhca.md 3.2, 1.15).

use std::collections::VecDeque;

use ibdev::{CompletionOp, DatagramDest, DatagramSource, PostError, RecvWr, SendFlags, Status};
use ibwire::packet::{Bth, Deth, GrhArea, ImmDt, Opcode};
use ibwire::{PKey, Psn, QKey, Qpn};

use super::net::{Destination, Framing, Ingress, NetHeader, write_packet};
use super::post::Work;
use super::receives::Receives;
use super::sg;
use super::shared::{Arrival, Shared, Side};

/// Where a datagram goes, looked up when it is posted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Address {
    net: NetHeader,
    qpn: Qpn,
    qkey: QKey,
    imm: Option<u32>,
}

/// What makes a QP one for datagrams.
#[derive(Debug, Default)]
pub(super) struct Ud {
    pub(super) qkey: QKey,
    /// The PSN of the next packet. Receivers ignore it.
    pub(super) psn: Psn,
    work: VecDeque<(Work, Address)>,
}

impl Ud {
    /// Looks up where a datagram of `len` bytes goes.
    ///
    /// # Errors
    /// [`PostError::TooLong`] if it does not fit one packet, [`PostError::Invalid`] if the port has no way there.
    pub(super) fn address(
        port: u8,
        to: &DatagramDest,
        imm: Option<u32>,
        len: usize,
        shared: &Shared,
    ) -> Result<Address, PostError> {
        let invalid = |why| PostError::Invalid { why };
        let port = shared
            .port(port)
            .filter(|_| to.ah.av().port == port)
            .ok_or(invalid("the address is of another port than the QP"))?;
        if len > port.mtu() {
            return Err(PostError::TooLong { len, limit: port.mtu() });
        }
        let net = port.resolve(to.ah.av()).map_err(invalid)?;
        Ok(Address { net, qpn: to.qpn, qkey: to.qkey, imm })
    }

    pub(super) fn post(&mut self, work: Work, to: Address) {
        self.work.push_back((work, to));
    }

    pub(super) fn pop(&mut self) -> Option<Work> {
        self.work.pop_front().map(|(work, _)| work)
    }

    pub(super) fn can_send(&self) -> bool {
        !self.work.is_empty()
    }

    /// Appends the next datagram to `out`, returns its length and completes its work request.
    pub(super) fn poll_transmit(
        &mut self,
        port: u8,
        pkey: PKey,
        side: &mut Side,
        out: &mut Vec<u8>,
        shared: &mut Shared,
    ) -> Option<usize> {
        let (work, to) = self.work.pop_front()?;
        let opcode = match to.imm {
            None => Opcode::UD_SEND_ONLY,
            Some(_) => Opcode::UD_SEND_ONLY_WITH_IMM,
        };
        let bth = Bth {
            solicited: work.flags.contains(SendFlags::SOLICITED),
            mig_req: true,
            pkey,
            ..Bth::new(opcode, to.qpn, self.psn)
        };
        self.psn = self.psn.offset(1);
        let qkey = if to.qkey.is_privileged() { self.qkey } else { to.qkey };
        let deth = Deth::new(qkey, side.qpn).to_bytes();
        let message = work.message_len();
        let payload = |out: &mut Vec<u8>| sg::gather(&work.sg, 0..message, out);
        let len = match to.imm {
            Some(imm) => write_packet(out, bth, &[&deth, &ImmDt::from_u32(imm).to_bytes()], message, payload),
            None => write_packet(out, bth, &[&deth], message, payload),
        };
        work.succeed(0, side, shared);
        shared.destination = Destination { port, net: to.net, framing: Framing::Transport };
        Some(len)
    }

    /// Handles a datagram for this QP: into the first receive if it fits, else it is dropped and the receive stays.
    pub(super) fn handle_packet(
        &self,
        pkey: PKey,
        ingress: &Ingress<'_>,
        receives: &mut Receives,
        side: &Side,
        shared: &mut Shared,
    ) {
        let packet = ingress.packet;
        let found = shared.port(ingress.port).and_then(|port| {
            let arrival = match packet.bth().dest_qp {
                Qpn::MULTICAST => port.group_arrival(ingress.net),
                _ => port.arrival(ingress.net),
            };
            Some((port, arrival?))
        });
        let Some((port, arrival)) = found else {
            shared.counters.drop_address += 1;
            return;
        };
        let link_layer = port.attr.link_layer;
        let pkey_index = port.pkey_index(packet.bth().pkey);
        if !packet.bth().pkey.matches(pkey) {
            shared.counters.drop_pkey += 1;
            return;
        }
        let Some(deth) = packet.deth().filter(|deth| deth.qkey == self.qkey) else {
            shared.counters.drop_qkey += 1;
            return;
        };
        let Some(receive) = receives.peek(shared) else {
            shared.counters.drop_ud_no_receive += 1;
            return;
        };
        let len = GrhArea::LEN + packet.payload().len();
        if len > sg::capacity(&receive.sg) {
            shared.counters.drop_ud_too_long += 1;
            return;
        }
        let Some(RecvWr { id, mut sg }) = receives.take(shared) else { return };
        let area = ingress.net.grh_area(link_layer, ingress.len);
        sg::scatter(&mut sg, 0, &area);
        sg::scatter(&mut sg, GrhArea::LEN, packet.payload());
        sg::set_filled(&mut sg, len);
        let from = DatagramSource {
            qpn: deth.src_qp,
            slid: ingress.net.slid,
            sl: ingress.net.sl,
            path_bits: arrival.path_bits,
            pkey_index: pkey_index.unwrap_or_default(),
            grh: arrival.grh,
        };
        let imm = packet.immdt().map(|imm| imm.to_u32());
        let arrival = Arrival { op: CompletionOp::Recv, len: len as u32, imm, from: Some(from), raw: None };
        side.complete(shared, id, sg, Status::SUCCESS, arrival);
    }
}
