//! One transfer, rule by rule.

use std::time::{Duration, Instant};

use ibwire::TransactionId;
use ibwire::mad::{AttributeId, MadHeader, Method, MgmtClass};
use proptest::prelude::*;
use rand::{RngExt, SeedableRng};

use super::*;

fn header(method: Method) -> SaHeader {
    let mad = MadHeader::new(
        MgmtClass::SA,
        SaHeader::CLASS_VERSION,
        method,
        AttributeId(0x35),
        TransactionId(0x0002_0000_0007),
    );
    SaHeader { attribute_offset: 8, component_mask: 0b1000, sm_key: 0x1122, ..SaHeader::new(mad) }
}

fn answer() -> SaHeader {
    header(Method(0x92))
}

fn parts(mad: &Mad) -> (SaHeader, [u8; SaHeader::DATA_LEN]) {
    let (head, data) = mad.split_at(SaHeader::LEN);
    (SaHeader::parse(head).unwrap(), data.try_into().unwrap())
}

fn message(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8).collect()
}

fn sender(len: usize) -> Sender {
    Sender::new(answer(), message(len), &RmppConfig::default()).unwrap()
}

fn receiver(now: Instant) -> Receiver {
    Receiver::new(now, &RmppConfig::default())
}

/// All segments of a message, sent as if every ACK opened the whole window.
fn segments(len: usize) -> Vec<Mad> {
    let (now, mut sender) = (Instant::now(), sender(len));
    let mut all = vec![sender.poll_transmit(now).unwrap()];
    if sender.segments() > 1 {
        assert_eq!(sender.handle(now, &ack(1, u32::MAX)), Sent::Going);
    }
    all.extend(std::iter::from_fn(|| sender.poll_transmit(now)));
    all
}

fn ack(segment: u32, window: u32) -> SaHeader {
    parts(&control(&answer(), RmppType::ACK, RmppStatus::OK, segment, window)).0
}

fn give(receiver: &mut Receiver, now: Instant, mad: &Mad) -> Received {
    let (header, data) = parts(mad);
    receiver.handle(now, &header, &data)
}

/// Segment and new window of an ACK.
fn edge(mad: Option<Mad>) -> Option<(u32, u32)> {
    let (header, data) = parts(&mad?);
    assert_eq!((header.rmpp.kind, header.rmpp.flags), (RmppType::ACK, RmppHeader::ACTIVE));
    assert_eq!(data, [0; SaHeader::DATA_LEN]);
    Some((header.rmpp.segment, header.rmpp.length_or_window))
}

/// What a receiver without a result sends back.
fn going(received: Received) -> Option<(u32, u32)> {
    match received {
        Received::Going(mad) => edge(mad),
        other => panic!("{other:?}"),
    }
}

fn aborts(received: &Received, expected: RmppStatus) -> bool {
    let Received::Failed(RmppError::Broken(status), Some(mad)) = received else { return false };
    let (header, _) = parts(mad);
    *status == expected && header.rmpp.kind == RmppType::ABORT && header.rmpp.status == expected
}

#[test]
fn payload_lengths_count_the_header_in_every_segment() {
    let lengths = |len| {
        let all = segments(len);
        let length = |mad: &Mad| parts(mad).0.rmpp.length_or_window;
        (all.len(), length(&all[0]), length(all.last().unwrap()))
    };
    assert_eq!(lengths(672), (4, 752, 92));
    assert_eq!(lengths(384), (2, 424, 204));
    assert_eq!(lengths(2576), (13, 2836, 196));
    assert_eq!(lengths(4248), (22, 4688, 68));
    assert_eq!(lengths(33856), (170, 37256, 76));
    assert_eq!(lengths(200), (1, 220, 220));
    assert_eq!(lengths(201), (2, 241, 21));
    assert_eq!(lengths(0), (1, 20, 20));
    let flags: Vec<_> = segments(601).iter().map(|mad| parts(mad).0.rmpp.flags).collect();
    assert_eq!(flags, [3, 1, 1, 5]);
}

