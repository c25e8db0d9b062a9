//! Which listener gets a request, and what its peer is told meanwhile (spec/cm.md 4.12, 3.3).

use std::time::Duration;

use ibwire::{Lid, PrivateData, RejReason, ServiceId, TimeCode};

use super::pair::*;
use crate::proto::message::{Attribute as Id, MessageId};
use crate::proto::{
    Config, Discriminator, Event, Listen, ListenError, ListenerId, Reject, State, Transport, Transports,
};

const NANO: Duration = Duration::from_nanos(1);

/// What becomes of A's request with this private data.
fn asks(net: &mut Net, service_id: ServiceId, data: &[u8]) -> Result<ListenerId, RejReason> {
    let mut connect = net.connect_to(A, P);
    connect.service_id = service_id;
    connect.private_data = PrivateData::new(data).unwrap();
    let a = net.connect_with(A, connect);
    net.pass(Id::REQ);
    match net.events(P).pop() {
        Some(Event::Request { listener, conn, .. }) => {
            net.reject(P, conn, RejReason::CONSUMER);
            net.run();
            net.events(P);
            net.events(A);
            assert_eq!(net.ep(A).state(a), None);
            Ok(listener)
        }
        None => Err(net.pass(Id::REJ).rej().reason),
        Some(other) => panic!("{other:?}"),
    }
}

fn discriminated(offset: usize, pattern: &[u8]) -> Listen {
    Listen { discriminator: Some(Discriminator::new(offset, pattern).unwrap()), ..Listen::new(SERVICE) }
}

#[test]
fn cm_t81_listeners_of_one_service_by_discriminator() {
    let mut net = Net::pair();
    let plain = net.hosts[P].listener.unwrap();
    let x = net.listen(P, discriminated(4, b"X"));
    let y = net.listen(P, discriminated(4, b"Y"));
    for (data, listener) in [(&b"1234X5"[..], x), (b"1234Y", y), (b"1234Z", plain), (b"", plain)] {
        assert_eq!(asks(&mut net, SERVICE, data), Ok(listener));
    }
    assert_eq!(net.ep(P).listen(discriminated(4, b"Y")), Err(ListenError::AddrInUse));
    net.ep(P).unlisten(plain);
    assert_eq!(asks(&mut net, SERVICE, b"1234Z"), Err(RejReason::INVALID_SERVICE_ID));
    assert_eq!(asks(&mut net, SERVICE, b"1234X"), Ok(x));
}

#[test]
fn a_listener_for_many_services() {
    let mut net = Net::pair();
    let base = ServiceId::new(0x2000_0000_0000_1200);
    let many = net.listen(P, Listen { service_mask: !0xff, ..Listen::new(base) });
    let one = net.listen(P, Listen::new(ServiceId::new(base.0 + 7)));
    assert_eq!(asks(&mut net, base, b""), Ok(many));
    assert_eq!(asks(&mut net, ServiceId::new(base.0 + 7), b""), Ok(one));
    assert_eq!(asks(&mut net, ServiceId::new(base.0 + 255), b""), Ok(many));
    assert_eq!(asks(&mut net, ServiceId::new(base.0 + 256), b""), Err(RejReason::INVALID_SERVICE_ID));
}

/// There is no moment with both, and none with neither that lasts.
#[test]
fn cm_t83_a_listener_that_is_replaced() {
    let mut net = Net::pair();
    let old = net.hosts[P].listener.unwrap();
    for new in 0..3 {
        assert_eq!(net.ep(P).listen(Listen::new(SERVICE)), Err(ListenError::AddrInUse));
        let last = net.hosts[P].listener.unwrap();
        net.ep(P).unlisten(last);
        let again = net.listen(P, Listen::new(SERVICE));
        assert_ne!(again, old, "{new}");
        assert_eq!(asks(&mut net, SERVICE, b""), Ok(again));
    }
    assert_eq!(net.ep(P).pending_requests(old), None);
    net.ep(P).unlisten(old); // dead: nothing happens
    assert!(asks(&mut net, SERVICE, b"").is_ok());
}

/// The port answers to two LIDs; a listener takes one of them.
#[test]
fn a_listener_for_one_lid() {
    let mut net = Net::infiniband();
    let plain = net.hosts[P].listener.unwrap();
    let base = net.hosts[P].address.lid;
    let second = net.listen(P, Listen { local_lid: Some(Lid(base.0 + 1)), ..Listen::new(SERVICE) });
    assert_eq!(asks(&mut net, SERVICE, b""), Ok(plain));
    let mut connect = net.connect_to(A, P);
    connect.path.record.dlid = Lid(base.0 + 1);
    net.connect_with(A, connect);
    net.pass(Id::REQ);
    let Event::Request { listener, .. } = net.event(P) else { panic!() };
    assert_eq!(listener, second);

    let mut net = Net::pair();
    let error = net.ep(P).listen(Listen { local_lid: Some(Lid(7)), ..Listen::new(SERVICE) }).unwrap_err();
    assert_eq!(error.to_string(), "local LID is 0x0007, it must be left out, for no port is InfiniBand");
}

