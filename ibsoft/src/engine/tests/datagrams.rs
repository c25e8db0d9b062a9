//! Datagram QPs.

use std::time::Instant;

use ibdev::qp::QpType;
use ibdev::{Completion, DatagramDest, DatagramSource, PostError, SendFlags, Status};
use ibwire::packet::{Bth, Deth, GrhArea, ImmDt, Opcode, TransportPacket};

use super::super::{CqId, Egress, PortGroup, QpCreate};
use super::*;

struct Dut {
    engine: Engine,
    cq: CqId,
    qpn: Qpn,
    now: Instant,
}

impl Dut {
    /// A datagram QP in RTS with Q_Key 0x1234.
    fn new(port: PortConfig) -> Self {
        let mut engine = engine(port, 2);
        let cq = engine.create_cq(16).unwrap();
        let create = QpCreate { max_sge: 5, ..QpCreate::new(QpType::Ud, cq, 8, 8) };
        let qpn = engine.create_qp(&create).unwrap();
        engine.modify(qpn, Transition::Init(INIT)).unwrap();
        engine.modify(qpn, Transition::DatagramRtr).unwrap();
        engine.modify(qpn, Transition::DatagramRts { sq_psn: Psn::MAX }).unwrap();
        Self { engine, cq, qpn, now: Instant::now() }
    }

    fn packet(&self, change: impl FnOnce(&mut Bth), qkey: u32, payload: &[u8]) -> Vec<u8> {
        let mut bth = Bth::new(Opcode::UD_SEND_ONLY, self.qpn, Psn::truncate(7));
        bth.pad = Bth::pad_for(payload.len());
        change(&mut bth);
        let mut bytes =
            [&bth.to_bytes()[..], &Deth::new(QKey(qkey), Qpn::truncate(0x22)).to_bytes()].concat();
        if bth.opcode.has_immdt() {
            bytes.extend_from_slice(&ImmDt::from_u32(0xdead_beef).to_bytes());
        }
        bytes.extend_from_slice(payload);
        bytes.resize(bytes.len() + usize::from(bth.pad), 0);
        bytes
    }

    fn deliver(&mut self, net: &NetHeader, bytes: &[u8]) {
        self.engine.handle_packet(self.now, 1, net, bytes);
        assert_eq!(self.transmit(), None, "datagrams are not answered");
    }

    fn transmit(&mut self) -> Option<(Egress<'_>, Vec<u8>)> {
        let mut out = Vec::new();
        self.engine.poll_transmit(self.now, &mut out).map(|egress| (egress, out))
    }

    fn completion(&mut self) -> Option<Completion> {
        let mut out = Vec::new();
        self.engine.poll_cq(self.cq, &mut out, 1);
        out.pop()
    }

    fn post_recv(&mut self, id: u64, len: usize) {
        self.engine.post_recv(self.qpn, &mut one(recv(id, len))).unwrap();
    }

    fn post_send(
        &mut self,
        len: usize,
        av: AddressVector,
        qkey: u32,
        imm: Option<u32>,
    ) -> Result<(), PostError> {
        let to = DatagramDest { ah: ah(av), qpn: Qpn::truncate(0x33), qkey: QKey(qkey) };
        let op = SendOp::Datagram { to, imm };
        self.engine.post_send(
            self.qpn,
            &mut one(SendWr { op, flags: SendFlags::SIGNALED | SendFlags::SOLICITED, ..send(9, len, None) }),
        )
    }
}

fn source(completion: &Completion) -> DatagramSource {
    assert_eq!(completion.status, Status::SUCCESS);
    completion.from.unwrap()
}

#[test]
fn hca_t54_ipv4() {
    let mut dut = Dut::new(roce_port("10.77.0.2"));
    dut.post_recv(1, 64);
    let bytes = dut.packet(|_| {}, 0x1234, b"datagram");
    let mut net = roce_net("10.77.0.1", "10.77.0.2");
    let route = net.route.as_mut().unwrap();
    (route.ip_id, route.traffic_class) = (0x4711, 0x2a);
    dut.deliver(&net, &bytes);
    let completion = dut.completion().unwrap();
    assert_eq!((completion.len, completion.sg[0].len()), (48, 48));
    let GrhArea::Ipv4(ip) = GrhArea::parse(&completion.sg[0]).unwrap() else {
        panic!("{:?}", completion.sg[0])
    };
    assert_eq!((ip.tos, ip.id, ip.ttl, ip.flags_fragment), (0x2a, 0x4711, 64, 0x4000));
    // IP, UDP, BTH, DETH, payload, ICRC
    assert_eq!(ip.total_len, 20 + 8 + 12 + 8 + 8 + 4);
    assert_eq!(ip.checksum, ip.computed_checksum());
    let buf = &completion.sg[0];
    assert_eq!((&buf[..20], buf[20]), (&[0; 20][..], 0x45));
    assert_eq!(buf[32..40], [10, 77, 0, 1, 10, 77, 0, 2]);
    assert_eq!(&buf[40..], b"datagram");
    let from = source(&completion);
    assert_eq!((from.qpn, from.slid), (Qpn::truncate(0x22), Lid::NONE));
    let grh = from.grh.unwrap();
    assert_eq!((grh.dgid, grh.sgid_index, grh.traffic_class), (gid("10.77.0.1"), 3, 0x2a));
}