#[test]
fn sa_t47_windows_roll_as_they_are_announced() {
    let now = Instant::now();
    let config = RmppConfig { window: 4, ..RmppConfig::default() };
    let mut receiver = Receiver::new(now, &config);
    let mut sender = Sender::new(answer(), message(2576), &config).unwrap();
    let (mut acks, mut flights) = (Vec::new(), Vec::new());
    loop {
        let flight: Vec<_> = std::iter::from_fn(|| sender.poll_transmit(now)).collect();
        flights.push(flight.len());
        for mad in flight {
            match give(&mut receiver, now, &mad) {
                Received::Going(None) => {}
                Received::Going(Some(mad)) => {
                    acks.push(edge(Some(mad)).unwrap());
                    assert_eq!(sender.handle(now, &parts(&mad).0), Sent::Going);
                }
                Received::Done(data, mad) => {
                    acks.push(edge(Some(mad)).unwrap());
                    assert_eq!(data, message(2576));
                    assert_eq!(sender.handle(now, &parts(&mad).0), Sent::Done);
                    assert_eq!(acks, [(1, 5), (5, 9), (9, 13), (13, 17)]);
                    assert_eq!(flights, [1, 4, 4, 4]);
                    return;
                }
                Received::Failed(error, _) => panic!("{error}"),
            }
        }
    }
}

#[test]
fn sa_t38_an_impossible_last_length_is_refused() {
    for length in [0, 19, 221, u32::MAX] {
        let now = Instant::now();
        let (mut receiver, all) = (receiver(now), segments(300));
        give(&mut receiver, now, &all[0]);
        let (mut header, data) = parts(&all[1]);
        header.rmpp.length_or_window = length;
        assert!(aborts(&receiver.handle(now, &header, &data), RmppStatus::INCONSISTENT_LENGTH), "{length}");
    }
}

#[test]
fn sa_t39_sa_t40_the_first_length_is_not_believed() {
    for length in [0, 1, u32::MAX] {
        let now = Instant::now();
        let (mut receiver, all) = (receiver(now), segments(300));
        let (mut header, data) = parts(&all[0]);
        header.rmpp.length_or_window = length;
        assert_eq!(going(receiver.handle(now, &header, &data)), Some((1, 65)));
        assert!(receiver.held() < 4096);
        let Received::Done(data, _) = give(&mut receiver, now, &all[1]) else { panic!() };
        assert_eq!(data, message(300));
    }
}

#[test]
fn sa_t41_segments_out_of_order_are_one_message() {
    let now = Instant::now();
    let (mut receiver, all) = (receiver(now), segments(600));
    assert_eq!(going(give(&mut receiver, now, &all[0])), Some((1, 65)));
    assert_eq!(going(give(&mut receiver, now, &all[2])), None);
    assert_eq!(going(give(&mut receiver, now, &all[2])), None, "a copy above what is acknowledged");
    let Received::Done(data, mad) = give(&mut receiver, now, &all[1]) else { panic!() };
    assert_eq!((data, edge(Some(mad))), (message(600), Some((3, 65))));
}

/// What stands behind the end is none of the message: it comes before the end is known, or afterwards.
#[test]
fn segments_behind_the_last_are_none() {
    let now = Instant::now();
    let all = segments(600);
    let mut behind = all[1];
    behind[28..32].copy_from_slice(&4u32.to_be_bytes());
    let mut receiver = receiver(now);
    assert_eq!(going(give(&mut receiver, now, &all[0])), Some((1, 65)));
    assert_eq!(going(give(&mut receiver, now, &all[2])), None, "the last");
    assert_eq!(going(give(&mut receiver, now, &behind)), None);
    let Received::Done(data, _) = give(&mut receiver, now, &all[1]) else { panic!("it is whole") };
    assert_eq!(data, message(600));

    let mut receiver = self::receiver(now);
    for mad in [&all[0], &behind] {
        give(&mut receiver, now, mad);
    }
    assert!(aborts(&give(&mut receiver, now, &all[2]), RmppStatus::INCONSISTENT_LENGTH));
}

#[test]
fn sa_t42_the_last_window_again_is_acknowledged_and_not_delivered() {
    let now = Instant::now();
    let (mut receiver, all) = (receiver(now), segments(300));
    give(&mut receiver, now, &all[0]);
    assert!(matches!(give(&mut receiver, now, &all[1]), Received::Done(..)));
    assert!(receiver.is_finished());
    assert_eq!(going(give(&mut receiver, now, &all[1])), Some((2, 65)));
    assert_eq!(receiver.poll_timeout(), now + Duration::from_secs(10));
}

