//! What goes into the fields and into the queue pairs (spec/cm.md 5, 8.4).

use std::time::Duration;

use ibwire::{CommId, Lid, Mtu, PacketLifeTime, PrivateData, RejReason, ServiceLevel, TimeCode};

use super::pair::*;
use crate::proto::message::{
    Attribute as Id, CmRetries, FailoverAccepted, MessageId, RetryCount, TransportService, VendorId,
};
use crate::proto::{Accept, Config, Connect, Event, State};

#[test]
fn cm_t49_starting_psns_cross() {
    let mut net = Net::pair();
    let Established { a, p, req, rep, .. } = net.established();
    let (from_p, from_a) = (req.req().starting_psn, rep.rep().starting_psn);
    assert_ne!(from_p, from_a);
    let (active, passive) = (net.ep(A).attrs(a).unwrap(), net.ep(P).attrs(p).unwrap());
    assert_eq!((active.rtr.rq_psn, active.rts.sq_psn), (from_p, from_a));
    assert_eq!((passive.rtr.rq_psn, passive.rts.sq_psn), (from_a, from_p));
}

/// The table of 5.1 for both sides.
#[test]
fn queue_pair_attributes() {
    let mut net = Net::pair();
    let mut connect = net.connect_to(A, P);
    connect.retry_count = 5;
    connect.rnr_retry_count = 4;
    connect.responder_resources = Some(9);
    connect.initiator_depth = Some(6);
    connect.srq = true;
    let init = net.ep(A).connect_init(&connect).unwrap();
    assert_eq!((init.port, init.pkey_index), (1, Address::PKEY_INDEX));
    assert_eq!(init.access, ibdev::Access::all());
    let a = net.connect_with(A, connect.clone());
    let flight = net.pass(Id::REQ);
    let req = flight.req();
    assert_eq!(req.transport, TransportService::RC);
    assert_eq!((req.retry_count, req.rnr_retry_count), (RetryCount::truncate(5), RetryCount::truncate(4)));
    assert_eq!((req.responder_resources, req.initiator_depth), (9, 6));
    assert_eq!((req.max_cm_retries, req.path_mtu), (CmRetries::MAX, Mtu::B1024));
    assert_eq!((req.remote_cm_response_timeout.get(), req.local_cm_response_timeout.get()), (20, 20));
    // (16, 15) -> 17, with the active CA's own ack delay.
    assert_eq!(req.primary.local_ack_timeout, TimeCode::truncate(17));
    assert_eq!((req.primary.local_lid, req.primary.remote_lid), (Lid::PERMISSIVE, Lid::PERMISSIVE));
    assert!(!req.primary.subnet_local && req.srq);
    assert_eq!(req.alternate_path(), None);
    assert_eq!(req.local_ca_guid, net.hosts[A].address.guid);
    assert_eq!(req.local_qpn, connect.qpn);

    let (p, request) = net.request(P);
    assert_eq!((request.responder_resources, request.initiator_depth), (6, 9));
    assert_eq!(request.path.record.packet_life_time, PacketLifeTime::from(TimeCode::truncate(16)));
    let mut accept = Accept::new(net.hosts[P].qpn());
    accept.rnr_retry_count = 3;
    let before = net.ep(P).accept_attrs(p, &accept).unwrap();
    net.accept_with(P, p, accept.clone());
    assert_eq!(net.ep(P).attrs(p), Some(before));
    let flight = net.pass(Id::REP);
    let rep = flight.rep();
    assert_eq!((rep.responder_resources, rep.initiator_depth), (6, 9));
    assert_eq!((rep.target_ack_delay, rep.rnr_retry_count.get()), (ACK_DELAY, 3));
    assert_eq!(rep.failover_accepted, FailoverAccepted::ACCEPTED);
    assert_eq!((rep.local_qpn, rep.local_ca_guid), (accept.qpn, net.hosts[P].address.guid));
    net.reply(A, a);

    let (active, passive) = (net.ep(A).attrs(a).unwrap(), net.ep(P).attrs(p).unwrap());
    assert_eq!(active.init, init);
    assert_eq!((active.rtr.dest_qpn, passive.rtr.dest_qpn), (accept.qpn, connect.qpn));
    assert_eq!((active.rtr.path_mtu, passive.rtr.path_mtu), (Mtu::B1024, Mtu::B1024));
    assert_eq!((active.rtr.max_dest_rd_atomic, passive.rtr.max_dest_rd_atomic), (9, 6));
    assert_eq!((active.rts.max_rd_atomic, passive.rts.max_rd_atomic), (6, 9));
    assert_eq!((active.rts.retry_count, passive.rts.retry_count), (5, 5));
    assert_eq!((active.rts.rnr_retry, passive.rts.rnr_retry), (3, 4));
    assert_eq!((active.rts.timeout.get(), passive.rts.timeout.get()), (17, 17));
    assert_eq!(active.rtr.min_rnr_timer, Config::default().min_rnr_timer);
    assert_eq!(passive.rtr.min_rnr_timer, Config::default().min_rnr_timer);
    let [to_p, to_a] = [active.rtr.av, passive.rtr.av].map(|av| {
        let grh = av.grh.unwrap();
        assert_eq!((av.port, av.dlid, grh.sgid_index, grh.hop_limit), (1, Lid::NONE, 3, 64));
        grh.dgid
    });
    assert_eq!((to_p, to_a), (net.hosts[P].address.gid, net.hosts[A].address.gid));
}

