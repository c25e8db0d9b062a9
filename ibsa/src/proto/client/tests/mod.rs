//! Transactions, one rule at a time.

mod any_mads;
mod edges;
mod simulation;

use std::time::{Duration, Instant};

use ibdev::AddressVector;
use ibwire::mad::Redirect;
use ibwire::{Gid, Guid, Lid, PathRecord, QKey, Qpn, Rate, ServiceLevel, TransactionId};

use super::*;
use crate::proto::rmpp::RmppConfig;
use crate::record::{MultiPath, NodeRecord, Record, Template};

const SA: Lid = Lid(1);
const MS: Duration = Duration::from_millis(1);

fn address(lid: Lid) -> MadAddr {
    MadAddr {
        av: AddressVector {
            port: 1,
            dlid: lid,
            sl: ServiceLevel::default(),
            path_bits: 0,
            rate: Rate::PORT_CURRENT,
            grh: None,
        },
        qpn: Qpn::GSI,
        qkey: QKey::GSI,
        pkey_index: 0,
    }
}

fn source(lid: Lid) -> MadSource {
    let sl = ServiceLevel::default();
    MadSource { port: 1, slid: lid, sl, path_bits: 0, qpn: Qpn::GSI, pkey_index: 0, grh: None }
}

fn client(now: Instant) -> Client {
    let mut client = Client::new(Config::default(), [7; 32]);
    client.set_sa(now, Some(address(SA)), vec![PKey::DEFAULT]);
    client
}

fn node(method: Method, now: Instant) -> Request {
    let wanted = Template::<NodeRecord>::new().lid(4u16);
    Request::new(method, wanted, now + Duration::from_secs(60)).unwrap()
}

fn sent(client: &mut Client) -> Option<(SaHeader, OutgoingMad)> {
    let out = client.poll_transmit()?;
    Some((SaHeader::parse(&out.mad).unwrap(), out))
}

/// The answer to a request, with this status and data.
fn answer(request: &SaHeader, status: MadStatus, data: &[u8]) -> Mad {
    let mut header = *request;
    header.mad = request.mad.response(status);
    whole(&header, data)
}

fn failure(client: &mut Client) -> QueryError {
    match client.poll_event() {
        Some(Event::Failed { error, .. }) => error,
        other => panic!("{other:?}"),
    }
}

/// The next event, in words.
fn told(client: &mut Client) -> Option<String> {
    client.poll_event().map(|event| format!("{event:?}"))
}

/// Compares errors, which need not be comparable.
fn assert_error(error: &QueryError, expected: &QueryError) {
    assert_eq!(format!("{error:?}"), format!("{expected:?}"));
}

fn node_data() -> Vec<u8> {
    NodeRecord { lid: Lid(4), ..NodeRecord::default() }.to_bytes()
}

#[test]
fn a_get_is_answered_by_one_record() {
    let now = Instant::now();
    let mut client = client(now);
    let id = client.request(now, node(Method::GET, now)).unwrap();
    let (header, out) = sent(&mut client).unwrap();
    assert_eq!((out.to, header.component_mask, header.mad.method), (address(SA), 1, Method::GET));
    assert!(header.mad.tid.0 >> 32 == 0 && !header.rmpp.is_active());
    client.handle(now + MS, &source(SA), &answer(&header, MadStatus::OK, &node_data()));
    let Some(Event::Answered { id: answered, answer }) = client.poll_event() else { panic!() };
    assert_eq!((answered, answer.record::<NodeRecord>().unwrap().lid), (id, Lid(4)));
    assert_eq!(answer.effort, Effort { sent: 1, busy: 0, waited: MS });
    assert_eq!((client.pending(), client.poll_timeout(), told(&mut client)), (0, None, None));
}

