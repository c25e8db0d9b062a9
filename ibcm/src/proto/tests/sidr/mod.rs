//! Service ID resolution (spec/cm.md 4.13).

mod hostile;
mod query;
mod service;

use std::time::Duration;

use ibwire::mad::{ClassPortInfo, Redirect};
use ibwire::{CommId, Gid, Lid, PrivateData, QKey, Qpn, ServiceId};

use super::pair::*;
use crate::proto::message::{Attribute, IpHeader, Message, SidrInfo, SidrRep, SidrReq, SidrStatus};
use crate::proto::{
    CommandError, Config, ConnectError, Effort, ListenError, SidrAnswer, SidrEvent, SidrHandling, SidrQuery,
    SidrQueryHandle, SidrRequest, SidrRequestHandle, SidrServe, SidrServiceId, Stats,
};

const QPN: Qpn = Qpn::truncate(0x123);

const QKEY: QKey = QKey(0x0123_4567);

fn answer() -> SidrAnswer {
    SidrAnswer { private_data: PrivateData::from(b"v1"), ..SidrAnswer::resolved(QPN, QKEY) }
}

fn query_from(net: &Net, from: usize, to: usize) -> SidrQuery {
    let path = net.hosts[from].address.path_to(&net.hosts[to].address);
    SidrQuery { private_data: PrivateData::from(b"who?"), ..SidrQuery::new(path, SERVICE) }
}

/// A asks P; the SIDR_REQ is on the wire.
fn ask(net: &mut Net) -> SidrQueryHandle {
    let query = query_from(net, A, P);
    ask_with(net, A, &query)
}

fn ask_with(net: &mut Net, host: usize, query: &SidrQuery) -> SidrQueryHandle {
    let now = net.now;
    net.ep(host).sidr_query(now, query).unwrap()
}

fn serve(net: &mut Net, host: usize, handling: SidrHandling) -> SidrServiceId {
    let serve = SidrServe { handling, ..SidrServe::reporting(SERVICE) };
    net.ep(host).sidr_serve(serve).unwrap()
}

fn publish(net: &mut Net, host: usize, answer: SidrAnswer) -> SidrServiceId {
    serve(net, host, SidrHandling::Answer(Box::new(answer)))
}

fn redirect_to(net: &Net, host: usize) -> SidrAnswer {
    let address = &net.hosts[host].address;
    SidrAnswer::redirect(ClassPortInfo {
        redirect: Redirect { gid: address.gid, lid: address.lid, ..Redirect::default() },
        ..ClassPortInfo::default()
    })
}

#[track_caller]
fn event(net: &mut Net, host: usize) -> SidrEvent {
    net.collect();
    net.ep(host).poll_sidr_event().expect("no event")
}

#[track_caller]
fn no_event(net: &mut Net, host: usize) {
    net.collect();
    assert_eq!(net.ep(host).poll_sidr_event(), None);
}

#[track_caller]
fn request(net: &mut Net) -> (SidrRequestHandle, Box<SidrRequest>) {
    match event(net, P) {
        SidrEvent::Request { handle, request, .. } => (handle, request),
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn refused(net: &mut Net) -> Box<SidrRep> {
    match event(net, A) {
        SidrEvent::Refused { rep, .. } => rep,
        other => panic!("{other:?}"),
    }
}

fn stats(net: &mut Net, host: usize) -> Stats {
    net.ep(host).stats()
}

fn sidr_req(message: &Message) -> &SidrReq {
    let Message::SidrReq(req) = message else { panic!("{message:?}") };
    req
}

fn sidr_rep(message: &Message) -> &SidrRep {
    let Message::SidrRep(rep) = message else { panic!("{message:?}") };
    rep
}

/// Nothing of SIDR is left at A.
#[track_caller]
fn assert_idle(net: &mut Net) {
    no_event(net, A);
    net.assert_silent();
    assert_eq!(net.ep(A).sidr_queries(), 0);
    assert_eq!(net.ep(A).poll_timeout(), None);
}