#[test]
fn hca_t55_ipv6() {
    let mut dut = Dut::new(roce_port("fd77::2"));
    dut.post_recv(1, 128);
    let bytes = dut.packet(|_| {}, 0x1234, &[5; 30]);
    let mut net = roce_net("fd77::1", "fd77::2");
    net.route.as_mut().unwrap().traffic_class = 0x2a;
    dut.deliver(&net, &bytes);
    let completion = dut.completion().unwrap();
    let buf = &completion.sg[0];
    assert_eq!(buf[..4], [0x62, 0xa0, 0, 0]);
    // UDP, BTH, DETH, payload, pad, ICRC; then UDP and the hop limit
    assert_eq!(buf[4..8], [0, 8 + 12 + 8 + 30 + 2 + 4, 17, 64]);
    assert_eq!((&buf[8..24], &buf[24..40]), (&gid("fd77::1").0[..], &gid("fd77::2").0[..]));
    assert_eq!((buf.len(), &buf[40..]), (70, &[5; 30][..]));
}

#[test]
fn hca_t56_keys_psns_and_ack_requests() {
    let mut dut = Dut::new(roce_port("10.77.0.2"));
    let net = roce_net("10.77.0.1", "10.77.0.2");
    for id in 0..3 {
        dut.post_recv(id, 64);
    }
    for qkey in [0x1235, 0x8000_1234, 0] {
        let bytes = dut.packet(|_| {}, qkey, b"x");
        dut.deliver(&net, &bytes);
    }
    let bytes = dut.packet(|bth| bth.pkey = PKey(0x8001), 0x1234, b"x");
    dut.deliver(&net, &bytes);
    let bytes = dut.packet(|bth| bth.opcode = Opcode::RC_SEND_ONLY, 0x1234, b"x");
    dut.deliver(&net, &bytes);
    let bytes = dut.packet(|_| {}, 0x1234, b"x");
    dut.deliver(&roce_net("10.77.0.1", "10.77.0.3"), &bytes);
    assert!(dut.completion().is_none());
    let counters = dut.engine.counters();
    assert_eq!((counters.drop_qkey, counters.drop_pkey), (3, 1));
    assert_eq!((counters.drop_transport, counters.drop_address), (1, 1));

    let bytes = dut.packet(|bth| bth.psn = Psn::truncate(900), 0x1234, b"jump");
    dut.deliver(&net, &bytes);
    assert_eq!(&dut.completion().unwrap().sg[0][40..], b"jump");
    let bytes = dut.packet(|bth| bth.ack_req = true, 0x1234, b"asks");
    dut.deliver(&net, &bytes);
    assert_eq!(&dut.completion().unwrap().sg[0][40..], b"asks");
    let bytes = dut.packet(|bth| bth.opcode = Opcode::UD_SEND_ONLY_WITH_IMM, 0x1234, b"imm");
    dut.deliver(&net, &bytes);
    let completion = dut.completion().unwrap();
    assert_eq!((completion.imm, &completion.sg[0][40..]), (Some(0xdead_beef), &b"imm"[..]));
    dut.deliver(&net, &bytes);
    assert_eq!(dut.engine.counters().drop_ud_no_receive, 1);
}

#[test]
fn hca_t57_too_long_for_the_receive() {
    let mut dut = Dut::new(roce_port("10.77.0.2"));
    let net = roce_net("10.77.0.1", "10.77.0.2");
    dut.post_recv(1, 100);
    let bytes = dut.packet(|_| {}, 0x1234, &[1; 64]);
    dut.deliver(&net, &bytes);
    assert!(dut.completion().is_none());
    assert_eq!(dut.engine.counters().drop_ud_too_long, 1);
    let bytes = dut.packet(|_| {}, 0x1234, &[2; 60]);
    dut.deliver(&net, &bytes);
    assert_eq!(dut.completion().unwrap().len, 100);
    // Nor is there room for the GRH area.
    dut.post_recv(2, 39);
    let bytes = dut.packet(|_| {}, 0x1234, &[]);
    dut.deliver(&net, &bytes);
    assert_eq!(dut.engine.counters().drop_ud_too_long, 2);
}