#[test]
fn cm_t53_vendor_options() {
    let mut net = Net::pair();
    let a = net.connect();
    let flight = net.take_only(Id::REQ);
    let mut req = flight.req().clone();
    req.vendor_id = VendorId::truncate(0x15b3);
    let flight = flight.with(req).patched(|mad| {
        (mad[4], mad[6], mad[18]) = (0xff, 0xff, 0xff);
        mad[20..24].copy_from_slice(&[0xde, 0xad, 0xbe, 0xef]);
        let payload = &mut mad[24..];
        payload[4] = 0xff;
        payload[24..28].fill(0xff);
        payload[95] |= 0x07;
    });
    net.deliver(&flight);
    let (p, request) = net.request(P);
    assert_eq!(request.req.vendor_id, VendorId::truncate(0x15b3));
    net.accept(P, p);
    let rep = net.pass(Id::REP);
    assert_eq!(rep.rep().vendor_id, VendorId::truncate(0));
    assert_eq!(rep.bytes()[4..8], [0; 4]);
    assert_eq!(rep.bytes()[18..24], [0; 6]);
    net.reply(A, a);
    net.ready(A, a, b"");
    net.run();
    net.assert_state(P, p, State::Established);
}

/// Each area passes whole, to the last byte.
#[test]
fn cm_t55_full_private_data() {
    let mut net = Net::pair();
    let mut connect = net.connect_to(A, P);
    connect.private_data = PrivateData::from(&[1; 92]);
    let a = net.connect_with(A, connect);
    net.pass(Id::REQ);
    let (p, request) = net.request(P);
    assert_eq!(request.req.private_data[..], [1; 92]);
    let mut accept = Accept::new(net.hosts[P].qpn());
    accept.private_data = PrivateData::from(&[2; 196]);
    net.accept_with(P, p, accept);
    net.pass(Id::REP);
    assert_eq!(net.reply(A, a).private_data[..], [2; 196]);
    net.ready(A, a, &[3; 224]);
    net.pass(Id::RTU);
    let Event::Established { rtu_data: Some(data), .. } = net.event(P) else { panic!() };
    assert_eq!(data[..], [3; 224]);
    assert!(PrivateData::<92>::new(&[1; 93]).is_err());
    assert!(PrivateData::<196>::new(&[1; 197]).is_err());
    assert!(PrivateData::<224>::new(&[1; 225]).is_err());
    assert!(PrivateData::<220>::new(&[1; 221]).is_err());
    assert!(PrivateData::<148>::new(&[1; 149]).is_err());
}

/// 40 bytes come as 92, zero-padded; nothing of the longer message before shows.
#[test]
fn cm_t56_no_ghosts() {
    let mut net = Net::pair();
    for len in [92, 40] {
        let mut connect = net.connect_to(A, P);
        connect.private_data = PrivateData::new(&[7; 92][..len]).unwrap();
        net.connect_with(A, connect);
        net.pass(Id::REQ);
        let (_, request) = net.request(P);
        assert_eq!(request.req.private_data.len(), 92);
        assert_eq!(request.req.private_data.trimmed().len(), len);
    }
}