#[test]
fn sa_t43_sa_t44_the_first_segment_again_is_acknowledged_again() {
    let now = Instant::now();
    let (mut receiver, all) = (receiver(now), segments(900));
    assert_eq!(going(give(&mut receiver, now, &all[0])), Some((1, 65)));
    assert_eq!(going(give(&mut receiver, now, &all[1])), None);
    assert_eq!(going(give(&mut receiver, now, &all[0])), Some((1, 65)));
    assert_eq!(receiver.segments(), 2);

    let mut sender = sender(900);
    sender.poll_transmit(now).unwrap();
    let later = now + Duration::from_secs(2);
    assert_eq!(sender.poll_timeout(), Some(later));
    assert_eq!(sender.handle_timeout(later), Sent::Going);
    assert_eq!(parts(&sender.poll_transmit(later).unwrap()).0.rmpp.segment, 1);
}

#[test]
fn sa_t45_the_peer_can_break_off() {
    let now = Instant::now();
    let all = segments(600);
    for (kind, status, expected) in [
        (RmppType::ABORT, RmppStatus::UNSPECIFIED, RmppError::Aborted(RmppStatus::UNSPECIFIED)),
        (RmppType::STOP, RmppStatus::RESOURCES_EXHAUSTED, RmppError::Stopped),
    ] {
        let mut receiver = receiver(now);
        give(&mut receiver, now, &all[0]);
        let (mut header, data) = parts(&all[1]);
        (header.rmpp.kind, header.rmpp.status) = (kind, status);
        assert_eq!(receiver.handle(now, &header, &data), Received::Failed(expected, None));
        let mut sender = sender(600);
        sender.poll_transmit(now);
        assert_eq!(sender.handle(now, &header), Sent::Failed(expected, None));
        header.rmpp.status = RmppStatus(7);
        assert!(aborts(&receiver.handle(now, &header, &data), RmppStatus::ILLEGAL_STATUS));
        let Sent::Failed(RmppError::Broken(RmppStatus::ILLEGAL_STATUS), Some(_)) =
            sender.handle(now, &header)
        else {
            panic!()
        };
    }
}

#[test]
fn sa_t46_what_goes_back_has_the_other_direction() {
    let now = Instant::now();
    let all = segments(600);
    let (mut header, data) = parts(&all[0]);
    header.rmpp.resp_time = 18;
    let Received::Going(Some(mad)) = receiver(now).handle(now, &header, &data) else { panic!() };
    let (ack, _) = parts(&mad);
    assert_eq!((ack.mad.method, ack.rmpp.resp_time), (Method::GET_TABLE, 18));
    assert_eq!((ack.mad.tid, ack.sm_key, ack.attribute_offset), (header.mad.tid, 0x1122, 8));
    assert_eq!(ack.component_mask, header.component_mask);
}

#[test]
fn sa_t48_a_window_that_shrinks_is_an_old_one() {
    let (now, mut sender) = (Instant::now(), sender(2000));
    sender.poll_transmit(now);
    assert_eq!(sender.handle(now, &ack(1, 9)), Sent::Going);
    assert_eq!(sender.handle(now, &ack(1, 4)), Sent::Going);
    assert_eq!(std::iter::from_fn(|| sender.poll_transmit(now)).count(), 8);
    let Sent::Failed(RmppError::Broken(RmppStatus::WINDOW_TOO_SMALL), Some(_)) =
        sender.handle(now, &ack(5, 4))
    else {
        panic!()
    };
}

#[test]
fn sa_t49_what_was_not_sent_cannot_be_acknowledged() {
    let (now, mut sender) = (Instant::now(), sender(2000));
    sender.poll_transmit(now);
    let Sent::Failed(RmppError::Broken(RmppStatus::SEGMENT_TOO_BIG), Some(mad)) =
        sender.handle(now, &ack(2, 9))
    else {
        panic!()
    };
    assert_eq!(parts(&mad).0.rmpp.status, RmppStatus::SEGMENT_TOO_BIG);
}

/// Another version of RMPP is refused in the other direction, too.
#[test]
fn an_acknowledgement_of_another_version_ends_the_transfer() {
    let (now, mut sender) = (Instant::now(), sender(2000));
    sender.poll_transmit(now);
    let mut other = ack(1, 9);
    other.rmpp.version = 2;
    let Sent::Failed(RmppError::Broken(RmppStatus::UNSUPPORTED_VERSION), Some(mad)) =
        sender.handle(now, &other)
    else {
        panic!()
    };
    assert_eq!(parts(&mad).0.rmpp.status, RmppStatus::UNSUPPORTED_VERSION);
}