#[test]
fn sa_t11_paths_answer_a_query_for_several() {
    let now = Instant::now();
    let mut client = client(now);
    let query = MultiPath {
        wanted: Template::new(),
        sources: vec![Gid::link_local(Guid(1))],
        destinations: vec![Gid::link_local(Guid(2)); 20],
    };
    client.request(now, Request::multi(&query, now + Duration::from_secs(9)).unwrap()).unwrap();
    let (first, _) = sent(&mut client).unwrap();
    assert_eq!((first.rmpp.kind, first.rmpp.flags, first.rmpp.segment), (RmppType::DATA, 3, 1));
    assert!(sent(&mut client).is_none(), "the window is one segment");
    client.handle(now, &source(SA), &ack(&first, 1, 9));
    assert_eq!(sent(&mut client).unwrap().0.rmpp.flags, 5);
    client.handle(now, &source(SA), &ack(&first, 2, 9));
    let (turn, _) = sent(&mut client).unwrap();
    assert_eq!((turn.mad.method, turn.rmpp.kind, turn.rmpp.segment), (Method::GET_MULTI, RmppType::ACK, 0));
    let mut header = SaHeader { mad: first.mad.response(MadStatus::OK), attribute_offset: 8, ..first };
    header.mad.attribute = PathRecord::ATTRIBUTE;
    let mut sa = Sender::new(header, vec![0; 128], &client.config.rmpp).unwrap();
    client.handle(now, &source(SA), &sa.poll_transmit(now).unwrap());
    let (last, _) = sent(&mut client).unwrap();
    assert_eq!((last.mad.method, last.mad.attribute), (Method::GET_MULTI, PathRecord::ATTRIBUTE));
    let Some(Event::Answered { answer, .. }) = client.poll_event() else { panic!() };
    assert_eq!(answer.table::<PathRecord>().unwrap().len(), 2);
}

/// The answer is lost, so the request goes out again: of that the SA has all segments, which it says at the first one.
#[test]
fn sa_t52_a_request_sent_again_is_acknowledged_at_once() {
    let now = Instant::now();
    let mut client = client(now);
    let (sources, destinations) = (vec![Gid::link_local(Guid(1))], vec![Gid::link_local(Guid(2)); 20]);
    let query = MultiPath { wanted: Template::new(), sources, destinations };
    client.request(now, Request::multi(&query, now + Duration::from_secs(9)).unwrap()).unwrap();
    let (first, _) = sent(&mut client).unwrap();
    client.handle(now, &source(SA), &ack(&first, 1, 9));
    client.handle(now, &source(SA), &ack(&first, 2, 9));
    while sent(&mut client).is_some() {}
    let later = client.poll_timeout().unwrap();
    client.handle_timeout(later);
    let (again, _) = sent(&mut client).unwrap();
    assert_eq!((again.mad.tid, again.rmpp.segment), (first.mad.tid, 1));
    client.handle(later, &source(SA), &ack(&again, 2, 9));
    let (turn, _) = sent(&mut client).unwrap();
    assert_eq!((turn.rmpp.kind, turn.rmpp.segment), (RmppType::ACK, 0));
    assert_eq!((client.pending(), told(&mut client)), (1, None));
}

/// The SA's ACK of a request whose first segment is `first`.
fn ack(first: &SaHeader, segment: u32, window: u32) -> Mad {
    let rmpp = RmppHeader {
        version: 1,
        kind: RmppType::ACK,
        flags: RmppHeader::ACTIVE,
        segment,
        length_or_window: window,
        ..RmppHeader::default()
    };
    whole(&SaHeader { mad: first.mad.response(MadStatus::OK), rmpp, ..*first }, &[])
}

#[test]
fn an_ack_that_comes_again_does_not_harm_the_answer() {
    let now = Instant::now();
    let mut client = client(now);
    let gids = vec![Gid::link_local(Guid(1))];
    let query = MultiPath { wanted: Template::new(), sources: gids.clone(), destinations: gids };
    client.request(now, Request::multi(&query, now + Duration::from_secs(9)).unwrap()).unwrap();
    let (first, _) = sent(&mut client).unwrap();
    client.handle(now, &source(SA), &ack(&first, 1, 1));
    let mut header = SaHeader { mad: first.mad.response(MadStatus::OK), attribute_offset: 8, ..first };
    header.mad.attribute = PathRecord::ATTRIBUTE;
    let mut sa = Sender::new(header, vec![0; 256], &client.config.rmpp).unwrap();
    client.handle(now, &source(SA), &sa.poll_transmit(now).unwrap());
    let mut late = ack(&first, 1, 1);
    client.handle(now, &source(SA), &late);
    late[16..18].copy_from_slice(&[0, 0x35]);
    client.handle(now, &source(SA), &late);
    assert_eq!((told(&mut client), client.stats().dropped_stray), (None, 2));
    let acks: Vec<_> = std::iter::from_fn(|| sent(&mut client)).collect();
    assert_eq!(sa.handle(now, &acks.last().unwrap().0), Sent::Going);
    client.handle(now, &source(SA), &sa.poll_transmit(now).unwrap());
    assert!(matches!(client.poll_event(), Some(Event::Answered { answer, .. }) if answer.data.len() == 256));
}