#[test]
fn cm_t59_limited_key_in_the_packet_full_one_in_the_request() {
    let mut net = Net::pair();
    net.connect();
    let mut flight = net.take_only(Id::REQ);
    flight.source.pkey_index = Address::LIMITED_PKEY_INDEX;
    net.deliver(&flight);
    let (p, _) = net.request(P);
    net.accept(P, p);
    let rep = net.take_only(Id::REP);
    assert_eq!(rep.sent.to.pkey_index, Address::LIMITED_PKEY_INDEX, "the answer has the key of the question");
    assert_eq!(net.ep(P).attrs(p).unwrap().init.pkey_index, Address::PKEY_INDEX);
}

/// From another subnet: what the REQ cannot know, the MAD shows.
#[test]
fn cm_t60_routed_request() {
    let mut net = Net::infiniband();
    let mut connect = net.connect_to(A, P);
    connect.path.record.hop_limit = 64;
    let a = net.connect_with(A, connect);
    let mut flight = net.take_only(Id::REQ);
    let block = flight.req().primary;
    assert_eq!(
        (block.local_lid, block.remote_lid, block.subnet_local),
        (Lid::PERMISSIVE, Lid::PERMISSIVE, false)
    );
    flight.source.sl = ServiceLevel::truncate(5);
    net.deliver(&flight);
    let (p, _) = net.request(P);
    net.accept(P, p);
    let av = net.ep(P).attrs(p).unwrap().rtr.av;
    assert_eq!((av.dlid, av.sl.get()), (flight.source.slid, 5));
    assert_eq!(av.grh.unwrap().dgid, net.hosts[A].address.gid);
    let rep = net.pass(Id::REP);
    assert_eq!((rep.sent.to.av.dlid, rep.sent.to.av.grh.unwrap().dgid), (av.dlid, net.hosts[A].address.gid));
    net.reply(A, a);
}

/// A LID that only one end of a routed path has counts for that end. (Linux tells the router's on its own side if it
/// knows the way back.)
#[test]
fn cm_t60_routed_request_with_one_lid() {
    for path_bits in [0, 1] {
        let mut net = Net::infiniband();
        let mut connect = net.connect_to(A, P);
        connect.path.record.hop_limit = 64;
        net.connect_with(A, connect);
        let mut flight = net.take_only(Id::REQ);
        let mut req = flight.req().clone();
        (req.primary.local_lid, req.primary.sl) = (Lid(0x55), ServiceLevel::truncate(2));
        flight = flight.with(req);
        (flight.source.sl, flight.source.path_bits) = (ServiceLevel::truncate(5), path_bits);
        net.deliver(&flight);
        let (p, request) = net.request(P);
        assert_eq!(request.path.record.slid, Lid(net.hosts[P].address.lid.0 + u16::from(path_bits)));
        net.accept(P, p);
        let av = net.ep(P).attrs(p).unwrap().rtr.av;
        assert_eq!((av.dlid, av.sl.get(), av.path_bits), (Lid(0x55), 2, path_bits));
    }
}

/// The MAD came from another LID of the port: answers go there, data to the LID in the REQ.
#[test]
fn cm_t61_mad_from_another_lid() {
    let mut net = Net::infiniband();
    let a = net.connect();
    let mut flight = net.take_only(Id::REQ);
    let base = net.hosts[A].address.lid;
    assert_eq!((flight.req().primary.local_lid, flight.req().primary.subnet_local), (base, true));
    flight.source.slid = Lid(base.0 + 1);
    flight.source.path_bits = 1;
    net.deliver(&flight);
    let (p, _) = net.request(P);
    net.accept(P, p);
    let av = net.ep(P).attrs(p).unwrap().rtr.av;
    assert_eq!((av.dlid, av.path_bits), (base, 0));
    assert_eq!(av.grh, None);
    let rep = net.pass(Id::REP);
    assert_eq!((rep.sent.to.av.dlid, rep.sent.to.av.path_bits), (Lid(base.0 + 1), 1));
    net.reply(A, a);
    net.ready(A, a, b"");
    net.pass(Id::RTU);
    net.assert_state(P, p, State::Established);
    net.events(P);

    // What P begins itself goes along the connection's path.
    net.disconnect(P, p);
    assert_eq!(net.take_only(Id::DREQ).sent.to.av.dlid, base);

    // The other address is the connection's too.
    net.disconnect(A, a);
    let mut dreq = net.take_only(Id::DREQ);
    dreq.source.slid = Lid(base.0 + 1);
    net.deliver(&dreq);
    net.assert_state(P, p, State::TimeWait);
    net.pass(Id::DREP);
    net.assert_state(A, a, State::TimeWait);
}