#[test]
fn hca_t58_a_privileged_qkey_stands_for_the_qps_own() {
    let mut dut = Dut::new(roce_port("10.77.0.2"));
    for (qkey, sent, psn) in [(0x8000_0000, 0x1234, 0xff_ffff), (0x777, 0x777, 0)] {
        dut.post_send(5, roce_av("10.77.0.1"), qkey, None).unwrap();
        assert!(dut.completion().is_none(), "it has not left");
        let qpn = dut.qpn;
        let (egress, bytes) = dut.transmit().unwrap();
        let packet = TransportPacket::parse(&bytes).unwrap();
        assert_eq!(packet.deth(), Some(Deth::new(QKey(sent), qpn)));
        let bth = packet.bth();
        assert_eq!((bth.dest_qp.get(), bth.psn.get(), bth.mig_req, bth.ack_req), (0x33, psn, true, false));
        assert_eq!((packet.payload().len(), bth.pad, egress.len), (5, 3, 28));
        assert!(bth.solicited);
        assert_eq!((egress.port, egress.qpn), (1, qpn));
        let route = egress.net.route.unwrap();
        assert_eq!((route.sgid, route.dgid), (gid("10.77.0.2"), gid("10.77.0.1")));
        assert_eq!((route.hop_limit, route.flow_label.get()), (64, 5));
        let completion = dut.completion().unwrap();
        assert_eq!((completion.id, completion.status), (9, Status::SUCCESS));
    }
    dut.post_send(0, roce_av("10.77.0.1"), 1, Some(0xabcd)).unwrap();
    let (_, bytes) = dut.transmit().unwrap();
    assert_eq!(TransportPacket::parse(&bytes).unwrap().immdt(), Some(ImmDt::from_u32(0xabcd)));
}

#[test]
fn what_cannot_leave_is_refused() {
    let mut dut = Dut::new(roce_port("10.77.0.2"));
    let av = roce_av("10.77.0.1");
    assert_eq!(dut.post_send(1025, av, 1, None), Err(PostError::TooLong { len: 1025, limit: 1024 }));
    dut.post_send(1024, av, 1, None).unwrap();
    for bad in [
        AddressVector { port: 2, ..av },
        AddressVector { grh: None, ..av },
        AddressVector { grh: av.grh.map(|grh| GlobalRoute { sgid_index: 4, ..grh }), ..av },
    ] {
        assert!(matches!(dut.post_send(1, bad, 1, None), Err(PostError::Invalid { .. })));
    }
    dut.transmit().unwrap();
    assert_eq!(dut.transmit(), None);
}

#[test]
fn infiniband_with_and_without_grh() {
    let mut dut = Dut::new(ib_port(8));
    dut.post_recv(1, 64);
    dut.post_recv(2, 64);
    let bytes = dut.packet(|bth| bth.pkey = PKey(1), 0x1234, b"ib");
    let mut net = NetHeader { slid: Lid(5), dlid: Lid(10), sl: ServiceLevel::truncate(3), route: None };
    dut.deliver(&net, &bytes);
    let completion = dut.completion().unwrap();
    let from = source(&completion);
    assert_eq!((from.slid, from.sl.get(), from.grh), (Lid(5), 3, None));
    assert_eq!((from.path_bits, from.pkey_index), (2, 0), "sent to LID 10 of 8..=11");
    assert_eq!((completion.len, &completion.sg[0][40..]), (42, &b"ib"[..]));
    net.route = roce_net("fe80::5", "fe80::1").route;
    dut.deliver(&net, &bytes);
    let completion = dut.completion().unwrap();
    let GrhArea::Grh(grh) = GrhArea::parse(&completion.sg[0]).unwrap() else { panic!() };
    // BTH, DETH, payload, pad, ICRC
    assert_eq!((grh.next_header, grh.payload_len), (0x1b, 12 + 8 + 2 + 2 + 4));
    assert_eq!(source(&completion).grh.unwrap().dgid, gid("fe80::5"));
    net.dlid = Lid(12);
    dut.deliver(&net, &bytes);
    assert_eq!(dut.engine.counters().drop_address, 1);

    let av = AddressVector { dlid: Lid(5), path_bits: 2, grh: None, ..roce_av("fe80::5") };
    dut.post_send(4, av, 1, None).unwrap();
    let (egress, _) = dut.transmit().unwrap();
    assert_eq!((egress.net.slid, egress.net.dlid, egress.net.route), (Lid(10), Lid(5), None));
    let beyond = AddressVector { path_bits: 4, ..av };
    assert!(matches!(dut.post_send(4, beyond, 1, None), Err(PostError::Invalid { .. })));
}

