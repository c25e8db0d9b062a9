//! QP1 and its agents.

use std::time::Instant;

use ibdev::{AgentSpec, DeviceError, MAD_LEN, MadAddr, OutgoingMad, ReceivedMad};
use ibwire::mad::{Method, MgmtClass};
use ibwire::packet::{Bth, Deth, Opcode, TransportPacket};

use super::super::{AgentId, EngineEvent};
use super::*;

const CM: u8 = MgmtClass::CM.0;
const SA: u8 = MgmtClass::SA.0;
const SPEC: AgentSpec =
    AgentSpec { port: 1, class: MgmtClass::CM, class_version: 2, methods: &[Method::SEND] };

fn mad(class: u8, method: u8) -> [u8; MAD_LEN] {
    let mut mad = [0xee; MAD_LEN];
    mad[..4].copy_from_slice(&[1, class, 2, method]);
    mad
}

fn outgoing(to: &str) -> OutgoingMad {
    let to = MadAddr { av: roce_av(to), qpn: Qpn::GSI, qkey: QKey::GSI, pkey_index: 0 };
    OutgoingMad { to, mad: mad(CM, 3) }
}

fn packet(change: impl FnOnce(&mut Bth, &mut Deth), payload: &[u8]) -> Vec<u8> {
    let mut bth = Bth::new(Opcode::UD_SEND_ONLY, Qpn::GSI, Psn::truncate(7));
    let mut deth = Deth::new(QKey::GSI, Qpn::GSI);
    change(&mut bth, &mut deth);
    [&bth.to_bytes()[..], &deth.to_bytes(), payload].concat()
}

fn deliver(engine: &mut Engine, bytes: &[u8]) {
    engine.handle_packet(Instant::now(), 1, &roce_net("10.77.0.1", "10.77.0.2"), bytes);
}

fn receive(engine: &mut Engine, agent: AgentId) -> Vec<ReceivedMad> {
    let mut out = Vec::new();
    engine.poll_mads(agent, &mut out, usize::MAX);
    out
}

#[test]
fn mads_reach_the_agent_of_their_class() {
    let mut engine = engine(roce_port("10.77.0.2"), 1);
    let cm = engine.open_agent(SPEC).unwrap();
    let sa = engine.open_agent(AgentSpec { class: MgmtClass::SA, methods: &[], ..SPEC }).unwrap();
    assert!(matches!(engine.open_agent(SPEC), Err(DeviceError::InUse { .. })));
    assert!(matches!(engine.open_agent(AgentSpec { port: 2, ..SPEC }), Err(DeviceError::Limit { .. })));

    deliver(&mut engine, &packet(|_, deth| deth.src_qp = Qpn::truncate(0x17), &mad(CM, 3)));
    deliver(&mut engine, &packet(|bth, _| bth.ack_req = true, &mad(CM, 3)));
    assert_eq!(engine.poll_event(), Some(EngineEvent::MadReady(cm)));
    assert_eq!(engine.poll_event(), None);
    assert_eq!(engine.mad_len(cm), 2);
    let received = receive(&mut engine, cm);
    assert_eq!((received.len(), received[0].mad), (2, mad(CM, 3)));
    let from = received[0].from;
    assert_eq!((from.port, from.qpn.get(), from.pkey_index), (1, 0x17, 0));
    let reply = from.reply();
    assert_eq!((reply.qpn.get(), reply.qkey), (0x17, QKey::GSI));
    let grh = reply.av.grh.unwrap();
    assert_eq!((grh.dgid, grh.sgid_index, grh.hop_limit), (gid("10.77.0.1"), 3, 64));

    // Unsolicited methods that nobody asked for, and responses.
    deliver(&mut engine, &packet(|_, _| {}, &mad(SA, 1)));
    deliver(&mut engine, &packet(|_, _| {}, &mad(4, 0x81)));
    assert_eq!(engine.counters().drop_mad_no_agent, 2);
    deliver(&mut engine, &packet(|_, _| {}, &mad(SA, 0x81)));
    assert_eq!(receive(&mut engine, sa).len(), 1);

    engine.close_agent(cm);
    deliver(&mut engine, &packet(|_, _| {}, &mad(CM, 3)));
    assert_eq!(engine.counters().drop_mad_no_agent, 3);
    assert_ne!(engine.open_agent(SPEC).unwrap(), cm);
}