fn limited(n: usize, responder_resources: u8, initiator_depth: u8) -> (Address, Config) {
    (Address { responder_resources, initiator_depth, ..Address::roce(n) }, Config::default())
}

/// The example of 5.7.
#[test]
fn cm_t62_depths() {
    let mut net = Net::new([limited(A, 16, 16), limited(P, 8, 16)]);
    let mut connect = net.connect_to(A, P);
    (connect.responder_resources, connect.initiator_depth) = (Some(16), Some(4));
    let a = net.connect_with(A, connect);
    net.pass(Id::REQ);
    let (p, request) = net.request(P);
    // Swapped: what the peer wants outstanding is what we serve.
    assert_eq!((request.responder_resources, request.initiator_depth), (4, 16));

    let mut raised = Accept::new(net.hosts[P].qpn());
    raised.responder_resources = Some(5);
    let now = net.now;
    assert!(net.ep(P).accept(now, p, raised).is_err());
    net.accept(P, p);
    let flight = net.pass(Id::REP);
    assert_eq!((flight.rep().responder_resources, flight.rep().initiator_depth), (4, 16));
    net.reply(A, a);
    let (active, passive) = (net.ep(A).attrs(a).unwrap(), net.ep(P).attrs(p).unwrap());
    assert_eq!((active.rts.max_rd_atomic, active.rtr.max_dest_rd_atomic), (4, 16));
    assert_eq!((passive.rtr.max_dest_rd_atomic, passive.rts.max_rd_atomic), (4, 16));
}

#[test]
fn cm_t62_the_smaller_device_decides() {
    let mut net = Net::new([limited(A, 16, 16), limited(P, 8, 2)]);
    net.connect();
    net.pass(Id::REQ);
    let (_, request) = net.request(P);
    assert_eq!((request.responder_resources, request.initiator_depth), (8, 2));
}

#[test]
fn cm_t62_nothing_offered_nothing_opened() {
    let mut net = Net::pair();
    let mut connect = net.connect_to(A, P);
    (connect.responder_resources, connect.initiator_depth) = (Some(0), Some(0));
    let a = net.connect_with(A, connect);
    net.pass(Id::REQ);
    let (p, request) = net.request(P);
    assert_eq!((request.responder_resources, request.initiator_depth), (0, 0));
    net.accept(P, p);
    net.pass(Id::REP);
    net.reply(A, a);
    for attrs in [net.ep(A).attrs(a).unwrap(), net.ep(P).attrs(p).unwrap()] {
        assert_eq!(attrs.init.access, ibdev::Access::REMOTE_WRITE);
        assert_eq!((attrs.rtr.max_dest_rd_atomic, attrs.rts.max_rd_atomic), (0, 0));
    }
}

#[test]
fn cm_t63_reply_wants_more_than_was_offered() {
    let mut net = Net::pair();
    let mut connect = net.connect_to(A, P);
    connect.responder_resources = Some(4);
    let a = net.connect_with(A, connect);
    net.pass(Id::REQ);
    let (p, _) = net.request(P);
    net.accept(P, p);
    let flight = net.take_only(Id::REP);
    let mut rep = flight.rep().clone();
    assert_eq!(rep.initiator_depth, 4);
    rep.initiator_depth = 5;
    net.deliver(&flight.with(rep));
    let answer = net.take_only(Id::REJ);
    let rej = answer.rej();
    assert_eq!((rej.reason, rej.message), (RejReason::INSUFFICIENT_RESPONDER_RESOURCES, MessageId::REP));
    assert_eq!((rej.local_comm_id, rej.remote_comm_id), {
        let rep = flight.rep();
        (rep.remote_comm_id, rep.local_comm_id)
    });
    let Event::ReplyRefused { conn, reason, .. } = net.event(A) else { panic!() };
    assert_eq!((conn, reason), (a, RejReason::INSUFFICIENT_RESPONDER_RESOURCES));
    assert_eq!(net.ep(A).attrs(a), None);
    net.deliver(&answer);
    let Event::Rejected { conn, rejection, .. } = net.event(P) else { panic!() };
    assert_eq!((conn, rejection.is_consumer()), (p, false));
    net.settle();
}