#[test]
fn waits_of_any_length_are_survived() {
    let now = Instant::now();
    let config = Config {
        first_timeout: Duration::MAX,
        busy_rest: Duration::MAX,
        max_busy_rest: Duration::MAX,
        rmpp: RmppConfig {
            total: Duration::MAX,
            resend: Duration::ZERO,
            linger: Duration::MAX,
            ..RmppConfig::default()
        },
        ..Config::default()
    };
    assert_eq!(longest(&config), FAR);
    let mut client = Client::new(config, [1; 32]);
    client.set_sa(now, Some(address(SA)), vec![PKey::DEFAULT]);
    client.request(now, node(Method::GET, now)).unwrap();
    let (header, _) = sent(&mut client).unwrap();
    client.handle(now, &source(SA), &answer(&header, MadStatus::BUSY, &[]));
    client.request(now, node(Method::GET_TABLE, now)).unwrap();
    let (header, _) = sent(&mut client).unwrap();
    let header = SaHeader { mad: header.mad.response(MadStatus::OK), attribute_offset: 14, ..header };
    let mut sa = Sender::new(header, vec![0; 112], &client.config.rmpp).unwrap();
    client.handle(now, &source(SA), &sa.poll_transmit(now).unwrap());
    assert!(matches!(client.poll_event(), Some(Event::Answered { .. })));
    assert_eq!(client.poll_timeout(), Some(now + Duration::from_secs(60)), "the deadline of the other");
}

#[test]
fn sa_t12_methods_of_answers() {
    let now = Instant::now();
    for (method, expected) in [
        (Method::SET, Method(0x81)),
        (Method::GET, Method(0x81)),
        (Method::DELETE, Method(0x95)),
        (Method::GET_TABLE, Method(0x92)),
    ] {
        let mut client = client(now);
        client.request(now, node(method, now)).unwrap();
        let (header, _) = sent(&mut client).unwrap();
        let mut other = answer(&header, MadStatus::OK, &node_data());
        other[3] = if expected.0 == 0x92 { 0x81 } else { 0x92 };
        client.handle(now, &source(SA), &other);
        assert_eq!((told(&mut client), client.stats().dropped_mismatch), (None, 1));
        other[3] = expected.0;
        client.handle(now, &source(SA), &other);
        assert!(matches!(client.poll_event(), Some(Event::Answered { .. })), "{method}");
    }
}

#[test]
fn a_table_that_was_cut_says_so() {
    let now = Instant::now();
    let mut client = client(now);
    client.request(now, node(Method::GET_TABLE, now)).unwrap();
    let (mut header, _) = sent(&mut client).unwrap();
    header.attribute_offset = 14;
    header.rmpp.flags = RmppHeader::ACTIVE; // with neither version nor type
    client.handle(now, &source(SA), &answer(&header, MadStatus::OK, &node_data()));
    let Some(Event::Answered { answer, .. }) = client.poll_event() else { panic!() };
    assert!(!answer.complete);
    assert_eq!(answer.table::<NodeRecord>().unwrap().len(), 1);
}