/// Buffers end anywhere: in the GRH area, at its end, in the payload.
#[test]
fn hca_t54_scattered() {
    for lens in [&[40, 8][..], &[20, 20, 3, 5], &[0, 41, 0, 6, 1], &[39, 9, 100], &[48]] {
        let mut dut = Dut::new(roce_port("10.77.0.2"));
        let sg = lens.iter().map(|&len| Buf::unregistered(len)).collect();
        dut.engine.post_recv(dut.qpn, &mut one(RecvWr { id: 1, sg })).unwrap();
        let bytes = dut.packet(|_| {}, 0x1234, b"datagram");
        dut.deliver(&roce_net("10.77.0.1", "10.77.0.2"), &bytes);
        let completion = dut.completion().unwrap();
        assert_eq!((completion.status, completion.len), (Status::SUCCESS, 48));
        let all: Vec<u8> = completion.sg.iter().flat_map(|buf| buf.iter().copied()).collect();
        assert_eq!(
            (all.len(), &all[32..40], &all[40..]),
            (48, &[10, 77, 0, 1, 10, 77, 0, 2][..], &b"datagram"[..])
        );
        // All buffers but the last that is used are full.
        assert!(completion.sg.iter().zip(lens).take(2).all(|(buf, len)| buf.len() <= *len));
    }
    // One byte less, and all of it stays.
    let mut dut = Dut::new(roce_port("10.77.0.2"));
    let sg = [40, 7].map(Buf::unregistered).into_iter().collect();
    dut.engine.post_recv(dut.qpn, &mut one(RecvWr { id: 1, sg })).unwrap();
    let bytes = dut.packet(|_| {}, 0x1234, b"datagram");
    dut.deliver(&roce_net("10.77.0.1", "10.77.0.2"), &bytes);
    assert_eq!((dut.completion().is_none(), dut.engine.counters().drop_ud_too_long), (true, 1));
}

#[test]
fn hca_t58_gathered_and_unsignaled() {
    let mut dut = Dut::new(roce_port("10.77.0.2"));
    let to = DatagramDest { ah: ah(roce_av("10.77.0.1")), qpn: Qpn::truncate(0x33), qkey: QKey(0x8000_0000) };
    let op = SendOp::Datagram { to, imm: Some(3) };
    let sg = [3, 0, 2].iter().map(|&len| message(7, len)).collect();
    dut.engine.post_send(dut.qpn, &mut one(SendWr { id: 1, op, sg, flags: SendFlags::INLINE })).unwrap();
    let (_, bytes) = dut.transmit().unwrap();
    let packet = TransportPacket::parse(&bytes).unwrap();
    assert_eq!(packet.payload(), [&message(7, 3)[..], &message(7, 2)[..]].concat());
    assert_eq!(
        (packet.deth().map(|deth| deth.qkey), packet.immdt()),
        (Some(QKey(0x1234)), Some(ImmDt::from_u32(3)))
    );
    assert!(dut.completion().is_none());
    assert_eq!((dut.engine.outstanding(dut.qpn), dut.engine.take_released().len()), (Some((0, 0)), 3));
}

/// A QP of another partition than the first of the port; a limited member beside the full one.
#[test]
fn the_index_is_that_of_the_partition() {
    let mut port = ib_port(8);
    port.pkeys = vec![PKey(0x8001), PKey(0x7fff), PKey::DEFAULT];
    let mut engine = engine(port, 2);
    let cq = engine.create_cq(16).unwrap();
    let create = QpCreate { max_sge: 5, ..QpCreate::new(QpType::Ud, cq, 8, 8) };
    let qpn = engine.create_qp(&create).unwrap();
    engine.modify(qpn, Transition::Init(Init { pkey_index: 2, ..INIT })).unwrap();
    engine.modify(qpn, Transition::DatagramRtr).unwrap();
    engine.modify(qpn, Transition::DatagramRts { sq_psn: Psn::MAX }).unwrap();
    let mut dut = Dut { engine, cq, qpn, now: Instant::now() };
    let net = NetHeader { slid: Lid(5), dlid: Lid(11), sl: ServiceLevel::truncate(0), route: None };
    for (pkey, index) in [(PKey(0xffff), Some(2)), (PKey(0x7fff), Some(2)), (PKey(0x8001), None)] {
        dut.post_recv(1, 64);
        let bytes = dut.packet(|bth| bth.pkey = pkey, 0x1234, b"");
        dut.deliver(&net, &bytes);
        let from = dut.completion().map(|completion| source(&completion));
        assert_eq!(
            from.map(|from| (from.pkey_index, from.path_bits)),
            index.map(|index| (index, 3)),
            "{pkey}"
        );
    }
    let av = AddressVector { dlid: Lid(5), path_bits: 3, grh: None, ..roce_av("fe80::5") };
    dut.post_send(0, av, 1, None).unwrap();
    let (egress, bytes) = dut.transmit().unwrap();
    assert_eq!((egress.net.slid, Bth::parse(&bytes).unwrap().pkey), (Lid(11), PKey::DEFAULT));
}