#[test]
fn each_port_has_its_own_agents() {
    let ports = vec![roce_port("10.77.0.2"), roce_port("10.77.0.2")];
    let mut engine = Engine::new(Config::new(DeviceAttr::new("soft", Guid(1), 2), ports, [1; 32]));
    let agents = [1, 2].map(|port| engine.open_agent(AgentSpec { port, ..SPEC }).unwrap());
    let net = roce_net("10.77.0.1", "10.77.0.2");
    engine.handle_packet(Instant::now(), 2, &net, &packet(|_, _| {}, &mad(CM, 3)));
    assert_eq!(agents.map(|agent| engine.mad_len(agent)), [0, 1]);
    // The address is of port 1.
    engine.send_mads(agents[1], &mut one(outgoing("10.77.0.1")));
    assert_eq!(engine.counters().drop_mad_unroutable, 1);
    assert_eq!(engine.poll_transmit(Instant::now(), &mut Vec::new()), None);
}

#[test]
fn mads_that_are_not_right_vanish() {
    let mut engine = engine(roce_port("10.77.0.2"), 1);
    let agent = engine.open_agent(SPEC).unwrap();
    let good = mad(CM, 3);
    let mut version_2 = good;
    version_2[0] = 2;
    deliver(&mut engine, &packet(|_, _| {}, &version_2));
    deliver(&mut engine, &packet(|_, _| {}, &good[..252]));
    deliver(&mut engine, &packet(|_, _| {}, &[&good[..], &[0; 4]].concat()));
    deliver(&mut engine, &packet(|_, deth| deth.qkey = QKey(0x8001_0001), &good));
    deliver(&mut engine, &packet(|bth, _| bth.pkey = PKey(0x8001), &good));
    deliver(&mut engine, &packet(|bth, _| bth.opcode = Opcode::RC_SEND_ONLY, &good));
    deliver(&mut engine, &packet(|bth, _| bth.dest_qp = Qpn::SMI, &good));
    deliver(&mut engine, &packet(|bth, _| bth.dest_qp = Qpn::MULTICAST, &good));
    let net = roce_net("10.77.0.1", "10.77.0.9");
    engine.handle_packet(Instant::now(), 1, &net, &packet(|_, _| {}, &good));
    engine.handle_packet(Instant::now(), 2, &net, &packet(|_, _| {}, &good));
    assert_eq!(engine.mad_len(agent), 0);
    let counters = engine.counters();
    assert_eq!((counters.drop_mad_malformed, counters.drop_qkey, counters.drop_pkey), (3, 1, 1));
    assert_eq!((counters.drop_transport, counters.drop_smi, counters.drop_multicast), (1, 1, 1));
    assert_eq!((counters.drop_address, counters.drop_port_down, counters.rx_packets), (1, 1, 10));
    deliver(&mut engine, &packet(|bth, _| bth.pkey = PKey(0x7fff), &good));
    assert_eq!(engine.mad_len(agent), 1);
}

