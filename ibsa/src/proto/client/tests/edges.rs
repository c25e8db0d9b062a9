//! What happens at the bounds.

use super::*;
use ibwire::FlowLabel;

#[test]
fn sa_t32_no_partition_is_not_one_that_the_port_has() {
    let now = Instant::now();
    let mut client = client(now);
    client.set_sa(now, Some(address(SA)), vec![PKey::DEFAULT, PKey(0)]);
    client.request(now, node(Method::GET, now)).unwrap();
    let (header, _) = sent(&mut client).unwrap();
    client.handle(now, &source(SA), &answer(&header, MadStatus::REDIRECT, &redirection(Lid(9), PKey(0))));
    assert_error(&failure(&mut client), &QueryError::Redirect(RedirectFault::Partition(PKey(0))));
}

/// By a GID alone the way leads through the SA's own LID.
#[test]
fn a_redirection_to_a_gid_has_its_route() {
    let now = Instant::now();
    let mut client = client(now);
    client.request(now, node(Method::GET, now)).unwrap();
    let (header, _) = sent(&mut client).unwrap();
    let gid = Gid::link_local(Guid(9));
    let redirect = Redirect {
        gid,
        pkey: PKey::DEFAULT,
        flow_label: FlowLabel::truncate(0x12345),
        traffic_class: 7,
        sl: ServiceLevel::truncate(3),
        qpn: Qpn::GSI,
        qkey: QKey::GSI,
        ..Redirect::default()
    };
    let info = ClassPortInfo { redirect, ..ClassPortInfo::default() }.to_bytes();
    client.handle(now, &source(SA), &answer(&header, MadStatus::REDIRECT, &info));
    let (_, out) = sent(&mut client).unwrap();
    let grh = out.to.av.grh.unwrap();
    assert_eq!((out.to.av.dlid, grh.dgid, out.to.av.sl.get()), (SA, gid, 3));
    assert_eq!((grh.flow_label.get(), grh.traffic_class, grh.hop_limit), (0x12345, 7, 0xff));
}

/// What the SA says of itself is an answer, and where all further requests go (spec/sa.md 7.3).
#[test]
fn class_port_info_says_where_the_sa_is_served() {
    let now = Instant::now();
    let mut client = client(now);
    let mut asked_at = |info: &[u8]| {
        let wanted = Template::<ClassPortInfo>::new();
        client
            .request(now, Request::new(Method::GET, wanted, now + Duration::from_secs(60)).unwrap())
            .unwrap();
        let (header, out) = sent(&mut client).unwrap();
        client.handle(now, &source(out.to.av.dlid), &answer(&header, MadStatus::OK, info));
        assert!(matches!(client.poll_event(), Some(Event::Answered { .. })));
        let stats = client.stats();
        (out.to.av.dlid, out.to.qpn, stats.redirected, stats.refused_redirect)
    };
    let nowhere = ClassPortInfo::default().to_bytes();
    assert_eq!(asked_at(&nowhere), (SA, Qpn::GSI, 0, 0));
    assert_eq!(
        asked_at(&redirection(Lid(9), PKey(0x1234))),
        (SA, Qpn::GSI, 0, 1),
        "not into a strange partition"
    );
    assert_eq!(asked_at(&redirection(Lid(9), PKey::DEFAULT)), (SA, Qpn::GSI, 1, 1));
    assert_eq!(asked_at(&nowhere), (Lid(9), Qpn::truncate(0x42), 1, 1));
    client.set_sa(now, Some(address(SA)), vec![PKey::DEFAULT]);
    client.request(now, node(Method::GET, now)).unwrap();
    assert_eq!(sent(&mut client).unwrap().1.to, address(SA), "forgotten with the SM");
}

/// Copies are known among the last 64 notices, and no more is kept.
#[test]
fn sa_t70_old_reports_are_forgotten() {
    let now = Instant::now();
    let mut client = client(now);
    let mut report = |tid| {
        let mad = MadHeader::new(MgmtClass::SA, 2, Method::REPORT, AttributeId::NOTICE, TransactionId(tid));
        client.handle(now, &source(SA), &whole(&SaHeader::new(mad), &[0; 80]));
        client.poll_event().is_some()
    };
    assert!((0..65).all(&mut report), "all are new");
    assert!(!report(64) && !report(1), "copies");
    assert!(report(0), "too long ago");
}

/// Silence halves a window once, and leaves a place for one.
#[test]
fn a_window_of_one_stays_one() {
    let (now, span) = (Instant::now(), Duration::from_secs(1));
    let mut window = Window::new(4);
    for at in [0, 999, 1000] {
        window.overloaded(now + at * MS, span);
    }
    assert_eq!(window.limit(), 1, "halved twice: what shows within the second is the same trouble");
    let mut window = Window::new(4);
    window.overloaded(now, span);
    window.overloaded(now + span - MS, span);
    assert_eq!(window.limit(), 2);
    for n in 1..9 {
        window.overloaded(now + 2 * n * span, span);
    }
    assert_eq!(window.limit(), 1);
    for _ in 0..100 {
        window.answered();
    }
    assert_eq!(window.limit(), 4);
}