/// Not at once, whatever it is told.
#[test]
fn a_sender_waits_before_it_repeats() {
    let now = Instant::now();
    let config = RmppConfig { resend: Duration::ZERO, ..RmppConfig::default() };
    let mut sender = Sender::new(answer(), message(600), &config).unwrap();
    sender.poll_transmit(now);
    assert_eq!(sender.poll_timeout(), Some(now + RmppConfig::SHORTEST_RESEND));
}

/// Each position has all the retries, and what was sent already is not sent again for an ACK.
#[test]
fn progress_renews_the_retries_and_repeats_nothing() {
    let now = Instant::now();
    let config = RmppConfig { retries: 2, ..RmppConfig::default() };
    let mut sender = Sender::new(answer(), message(2000), &config).unwrap();
    let mut at = now;
    for acknowledged in 0..3 {
        for _ in 0..2 {
            while sender.poll_transmit(at).is_some() {}
            at = sender.poll_timeout().unwrap();
            assert_eq!(sender.handle_timeout(at), Sent::Going, "{acknowledged}");
        }
        while sender.poll_transmit(at).is_some() {}
        let edge = acknowledged + 1;
        assert_eq!(sender.handle(at, &ack(edge, edge + 3)), Sent::Going);
        let sent: Vec<_> = std::iter::from_fn(|| sender.poll_transmit(at)).collect();
        let first = parts(&sent[0]).0.rmpp.segment;
        assert_eq!((first, sent.len()), if edge == 1 { (2, 3) } else { (edge + 3, 1) });
    }
}

#[test]
fn a_window_that_stays_closed_ends_the_transfer() {
    let mut now = Instant::now();
    let mut sender = sender(2000);
    while sender.poll_transmit(now).is_some() {}
    assert_eq!(sender.handle(now, &ack(1, 5)), Sent::Going);
    while sender.poll_transmit(now).is_some() {}
    assert_eq!(sender.handle(now, &ack(5, 5)), Sent::Going);
    for _ in 0..7 {
        now = sender.poll_timeout().unwrap();
        assert_eq!((sender.handle_timeout(now), sender.poll_transmit(now)), (Sent::Going, None));
    }
    now = sender.poll_timeout().unwrap();
    let Sent::Failed(error, Some(mad)) = sender.handle_timeout(now) else { panic!() };
    assert_eq!(error, RmppError::Unacknowledged { segment: 6 });
    assert_eq!(parts(&mad).0.rmpp.status, RmppStatus::TOO_MANY_RETRIES);
}

#[test]
fn sa_t56_no_more_is_under_way_than_there_are_receives() {
    // Four receives; what comes while all are taken is lost, and what is lost comes again.
    let mut now = Instant::now();
    let config = RmppConfig { window: 4, ..RmppConfig::default() };
    let mut receiver = Receiver::new(now, &config);
    let mut sender = Sender::new(answer(), message(5000), &config).unwrap();
    let (mut rounds, mut lost) = (0, 0);
    loop {
        let flight: Vec<_> = std::iter::from_fn(|| sender.poll_transmit(now)).collect();
        assert!(flight.len() <= 4);
        rounds += 1;
        // Every third flight meets receives that another transfer has taken.
        let room = if rounds % 3 == 0 { 2 } else { 4 };
        lost += flight.len().saturating_sub(room);
        let mut moved = false;
        for mad in flight.iter().take(room) {
            match give(&mut receiver, now, mad) {
                Received::Going(None) => {}
                Received::Going(Some(ack)) => {
                    assert_eq!(sender.handle(now, &parts(&ack).0), Sent::Going);
                    moved = true;
                }
                Received::Done(data, ack) => {
                    assert_eq!((data, sender.handle(now, &parts(&ack).0)), (message(5000), Sent::Done));
                    assert!(lost > 4 && receiver.held() == 0);
                    return;
                }
                failed @ Received::Failed(..) => panic!("{failed:?}"),
            }
        }
        if !moved {
            now = sender.poll_timeout().unwrap();
            assert_eq!(sender.handle_timeout(now), Sent::Going);
        }
    }
}