#[test]
fn sa_t28_silence_ends() {
    let now = Instant::now();
    let mut client = client(now);
    client.request(now, node(Method::GET, now)).unwrap();
    let (mut at, mut times, mut tids) = (now, Vec::new(), BTreeSet::new());
    while client.pending() > 0 {
        if let Some((header, _)) = sent(&mut client) {
            tids.insert(header.mad.tid.0);
            times.push(at);
        }
        at = client.poll_timeout().unwrap();
        client.handle_timeout(at);
    }
    assert_eq!((times.len(), tids.len()), (5, 1), "the same transaction ID each time");
    let pauses: Vec<_> = times.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64()).collect();
    for (at, pause) in pauses.iter().enumerate() {
        let expected = 2.4 * f64::from(1u32 << at);
        assert!((0.7 * expected..1.3 * expected).contains(pause), "{pauses:?}");
    }
    let QueryError::Silent(effort) = failure(&mut client) else { panic!() };
    assert_eq!((effort.sent, effort.busy, effort.waited), (5, 0, at - now));
    assert_eq!(client.stats().repeated, 4);
}

#[test]
fn a_deadline_is_kept() {
    let now = Instant::now();
    let mut client = client(now);
    let request = Request { deadline: now + 100 * MS, ..node(Method::GET, now) };
    client.request(now, request).unwrap();
    assert_eq!(client.poll_timeout(), Some(now + 100 * MS));
    client.handle_timeout(now + 100 * MS);
    assert!(matches!(failure(&mut client), QueryError::Silent(Effort { sent: 1, .. })));
    assert_eq!(client.pending(), 0);
}

#[test]
fn sa_t29_nobody_is_trusted_who_does_not_ask_for_it() {
    let now = Instant::now();
    let mut client = client(now);
    client.request(now, node(Method::GET, now)).unwrap();
    assert_eq!(sent(&mut client).unwrap().0.sm_key, 0);
    client.request(now, Request { sm_key: 1, ..node(Method::GET, now) }).unwrap();
    assert_eq!(sent(&mut client).unwrap().0.sm_key, 1);
}

#[test]
fn sa_t30_several_records_are_named_as_such() {
    let now = Instant::now();
    let mut client = client(now);
    client.request(now, node(Method::GET, now)).unwrap();
    let (header, _) = sent(&mut client).unwrap();
    client.handle(now, &source(SA), &answer(&header, MadStatus(0x0400), &[]));
    let error = failure(&mut client);
    assert_error(&error, &QueryError::Status(SaStatus::TOO_MANY_RECORDS));
    assert_eq!(error.to_string(), "the SA answers: too many records, ask for a table");
}

#[test]
fn sa_t31_busy_and_then_an_answer_is_one_result() {
    let now = Instant::now();
    let mut client = client(now);
    client.request(now, node(Method::GET, now)).unwrap();
    let (first, _) = sent(&mut client).unwrap();
    client.handle(now, &source(SA), &answer(&first, MadStatus::BUSY, &[]));
    assert_eq!((sent(&mut client).is_none(), client.window.limit()), (true, 8));
    let rest = client.poll_timeout().unwrap() - now;
    assert!((268 * MS..340 * MS).contains(&rest), "{rest:?}");
    client.handle(now, &source(SA), &answer(&first, MadStatus::BUSY, &[])); // a copy
    assert_eq!(client.stats().dropped_stray, 1);
    client.handle_timeout(now + rest);
    let (second, _) = sent(&mut client).unwrap();
    assert_ne!(first.mad.tid, second.mad.tid);
    client.handle(now + rest, &source(SA), &answer(&second, MadStatus(0x0301), &[]));
    let rest2 = client.poll_timeout().unwrap() - (now + rest);
    assert!((536 * MS..680 * MS).contains(&rest2), "{rest2:?}: twice as long");
    client.handle_timeout(now + rest + rest2);
    let (third, _) = sent(&mut client).unwrap();
    client.handle(now + rest + rest2, &source(SA), &answer(&third, MadStatus::OK, &node_data()));
    let Some(Event::Answered { answer, .. }) = client.poll_event() else { panic!() };
    assert_eq!((answer.effort.sent, answer.effort.busy), (3, 2));
    assert_eq!(told(&mut client), None);
}

fn redirection(lid: Lid, pkey: PKey) -> Vec<u8> {
    let redirect = Redirect { lid, pkey, qpn: Qpn::truncate(0x42), qkey: QKey(7), ..Redirect::default() };
    ClassPortInfo { redirect, ..ClassPortInfo::default() }.to_bytes().to_vec()
}