/// More than we asked for is not too much: we use what we asked for.
#[test]
fn cm_t63_reply_offers_more_than_was_asked() {
    let mut net = Net::pair();
    let mut connect = net.connect_to(A, P);
    connect.initiator_depth = Some(2);
    let a = net.connect_with(A, connect);
    net.pass(Id::REQ);
    let (p, _) = net.request(P);
    net.accept(P, p);
    let flight = net.take_only(Id::REP);
    let mut rep = flight.rep().clone();
    rep.responder_resources = 255;
    net.deliver(&flight.with(rep));
    net.reply(A, a);
    assert_eq!(net.ep(A).attrs(a).unwrap().rts.max_rd_atomic, 2);
}

/// P's half of a connection whose REQ had this ack timeout, and when P has entered TimeWait.
fn with_ack_timeout(code: u8) -> (Net, crate::proto::ConnHandle) {
    let mut net = Net::pair();
    let a = net.connect();
    let flight = net.take_only(Id::REQ);
    let mut req = flight.req().clone();
    req.primary.local_ack_timeout = TimeCode::new(code).unwrap();
    net.deliver(&flight.with(req));
    let (p, request) = net.request(P);
    assert_eq!(request.path.record.packet_life_time.get(), code.saturating_sub(1));
    net.accept(P, p);
    net.pass(Id::REP);
    net.reply(A, a);
    net.ready(A, a, b"");
    net.pass(Id::RTU);
    (net, p)
}

fn time_wait_of(net: &mut Net, p: crate::proto::ConnHandle) -> Duration {
    net.disconnect(P, p);
    net.pass(Id::DREQ);
    let start = net.now;
    net.pass(Id::DREP);
    net.assert_state(P, p, State::TimeWait);
    let end = net.ep(P).poll_timeout().unwrap();
    net.settle();
    end - start
}

#[test]
fn cm_t64_ack_timeout_zero() {
    let (mut net, p) = with_ack_timeout(0);
    let timeout = net.ep(P).attrs(p).unwrap().rts.timeout;
    assert_eq!(timeout, Config::default().max_ack_timeout, "0 would be for ever");
    assert_eq!(time_wait_of(&mut net, p), Config::default().min_time_wait);
}

#[test]
fn cm_t65_ack_timeouts_saturate() {
    let (mut net, p) = with_ack_timeout(31);
    assert_eq!(net.ep(P).attrs(p).unwrap().rts.timeout, Config::default().max_ack_timeout);
    assert_eq!(time_wait_of(&mut net, p), Config::default().max_time_wait);

    // In our own REQ.
    let mut net = Net::pair();
    for (life_time, expected) in [(0, 15), (15, 17), (16, 17), (18, 19), (30, 31), (31, 31), (63, 31)] {
        let mut connect: Connect = net.connect_to(A, P);
        connect.path.record.packet_life_time = PacketLifeTime::truncate(life_time);
        net.connect_with(A, connect);
        let flight = net.take_only(Id::REQ);
        assert_eq!(flight.req().primary.local_ack_timeout.get(), expected, "packet lifetime {life_time}");
    }
}

/// IDs, PSNs and transactions are drawn from the seed: the same seed, the same bytes; another, others.
#[test]
fn the_seed_decides() {
    let first = |seed| {
        let mut net = Net::pair();
        net.reseed(A, seed);
        net.connect();
        net.take_only(Id::REQ)
    };
    let (one, again, other) = (first(1), first(1), first(2));
    assert_eq!(one.bytes(), again.bytes());
    assert_ne!(one.req().local_comm_id, other.req().local_comm_id);
    assert_ne!(one.req().starting_psn, other.req().starting_psn);
    assert_ne!(one.header.tid, other.header.tid);
    assert_ne!(one.req().local_comm_id, CommId::NONE);
}