#[test]
fn a_port_that_is_not_there() {
    let mut net = Net::pair();
    let error = net.ep(P).listen(Listen { port: Some(2), ..Listen::new(SERVICE) }).unwrap_err();
    assert_eq!(error.to_string(), "port is 2, it must be a port of the device");
    net.listen(P, Listen { port: Some(1), ..Listen::new(SERVICE) });
}

#[test]
fn a_transport_that_the_listener_does_not_take() {
    let mut net = Net::pair();
    let plain = net.hosts[P].listener.unwrap();
    net.ep(P).unlisten(plain);
    net.listen(P, Listen { transports: Transports::from(Transport::Uc), ..Listen::new(SERVICE) });
    assert_eq!(asks(&mut net, SERVICE, b""), Err(RejReason::INVALID_TRANSPORT));
}

/// The program says that it needs longer than the request gives it: the peer is told at once, with the program's words.
#[test]
fn a_slow_program_asks_for_time_at_once() {
    let mut net = Net::pair();
    let plain = net.hosts[P].listener.unwrap();
    net.ep(P).unlisten(plain);
    let turnaround = Some(Duration::from_secs(10));
    let mra_data = PrivateData::from(b"thinking");
    net.listen(P, Listen { turnaround, mra_data, ..Listen::new(SERVICE) });
    let Handshake { a, p, req } = net.requested();
    net.fire();
    let mra = net.pass(Id::MRA);
    let said = mra.mra();
    assert_eq!((said.message, said.service_timeout), (MessageId::REQ, TimeCode::truncate(22)));
    assert_eq!(said.private_data.trimmed(), b"thinking");
    assert_eq!(said.remote_comm_id, req.req().local_comm_id);
    net.assert_state(P, p, State::ReqMraSent);
    net.assert_state(A, a, State::ReqMraRcvd);
    let Event::Busy { mra, .. } = net.event(A) else { panic!() };
    assert_eq!(mra.private_data.trimmed(), b"thinking");
    // In ten seconds nothing is repeated.
    net.advance(Duration::from_secs(10));
    net.assert_silent();
    // The listener is gone; who asked it is told the same as before.
    let listener = net.hosts[P].listener.unwrap();
    net.ep(P).unlisten(listener);
    net.advance(Duration::from_secs(8));
    let again = net.pass(Id::REQ);
    assert_eq!(again.bytes(), req.bytes());
    assert_eq!(net.pass(Id::MRA).mra().private_data.trimmed(), b"thinking");
    net.accept(P, p);
    net.pass(Id::REP);
    net.reply(A, a);
}

/// One that is fast enough is asked about at half of the time, should it take that long after all.
#[test]
fn a_fast_program_asks_for_time_if_it_must() {
    let mut net = Net::pair();
    let plain = net.hosts[P].listener.unwrap();
    net.ep(P).unlisten(plain);
    let turnaround = Some(Duration::from_secs(1));
    net.listen(P, Listen { turnaround, ..Listen::new(SERVICE) });
    net.requested();
    net.advance(answer_time() / 2 - NANO);
    net.assert_silent();
    net.advance(NANO);
    assert_eq!(net.take_only(Id::MRA).mra().service_timeout, TimeCode::truncate(18));
}

/// However long the program takes: an MRA asks for half a minute at most, and the next repetition meets another one.
#[test]
fn a_very_slow_program() {
    let mut net = Net::pair();
    let plain = net.hosts[P].listener.unwrap();
    net.ep(P).unlisten(plain);
    net.listen(P, Listen { turnaround: Some(Duration::from_secs(3_600)), ..Listen::new(SERVICE) });
    let Handshake { a, p, .. } = net.requested();
    net.fire();
    let code = Config::default().max_mra_service_timeout;
    for _ in 0..3 {
        assert_eq!(net.pass(Id::MRA).mra().service_timeout, code);
        net.advance(code.duration() + time(16));
        net.pass(Id::REQ);
    }
    net.pass(Id::MRA);
    let now = net.now;
    net.ep(P).reject(now, p, Reject::new(RejReason::CONSUMER)).unwrap();
    net.pass(Id::REJ);
    assert_eq!(net.ep(A).state(a), None);
}