#[test]
fn sa_t50_segments_beyond_the_window_are_dropped() {
    let now = Instant::now();
    let mut receiver = Receiver::new(now, &RmppConfig { window: 2, ..RmppConfig::default() });
    let all = segments(2000);
    assert_eq!(going(give(&mut receiver, now, &all[1])), None, "there is no first segment yet");
    assert_eq!(going(give(&mut receiver, now, &all[0])), Some((1, 3)));
    assert_eq!(going(give(&mut receiver, now, &all[3])), None);
    assert_eq!(receiver.segments(), 1);
    assert_eq!(going(give(&mut receiver, now, &all[1])), None);
    assert_eq!(going(give(&mut receiver, now, &all[2])), Some((3, 5)));
}

#[test]
fn sa_t51_a_turn_around_opens_a_window_of_one() {
    let request = header(Method::GET_MULTI);
    let (turn, _) = parts(&turn_around(&request));
    assert_eq!((turn.mad.method, turn.rmpp.segment, turn.rmpp.length_or_window), (Method::GET_MULTI, 0, 1));
    // A sender takes it before and after it has begun, and needs it for nothing.
    let (now, mut sender) = (Instant::now(), sender(600));
    assert_eq!(sender.handle(now, &ack(0, 1)), Sent::Going);
    assert!(sender.poll_transmit(now).is_some() && sender.poll_transmit(now).is_none());
    assert_eq!(sender.handle(now, &ack(0, 4)), Sent::Going, "it may open more than that");
    assert_eq!(std::iter::from_fn(|| sender.poll_transmit(now)).count(), 2);
}

#[test]
fn sa_t55_a_transfer_that_never_ends_is_given_up() {
    let now = Instant::now();
    let (mut receiver, all) = (receiver(now), segments(600));
    give(&mut receiver, now, &all[0]);
    assert_eq!(receiver.poll_timeout(), now + Duration::from_secs(40));
    let (error, mad) = receiver.time_out(&parts(&all[0]).0);
    assert_eq!(error, RmppError::TimedOut { segments: 1 });
    assert_eq!(parts(&mad).0.rmpp.status, RmppStatus::TIME_TOO_LONG);

    let mut sender = sender(600);
    let mut at = now;
    for _ in 0..=7 {
        assert!(sender.poll_transmit(at).is_some());
        at = sender.poll_timeout().unwrap();
        if let Sent::Failed(error, mad) = sender.handle_timeout(at) {
            assert_eq!(error, RmppError::Unacknowledged { segment: 1 });
            assert_eq!(parts(&mad.unwrap()).0.mad.method, Method(0x92));
            assert_eq!(at - now, Duration::from_secs(16));
            return;
        }
    }
    panic!("it goes on");
}

#[test]
fn rules_of_single_segments() {
    let now = Instant::now();
    let all = segments(600);
    let changed = |change: fn(&mut SaHeader), status| {
        let mut receiver = receiver(now);
        give(&mut receiver, now, &all[0]);
        let (mut header, data) = parts(&all[1]);
        change(&mut header);
        assert!(aborts(&receiver.handle(now, &header, &data), status), "{status:?}");
    };
    changed(|header| header.rmpp.flags |= RmppHeader::FIRST, RmppStatus::INCONSISTENT_SEGMENT);
    changed(|header| header.rmpp.segment = 1, RmppStatus::INCONSISTENT_SEGMENT);
    changed(|header| header.rmpp.status = RmppStatus(3), RmppStatus::ILLEGAL_STATUS);
    changed(|header| header.rmpp.version = 2, RmppStatus::UNSUPPORTED_VERSION);
    changed(|header| header.rmpp.kind = RmppType(9), RmppStatus::BAD_TYPE);
    let mut receiver = receiver(now);
    let Received::Done(data, mad) = give(&mut receiver, now, &segments(128)[0]) else { panic!() };
    assert_eq!((data.len(), edge(Some(mad))), (128, Some((1, 1))));
}

#[test]
fn messages_are_bounded() {
    let now = Instant::now();
    let config = RmppConfig { max_len: 400, ..RmppConfig::default() };
    let mut receiver = Receiver::new(now, &config);
    let all = segments(600);
    give(&mut receiver, now, &all[0]);
    give(&mut receiver, now, &all[1]);
    let Received::Failed(error, Some(_)) = give(&mut receiver, now, &all[2]) else { panic!() };
    assert_eq!(error.to_string(), "the message is longer than 400 bytes");
    assert_eq!(Sender::new(answer(), message(401), &config).unwrap_err(), RmppError::TooLong { limit: 400 });
}