/// Takes what goes out until a request fails; how often it was sent.
fn sends_until_it_fails(client: &mut Client) -> usize {
    let mut count = 0;
    loop {
        count += std::iter::from_fn(|| sent(client)).count();
        if let Some(event) = client.poll_event() {
            assert!(matches!(event, Event::Failed { error: QueryError::Silent(_), .. }), "{event:?}");
            return count;
        }
        let at = client.poll_timeout().unwrap();
        client.handle_timeout(at);
    }
}

/// Silence of one SA is not held against another, and BUSY is an answer.
#[test]
fn sa_t31_tries_are_counted_from_the_last_answer_of_an_sa() {
    let now = Instant::now();
    let wanted = || Request { deadline: now + Duration::from_secs(10_000), ..node(Method::GET, now) };
    for is_busy in [false, true] {
        let mut client = client(now);
        client.request(now, wanted()).unwrap();
        for _ in 0..3 {
            let at = client.poll_timeout().unwrap();
            client.handle_timeout(at);
        }
        let last = std::iter::from_fn(|| sent(&mut client)).last().unwrap().0;
        if is_busy {
            client.handle(now, &source(SA), &answer(&last, MadStatus::BUSY, &[]));
        } else {
            client.set_sa(now, Some(address(Lid(7))), vec![PKey::DEFAULT]);
        }
        assert_eq!(sends_until_it_fails(&mut client), 5, "busy: {is_busy}");
    }
}

#[test]
fn sa_t31_rests_end_at_their_longest() {
    let mut now = Instant::now();
    let config = Config { max_busy_rest: Duration::from_secs(2), ..Config::default() };
    let mut client = Client::new(config, [7; 32]);
    client.set_sa(now, Some(address(SA)), vec![PKey::DEFAULT]);
    let request = Request { deadline: now + Duration::from_secs(10_000), ..node(Method::GET, now) };
    client.request(now, request).unwrap();
    let mut rests = Vec::new();
    for _ in 0..40 {
        let (header, _) = sent(&mut client).unwrap();
        client.handle(now, &source(SA), &answer(&header, MadStatus::BUSY, &[]));
        let at = client.poll_timeout().unwrap();
        rests.push((at - now).as_millis());
        now = at;
        client.handle_timeout(now);
    }
    assert!(rests[10..].iter().all(|rest| (2000..=2500).contains(rest)), "{rests:?}");
    assert!(rests[10..].iter().any(|rest| *rest != 2000), "by chance a little longer");
}

/// A table takes no longer than its caller waits.
#[test]
fn sa_t55_a_deadline_ends_a_transfer() {
    let now = Instant::now();
    let mut client = client(now);
    let limit = Duration::from_secs(5);
    client.request(now, Request { deadline: now + limit, ..node(Method::GET_TABLE, now) }).unwrap();
    let (header, _) = sent(&mut client).unwrap();
    let header = SaHeader { mad: header.mad.response(MadStatus::OK), attribute_offset: 14, ..header };
    let mut sa = Sender::new(header, vec![0; 1120], &client.config.rmpp).unwrap();
    client.handle(now, &source(SA), &sa.poll_transmit(now).unwrap());
    assert_eq!(client.poll_timeout(), Some(now + limit));
    client.handle_timeout(now + limit);
    assert_error(&failure(&mut client), &QueryError::Transfer(RmppError::TimedOut { segments: 1 }));
}

/// Of answered transfers no more than so many are remembered.
#[test]
fn sa_t42_finished_transfers_are_bounded() {
    let now = Instant::now();
    let config = Config { finished: 2, ..Config::default() };
    let mut client = Client::new(config, [7; 32]);
    client.set_sa(now, Some(address(SA)), vec![PKey::DEFAULT]);
    let mut segments = Vec::new();
    for _ in 0..3 {
        client.request(now, node(Method::GET_TABLE, now)).unwrap();
        let (header, _) = sent(&mut client).unwrap();
        let header = SaHeader { mad: header.mad.response(MadStatus::OK), attribute_offset: 14, ..header };
        let mut sa = Sender::new(header, vec![0; 112], &client.config.rmpp).unwrap();
        segments.push(sa.poll_transmit(now).unwrap());
        client.handle(now, &source(SA), segments.last().unwrap());
        assert!(sent(&mut client).is_some() && told(&mut client).is_some());
    }
    for (segment, has_ack) in segments.iter().zip([false, true, true]) {
        client.handle(now, &source(SA), segment);
        assert_eq!(sent(&mut client).is_some(), has_ack);
    }
    assert_eq!(client.stats().dropped_stray, 1);
}

/// Only who asks for several paths is answered with another attribute than he asked for.
#[test]
fn sa_t11_no_other_question_is_answered_with_paths() {
    let now = Instant::now();
    let mut client = client(now);
    client.request(now, node(Method::GET, now)).unwrap();
    let (mut header, _) = sent(&mut client).unwrap();
    header.mad.attribute = PathRecord::ATTRIBUTE;
    client.handle(now, &source(SA), &answer(&header, MadStatus::OK, &node_data()));
    assert_eq!((told(&mut client), client.stats().dropped_mismatch), (None, 1));
}