#[test]
fn a_redirection_is_followed_by_all() {
    let now = Instant::now();
    let mut client = client(now);
    client.request(now, node(Method::GET, now)).unwrap();
    let (first, _) = sent(&mut client).unwrap();
    let info = redirection(Lid(9), PKey(0x7fff));
    client.handle(now, &source(SA), &answer(&first, MadStatus::REDIRECT, &info));
    let (second, out) = sent(&mut client).unwrap();
    assert_ne!(first.mad.tid, second.mad.tid);
    assert_eq!((out.to.av.dlid, out.to.qpn, out.to.qkey), (Lid(9), Qpn::truncate(0x42), QKey(7)));
    client.handle(now, &source(SA), &answer(&second, MadStatus::OK, &node_data()));
    assert_eq!(told(&mut client), None, "the old SA was not asked this");
    client.handle(now, &source(Lid(9)), &answer(&second, MadStatus::OK, &node_data()));
    assert!(matches!(client.poll_event(), Some(Event::Answered { .. })));
    client.request(now, node(Method::GET, now)).unwrap();
    assert_eq!(sent(&mut client).unwrap().1.to.av.dlid, Lid(9));
    client.set_sa(now, Some(address(SA)), vec![PKey::DEFAULT]);
    assert_eq!(sent(&mut client).unwrap().1.to, address(SA), "forgotten with the SM");
}

#[test]
fn sa_t32_a_redirection_into_another_partition_is_an_error() {
    let now = Instant::now();
    let mut client = client(now);
    client.request(now, node(Method::GET, now)).unwrap();
    let (header, _) = sent(&mut client).unwrap();
    let info = redirection(Lid(9), PKey(0x1234));
    client.handle(now, &source(SA), &answer(&header, MadStatus::REDIRECT, &info));
    let error = failure(&mut client);
    assert_error(&error, &QueryError::Redirect(RedirectFault::Partition(PKey(0x1234))));
    assert!(sent(&mut client).is_none());
}

#[test]
fn sa_t33_a_loop_of_redirections_ends() {
    let now = Instant::now();
    let mut client = client(now);
    client.request(now, node(Method::GET, now)).unwrap();
    let mut asked = Vec::new();
    while let Some((header, out)) = sent(&mut client) {
        asked.push(out.to.av.dlid.0);
        let next = if out.to.av.dlid == SA { Lid(9) } else { SA };
        let info = redirection(next, PKey::DEFAULT);
        client.handle(now, &source(out.to.av.dlid), &answer(&header, MadStatus::REDIRECT, &info));
    }
    assert_eq!(asked, [1, 9, 1, 9]);
    assert_error(&failure(&mut client), &QueryError::Redirect(RedirectFault::TooOften(4)));
}

#[test]
fn sa_t34_many_requests_are_few_on_the_wire() {
    let now = Instant::now();
    let mut client = client(now);
    for _ in 0..4096 {
        client.request(now, node(Method::GET, now)).unwrap();
    }
    let error = client.request(now, node(Method::GET, now)).unwrap_err();
    assert_error(&error, &QueryError::QueueFull { limit: 4096 });
    assert_eq!(client.stats().refused_queue, 1);
    let (mut answered, mut most) = (0, 0);
    loop {
        let batch: Vec<_> = std::iter::from_fn(|| sent(&mut client)).collect();
        most = most.max(batch.len());
        if batch.is_empty() {
            break;
        }
        for (header, _) in batch {
            client.handle(now, &source(SA), &answer(&header, MadStatus::OK, &node_data()));
        }
        answered += std::iter::from_fn(|| client.poll_event()).count();
    }
    assert_eq!((answered, most, client.pending()), (4096, 16, 0));
}

#[test]
fn sa_t35_the_transaction_id_zero_is_left_out() {
    let now = Instant::now();
    let mut client = client(now);
    client.next_tid = u32::MAX - 1;
    let mut tids = Vec::new();
    for _ in 0..3 {
        client.request(now, node(Method::GET, now)).unwrap();
        tids.push(sent(&mut client).unwrap().0.mad.tid.0);
    }
    assert_eq!(tids, [0xffff_ffff, 1, 2]);
}