/// A network of one transfer: MADs with the time at which they arrive, in any order.
struct Network {
    rng: rand::rngs::ChaCha8Rng,
    loss: u32,
    under_way: Vec<(Instant, bool, Mad)>,
}

impl Network {
    fn carry(&mut self, now: Instant, to_receiver: bool, mad: Mad) {
        let mut random = |below: u32| self.rng.random_range(0..below);
        let copies = if random(100) < self.loss { 0 } else { 1 + u32::from(random(100) < 5) };
        for _ in 0..copies {
            let delay = Duration::from_micros(u64::from(random(3000)));
            self.under_way.push((now + delay, to_receiver, mad));
        }
    }

    fn next(&mut self) -> Option<(Instant, bool, Mad)> {
        let first = self.under_way.iter().enumerate().min_by_key(|(_, (at, ..))| *at)?.0;
        Some(self.under_way.swap_remove(first))
    }
}

/// Runs a transfer until both ends are done; what the receiver delivered.
fn transfer(len: usize, window: u32, loss: u32, seed: u64) -> Result<Vec<u8>, TestCaseError> {
    let mut now = Instant::now();
    let config = RmppConfig { window, total: Duration::from_secs(4000), ..RmppConfig::default() };
    let rng = rand::rngs::ChaCha8Rng::seed_from_u64(seed);
    let mut network = Network { rng, loss, under_way: Vec::new() };
    let (mut sender, mut receiver) =
        (Sender::new(answer(), message(len), &config).unwrap(), Receiver::new(now, &config));
    let (mut delivered, mut done) = (None, false);
    for _ in 0..2_000_000 {
        while let Some(mad) = sender.poll_transmit(now).filter(|_| !done) {
            network.carry(now, true, mad);
        }
        if done && network.under_way.is_empty() {
            return delivered.ok_or_else(|| TestCaseError::fail("acknowledged, not delivered"));
        }
        let timer = sender.poll_timeout().filter(|_| !done);
        let arrival = network.under_way.iter().map(|(at, ..)| *at).min();
        if arrival.is_none_or(|arrival| timer.is_some_and(|timer| timer < arrival)) {
            now = now.max(timer.ok_or_else(|| TestCaseError::fail("nothing moves"))?);
            if let Sent::Failed(error, _) = sender.handle_timeout(now) {
                return Err(TestCaseError::reject(error.to_string()));
            }
            continue;
        }
        let Some((at, to_receiver, mad)) = network.next() else { unreachable!("there is an arrival") };
        now = now.max(at);
        if !to_receiver {
            match sender.handle(now, &parts(&mad).0) {
                Sent::Going => {}
                Sent::Done => done = true,
                Sent::Failed(error, _) => return Err(TestCaseError::fail(error.to_string())),
            }
            continue;
        }
        match give(&mut receiver, now, &mad) {
            Received::Going(back) => back.into_iter().for_each(|mad| network.carry(now, false, mad)),
            Received::Done(data, mad) => {
                prop_assert!(delivered.replace(data).is_none(), "delivered twice");
                network.carry(now, false, mad);
            }
            Received::Failed(error, _) => return Err(TestCaseError::fail(error.to_string())),
        }
    }
    Err(TestCaseError::fail("it does not end"))
}

proptest! {
    #[test]
    fn a_message_arrives_once_and_whole(
        len in 0usize..20_000,
        window in 1u32..100,
        loss in 0u32..25,
        seed in any::<u64>(),
    ) {
        prop_assert_eq!(transfer(len, window, loss, seed)?, message(len));
    }

    #[test]
    fn any_mads_are_survived(mads in prop::collection::vec(prop::collection::vec(any::<u8>(), 256), 1..40)) {
        let now = Instant::now();
        let (mut receiver, mut sender) = (receiver(now), sender(3000));
        for bytes in mads {
            let mut mad: Mad = bytes.try_into().unwrap();
            (mad[24], mad[25], mad[27]) = (1, mad[25] % 5, mad[27] & 0x80);
            mad[28..31].fill(0);
            let (header, data) = parts(&mad);
            let _received = receiver.handle(now, &header, &data);
            let _sent = (sender.poll_transmit(now), sender.handle(now, &header));
            prop_assert!(receiver.held() <= 4 * 64 * 256 + 2 * 256 * 200, "{}", receiver.held());
        }
    }
}