#[test]
fn a_draining_qp_sends_nothing() {
    let mut dut = Dut::new(roce_port("10.77.0.2"));
    dut.post_send(1, roce_av("10.77.0.1"), 1, None).unwrap();
    dut.engine.modify(dut.qpn, Transition::SqDrain).unwrap();
    assert_eq!(dut.transmit(), None);
    dut.post_send(1, roce_av("10.77.0.1"), 1, None).unwrap();
    assert_eq!(dut.transmit(), None);
    dut.engine.modify(dut.qpn, Transition::SqResume).unwrap();
    dut.transmit().unwrap();
    dut.transmit().unwrap();
}

/// Two QPs in a group, one with another Q_Key: one copy, and the group in the GRH area.
#[test]
fn hca_t59_a_copy_to_each_member_with_the_right_key() {
    let mut dut = Dut::new(roce_port("10.77.0.2"));
    let (cq, group) = (dut.engine.create_cq(16).unwrap(), "239.1.1.1".parse().unwrap());
    let other = dut.engine.create_qp(&QpCreate::new(QpType::Ud, cq, 8, 8)).unwrap();
    let here = PortGroup { port: 1, mgid: group, mlid: Lid::NONE };
    assert_eq!(
        dut.engine.attach(other, group, Lid::NONE).unwrap_err().to_string(),
        "not possible in QP state RESET"
    );
    dut.engine.modify(other, Transition::Init(Init { qkey: QKey(0x99), ..INIT })).unwrap();
    dut.engine.modify(other, Transition::DatagramRtr).unwrap();
    assert_eq!(dut.engine.attach(dut.qpn, group, Lid::NONE).unwrap(), (here, true));
    // The link has joined already.
    assert_eq!(dut.engine.attach(dut.qpn, group, Lid(0xc000)).unwrap(), (here, false));
    assert_eq!(dut.engine.attach(other, group, Lid::NONE).unwrap(), (here, false));
    for qpn in [dut.qpn, other] {
        dut.engine.post_recv(qpn, &mut one(recv(1, 100))).unwrap();
    }
    let mut net = roce_net("10.77.0.1", "10.77.0.2");
    net.route.as_mut().unwrap().dgid = group;
    let bytes = dut.packet(|bth| bth.dest_qp = Qpn::MULTICAST, 0x1234, b"to all");
    dut.deliver(&net, &bytes);
    let completion = dut.completion().unwrap();
    assert_eq!(completion.sg[0][GrhArea::LEN..GrhArea::LEN + 6], *b"to all");
    assert_eq!(completion.sg[0][36..40], [239, 1, 1, 1]);
    let from = completion.from.unwrap();
    assert_eq!(from.grh.unwrap().dgid, net.route.unwrap().sgid);
    let mut none = Vec::new();
    assert_eq!((dut.engine.poll_cq(cq, &mut none, 1), dut.engine.counters().drop_qkey), (0, 1));

    // A unicast QP number does not go with the address of a group, nor the other way round.
    let bytes = dut.packet(|_| {}, 0x1234, b"x");
    dut.deliver(&net, &bytes);
    assert_eq!(dut.engine.counters().drop_address, 1);
    let bytes = dut.packet(|bth| bth.dest_qp = Qpn::MULTICAST, 0x1234, b"x");
    dut.deliver(&roce_net("10.77.0.1", "10.77.0.2"), &bytes);
    assert_eq!(dut.engine.counters().drop_multicast, 1);
    assert_eq!(dut.engine.detach(dut.qpn, group, Lid::NONE), None);
    drop(dut.engine.destroy_qp(other));
    dut.deliver(&net, &bytes);
    assert_eq!(dut.engine.counters().drop_multicast, 2);
    assert!(dut.engine.attach(dut.qpn, "10.0.0.1".parse().unwrap(), Lid::NONE).is_err());
}
