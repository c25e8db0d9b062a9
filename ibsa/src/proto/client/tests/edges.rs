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
        qpn: Qpn::GSI,
        qkey: QKey::GSI,
        ..Redirect::default()
    };
    let info = ClassPortInfo { redirect, ..ClassPortInfo::default() }.to_bytes();
    client.handle(now, &source(SA), &answer(&header, MadStatus::REDIRECT, &info));
    let (_, out) = sent(&mut client).unwrap();
    let grh = out.to.av.grh.unwrap();
    assert_eq!((out.to.av.dlid, grh.dgid), (SA, gid));
    assert_eq!((grh.flow_label.get(), grh.traffic_class, grh.hop_limit), (0x12345, 7, 0xff));
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
    assert_eq!(client.reports.len(), REPORTS);
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