#[test]
fn queues_are_bounded() {
    let mut config = Config::new(DeviceAttr::new("soft", Guid(1), 1), vec![roce_port("10.77.0.2")], [1; 32]);
    (config.mad_send_window, config.mad_recv_queue) = (2, 3);
    let mut engine = Engine::new(config);
    let agent = engine.open_agent(SPEC).unwrap();
    for _ in 0..5 {
        deliver(&mut engine, &packet(|_, _| {}, &mad(CM, 3)));
    }
    assert_eq!((engine.mad_len(agent), engine.counters().drop_mad_queue_full), (3, 2));
    assert_eq!(engine.poll_event(), Some(EngineEvent::MadReady(agent)));

    let mut batch: VecDeque<_> = (0..3).map(|_| outgoing("10.77.0.1")).collect();
    engine.send_mads(agent, &mut batch);
    assert_eq!((batch.len(), engine.mad_room(agent), engine.poll_event()), (1, 0, None));
    let (now, mut out) = (Instant::now(), Vec::new());
    engine.poll_transmit(now, &mut out).unwrap();
    assert_eq!((engine.mad_room(agent), engine.poll_event()), (1, Some(EngineEvent::MadRoom(agent))));
    engine.poll_transmit(now, &mut out).unwrap();
    assert_eq!(engine.poll_transmit(now, &mut out), None);
    assert_eq!(engine.poll_event(), None);
}

#[test]
fn mads_leave_as_qp1_sends_them() {
    let mut engine = engine(roce_port("10.77.0.2"), 1);
    let agent = engine.open_agent(SPEC).unwrap();
    let lost = |change: fn(&mut MadAddr)| {
        let mut mad = outgoing("10.77.0.1");
        change(&mut mad.to);
        mad
    };
    let mut batch = VecDeque::from([
        outgoing("10.77.0.1"),
        lost(|to| to.av.port = 2),
        lost(|to| to.av.grh = None),
        lost(|to| to.pkey_index = 1),
        outgoing("fd77::1"),
        outgoing("10.77.0.3"),
    ]);
    engine.send_mads(agent, &mut batch);
    assert!(batch.is_empty());
    assert_eq!(engine.counters().drop_mad_unroutable, 4);
    // A closed agent's MADs still leave.
    engine.close_agent(agent);
    let mut psn = None;
    for to in ["10.77.0.1", "10.77.0.3"] {
        let mut out = Vec::new();
        let egress = engine.poll_transmit(Instant::now(), &mut out).unwrap();
        assert_eq!((egress.port, egress.qpn, egress.len), (1, Qpn::GSI, 276));
        assert_eq!(egress.net.route.unwrap().dgid, gid(to));
        let packet = TransportPacket::parse(&out).unwrap();
        let bth = packet.bth();
        assert_eq!((bth.opcode, bth.dest_qp), (Opcode::UD_SEND_ONLY, Qpn::GSI));
        assert_eq!((bth.mig_req, bth.ack_req, bth.solicited, bth.pkey), (false, false, false, PKey::DEFAULT));
        assert_eq!(packet.deth(), Some(Deth::new(QKey::GSI, Qpn::GSI)));
        assert_eq!(packet.payload(), mad(CM, 3));
        assert!(psn.is_none_or(|before: Psn| bth.psn == before.offset(1)));
        psn = Some(bth.psn);
    }
    assert_eq!(engine.poll_transmit(Instant::now(), &mut Vec::new()), None);
}

#[test]
fn infiniband_mads_show_lids_and_partition() {
    let mut engine = engine(ib_port(8), 1);
    let agent = engine.open_agent(SPEC).unwrap();
    let net = NetHeader { slid: Lid(5), dlid: Lid(11), sl: ServiceLevel::truncate(2), route: None };
    let bytes = packet(|_, _| {}, &mad(CM, 3));
    engine.handle_packet(Instant::now(), 1, &net, &bytes);
    let from = receive(&mut engine, agent)[0].from;
    assert_eq!(
        (from.slid, from.path_bits, from.sl.get(), from.pkey_index, from.grh),
        (Lid(5), 3, 2, 1, None)
    );
    let mut batch = one(OutgoingMad { to: from.reply(), mad: mad(CM, 3) });
    engine.send_mads(agent, &mut batch);
    let egress = engine.poll_transmit(Instant::now(), &mut Vec::new()).unwrap();
    assert_eq!(*egress.net, NetHeader { slid: Lid(11), dlid: Lid(5), ..net });
}