#[test]
fn sa_t36_a_late_answer_is_dropped() {
    let now = Instant::now();
    let mut client = client(now);
    let id = client.request(now, node(Method::GET, now)).unwrap();
    let (header, _) = sent(&mut client).unwrap();
    client.cancel(now, id);
    client.cancel(now, id);
    client.handle(now, &source(SA), &answer(&header, MadStatus::OK, &node_data()));
    assert_eq!((told(&mut client), client.stats().dropped_stray), (None, 1));
    assert_eq!((client.pending(), client.poll_timeout(), client.under_way), (0, None, 0));
}

#[test]
fn sa_t37_t77_the_upper_half_of_the_transaction_id_is_the_devices() {
    let now = Instant::now();
    let mut client = client(now);
    client.request(now, node(Method::GET, now)).unwrap();
    let (mut header, _) = sent(&mut client).unwrap();
    header.mad.tid = TransactionId(header.mad.tid.0 | 0x0005_0002 << 32);
    client.handle(now, &source(SA), &answer(&header, MadStatus::OK, &node_data()));
    assert!(matches!(client.poll_event(), Some(Event::Answered { .. })));
}

#[test]
fn only_the_sa_answers() {
    let now = Instant::now();
    let mut client = client(now);
    client.request(now, node(Method::GET, now)).unwrap();
    let (header, _) = sent(&mut client).unwrap();
    client.handle(now, &source(Lid(77)), &answer(&header, MadStatus::OK, &node_data()));
    assert_eq!((told(&mut client), client.stats().dropped_stray), (None, 1));
    let mut other = answer(&header, MadStatus::OK, &node_data());
    other[2] = 1; // class version
    client.handle(now, &source(SA), &other);
    other[1..3].copy_from_slice(&[7, 2]); // class
    client.handle(now, &source(SA), &other);
    assert_eq!((told(&mut client), client.stats().dropped_version), (None, 2));
    let mut request = whole(&header, &[]);
    request[3] = Method::GET.0;
    client.handle(now, &source(SA), &request);
    assert_eq!(client.stats().dropped_request, 1);
}

#[test]
fn without_an_sa_requests_wait_for_one() {
    let now = Instant::now();
    let mut client = Client::new(Config::default(), [1; 32]);
    client.request(now, node(Method::GET, now)).unwrap();
    client.request(now, Request { deadline: now + MS, ..node(Method::GET, now) }).unwrap();
    assert!(sent(&mut client).is_none());
    client.handle_timeout(now + MS);
    assert_error(&failure(&mut client), &QueryError::NoSa);
    client.set_sa(now + MS, Some(address(SA)), Vec::new());
    let (first, _) = sent(&mut client).unwrap();
    // The SM moves: the request starts anew there.
    client.set_sa(now + MS, Some(address(Lid(3))), Vec::new());
    let (second, out) = sent(&mut client).unwrap();
    assert!(first.mad.tid != second.mad.tid && out.to == address(Lid(3)));
}

#[test]
fn sa_t42_segments_again_after_the_answer_get_their_ack() {
    let now = Instant::now();
    let mut client = client(now);
    client.request(now, node(Method::GET_TABLE, now)).unwrap();
    let (header, _) = sent(&mut client).unwrap();
    let header = SaHeader { mad: header.mad.response(MadStatus::OK), attribute_offset: 14, ..header };
    let mut sa = Sender::new(header, [node_data(), vec![0; 4]].concat(), &client.config.rmpp).unwrap();
    let segment = sa.poll_transmit(now).unwrap();
    client.handle(now, &source(SA), &segment);
    let (ack, _) = sent(&mut client).unwrap();
    assert!(matches!(client.poll_event(), Some(Event::Answered { .. })));
    client.handle(now, &source(SA), &segment);
    assert_eq!((sent(&mut client).unwrap().0, told(&mut client)), (ack, None));
    let late = now + Duration::from_secs(11);
    client.handle(late, &source(SA), &segment);
    assert_eq!((sent(&mut client).is_none(), client.stats().dropped_stray), (true, 1));
}

