use ibwire::Psn;

use super::*;

const PERIOD: Duration = Duration::from_secs(4);

/// Looks at each due time until `end` seconds, with what `sign` gives at that time; gives the times, in seconds, and what
/// came of it unless the peer was heard.
fn run(end: u64, sign: impl Fn(Instant, u64) -> Sign) -> Vec<(u64, Verdict)> {
    let start = Instant::now();
    let mut keepalive = Keepalive::new(PERIOD, start);
    let mut verdicts = Vec::new();
    loop {
        let now = keepalive.due;
        let secs = (now - start).as_secs();
        if secs > end {
            return verdicts;
        }
        let verdict = keepalive.judge(sign(start, secs), now);
        if verdict != Verdict::Heard {
            verdicts.push((secs, verdict));
        }
        if matches!(verdict, Verdict::Silent(_)) {
            return verdicts;
        }
        assert!(keepalive.due > now && keepalive.due <= now + PERIOD);
    }
}

#[test]
fn a_silent_peer_is_asked_and_given_up_after_two_periods() {
    let asked = [4, 5, 6, 7].map(|at| (at, Verdict::Ask));
    let silent = [(8, Verdict::Silent(2 * PERIOD))];
    assert_eq!(run(100, |_, _| Sign::At(None)), [&asked[..], &silent].concat());
    assert_eq!(run(100, |start, _| Sign::At(Some(start))), [&asked[..], &silent].concat());
    let none = Sign::Completions { count: 0, may_wait: false };
    assert_eq!(run(100, |_, _| none), [&asked[..], &silent].concat());
}

#[test]
fn a_peer_that_is_heard_is_not_asked() {
    assert_eq!(run(100, |start, secs| Sign::At(Some(start + Duration::from_secs(secs - 1)))), []);
    assert_eq!(run(100, |_, secs| Sign::Completions { count: secs, may_wait: false }), []);
}

#[test]
fn an_idle_peer_is_asked_once_a_period() {
    // It answers at once: what is asked at 4 is answered at 4.
    let answers = |start: Instant, secs: u64| {
        let asked = (secs - 1) / 4 * 4;
        Sign::At((asked > 0).then(|| start + Duration::from_secs(asked)))
    };
    assert_eq!(run(13, answers), [4, 8, 12].map(|at| (at, Verdict::Ask)));
    let completes = |_, secs: u64| Sign::Completions { count: (secs - 1) / 4, may_wait: false };
    assert_eq!(run(13, completes), [4, 8, 12].map(|at| (at, Verdict::Ask)));
}

#[test]
fn where_the_device_does_not_tell_the_bound_counts_from_the_last_look_at_the_latest() {
    // Something completes at 3, which is seen at 4, and then nothing.
    let verdicts = run(100, |_, secs| Sign::Completions { count: u64::from(secs >= 3), may_wait: false });
    assert_eq!(verdicts.last(), Some(&(10, Verdict::Silent(2 * PERIOD))));
}

#[test]
fn a_receiver_that_may_not_be_ready_is_left_to_the_queue_pair() {
    let verdicts = run(100, |_, _| Sign::Completions { count: 0, may_wait: true });
    assert!(verdicts.iter().all(|(_, verdict)| *verdict == Verdict::Ask));
    assert_eq!(verdicts.len(), 97);
}

#[test]
fn who_slept_himself_asks_before_he_gives_up() {
    let start = Instant::now();
    let mut keepalive = Keepalive::new(PERIOD, start);
    assert_eq!(keepalive.judge(Sign::At(None), start + 100 * PERIOD), Verdict::Ask);
    let again = keepalive.due;
    assert_eq!(again, start + 100 * PERIOD + PERIOD / 4);
    assert_eq!(keepalive.judge(Sign::At(None), again), Verdict::Ask);
    assert_eq!(
        keepalive.judge(Sign::At(None), again + PERIOD / 4),
        Verdict::Silent(again - start + PERIOD / 4)
    );
}

#[test]
fn the_acknowledgement_timeout_is_no_more_than_half_a_period() {
    let adapted = |timeout, period: Option<u64>| {
        let timeout = TimeCode::truncate(timeout);
        let rts = Rts {
            sq_psn: Psn::default(),
            timeout,
            retry_count: 7,
            rnr_retry: 7,
            max_rd_atomic: 1,
            alternate: None,
        };
        adapt(rts, period.map(Duration::from_millis)).timeout.get()
    };
    assert_eq!(adapted(19, None), 19);
    assert_eq!(adapted(0, None), 0);
    // 4.096 us * 2^16 = 268 ms, the next is 537 ms
    assert_eq!(adapted(19, Some(1000)), 16);
    assert_eq!(adapted(14, Some(1000)), 14);
    assert_eq!(adapted(0, Some(1000)), 16);
    assert_eq!(adapted(14, Some(86_400_000)), 14);
}

#[test]
fn who_stops_while_the_driver_looks_is_not_put_back() {
    let (keepalives, now) = (Keepalives::default(), Instant::now());
    let [one, other] = [1, 2].map(|slot| ConnHandle::new(slot, 0));
    for conn in [one, other] {
        keepalives.put(conn, Keepalive::new(PERIOD, now));
    }
    let due = now + PERIOD;
    let (conn, keepalive) = keepalives.take_due(due).unwrap();
    keepalives.stop(conn);
    keepalives.put_back(conn, keepalive);
    let (left, keepalive) = keepalives.take_due(due).unwrap();
    assert_ne!(left, conn);
    keepalives.put_back(left, keepalive);
    assert!(keepalives.next_due().is_some());
    keepalives.stop(left);
    assert_eq!(keepalives.next_due(), None);
}