#[test]
fn sa_t55_an_answer_that_stops_half_way_fails_once() {
    let now = Instant::now();
    let mut client = client(now);
    client.request(now, node(Method::GET_TABLE, now)).unwrap();
    let (header, _) = sent(&mut client).unwrap();
    let header = SaHeader { mad: header.mad.response(MadStatus::OK), attribute_offset: 14, ..header };
    let mut sa = Sender::new(header, vec![0; 1120], &client.config.rmpp).unwrap();
    client.handle(now, &source(SA), &sa.poll_transmit(now).unwrap());
    assert!(sent(&mut client).is_some());
    let at = client.poll_timeout().unwrap();
    assert_eq!(at, now + Duration::from_secs(40));
    client.handle_timeout(at);
    assert_error(&failure(&mut client), &QueryError::Transfer(RmppError::TimedOut { segments: 1 }));
    assert_eq!(sent(&mut client).unwrap().0.rmpp.status, RmppStatus::TIME_TOO_LONG);
    assert_eq!((client.pending(), client.poll_timeout()), (0, None));
}

#[test]
fn sa_t70_sa_t71_every_report_is_acknowledged_and_told_once() {
    let now = Instant::now();
    let mut client = client(now);
    let mad =
        MadHeader::new(MgmtClass::SA, 2, Method::REPORT, AttributeId::NOTICE, TransactionId(0x02da_b001));
    let mut notice = [0; 80];
    notice[..6].copy_from_slice(&[0x83, 0, 0, 4, 0, 66]);
    let report = whole(&SaHeader::new(mad), &notice);
    for _ in 0..3 {
        client.handle(now, &source(SA), &report);
        let (header, out) = sent(&mut client).unwrap();
        assert_eq!((header.mad.method, header.mad.tid), (Method(0x86), mad.tid));
        assert_eq!((out.to.av.dlid, &out.mad[56..136]), (SA, &notice[..]));
    }
    let Some(Event::Report { notice, .. }) = client.poll_event() else { panic!() };
    assert_eq!((notice.trap_or_device, told(&mut client)), (66, None));
    assert_eq!((client.stats().reports, client.stats().reports_again), (1, 2));
    // An SA that has started anew counts from the start, too.
    client.set_sa(now, client.home, vec![PKey::DEFAULT]);
    client.handle(now, &source(SA), &report);
    assert!(matches!(client.poll_event(), Some(Event::Report { .. })));
    // What comes much later has the same number by chance.
    client.handle(now + reports::AGE - MS, &source(SA), &report);
    assert!(told(&mut client).is_none());
    client.handle(now + reports::AGE, &source(SA), &report);
    assert!(matches!(client.poll_event(), Some(Event::Report { .. })));
}

#[test]
fn what_cannot_be_asked_is_refused() {
    let now = Instant::now();
    let mut client = client(now);
    let error = client.request(now, Request { method: Method::REPORT, ..node(Method::GET, now) });
    assert_eq!(error.unwrap_err().to_string(), "Report is no request to an SA");
    let error = client.request(now, Request { data: vec![0; 201], ..node(Method::GET, now) });
    assert_error(&error.unwrap_err(), &QueryError::Transfer(RmppError::TooLong { limit: 200 }));
    let template = Template::<PathRecord>::new().sl(16u8);
    assert!(matches!(Request::new(Method::GET, template, now), Err(invalid) if invalid.limit == 15));
    assert_eq!((client.pending(), client.stats().requests), (0, 0));
}

#[test]
fn a_whole_answer_in_the_middle_of_a_transfer_leaves_nothing_of_it() {
    let now = Instant::now();
    let mut client = client(now);
    client.request(now, node(Method::GET_TABLE, now)).unwrap();
    let (request, _) = sent(&mut client).unwrap();
    let header = SaHeader { mad: request.mad.response(MadStatus::OK), attribute_offset: 14, ..request };
    let mut sa = Sender::new(header, vec![0; 1120], &client.config.rmpp).unwrap();
    client.handle(now, &source(SA), &sa.poll_transmit(now).unwrap());
    client.handle(now, &source(SA), &answer(&header, MadStatus::OK, &node_data()));
    assert!(matches!(client.poll_event(), Some(Event::Answered { answer, .. }) if !answer.complete));
    assert!(client.finished.is_empty() && client.poll_timeout().is_none());
}
