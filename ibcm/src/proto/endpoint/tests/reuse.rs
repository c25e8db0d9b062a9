//! Names that come again as soon as they may, while the other side remembers them still.

use std::collections::HashMap;
use std::time::Duration;

use ibwire::TimeCode;
use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;

use super::super::super::ids::Source;
use super::*;

/// Which names a host uses again at once; of the others each is a new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reuse {
    QueuePairs,
    Ids,
}

/// The queue pairs of a host.
#[derive(Default)]
struct QueuePairs {
    used: u32,
    free: Vec<Qpn>,
    busy: HashMap<ConnHandle, Qpn>,
    taken_again: usize,
}

impl QueuePairs {
    fn take(&mut self, reuse: Reuse) -> Qpn {
        if reuse == Reuse::QueuePairs
            && let Some(qpn) = self.free.pop()
        {
            self.taken_again += 1;
            return qpn;
        }
        self.used += 1;
        Qpn::truncate(0x100 + self.used)
    }

    fn released(&mut self, event: &Event) {
        if let Event::Released { conn } = event
            && let Some(qpn) = self.busy.remove(conn)
        {
            self.free.push(qpn);
        }
    }
}

/// Connections one after the other, each ended as soon as it is made, by the one side or the other.
fn connections(count: u32, reuse: Reuse, ack_delay: u8) {
    let mut hosts = Hosts::new();
    let (mut active, mut passive) = (QueuePairs::default(), QueuePairs::default());
    let mut ids = std::collections::HashSet::new();
    for endpoint in [&mut hosts.active, &mut hosts.passive] {
        endpoint.core.ca.ack_delay = TimeCode::truncate(ack_delay);
    }
    for n in 0..count {
        if reuse == Reuse::Ids {
            // The first of always the same IDs that is free.
            for (core, seed) in [(&mut hosts.active.core, 1), (&mut hosts.passive.core, 2)] {
                core.rng = ChaCha8Rng::from_seed([seed; 32]);
                core.drawn.clear();
            }
        }
        let mut connect = Connect { qpn: active.take(reuse), ..connect() };
        connect.path.record.packet_life_time = TimeCode::truncate(16).into();
        let qpn = connect.qpn;
        let a = hosts.active.connect(hosts.now, connect).unwrap();
        active.busy.insert(a, qpn);
        ids.insert(hosts.active.info(a).unwrap().local_comm_id);
        let mut p = None;
        for _ in 0..3 {
            hosts.deliver_to_passive(1);
            while let Some(event) = hosts.passive.poll_event() {
                if let Event::Request { conn, .. } = event {
                    let qpn = passive.take(reuse);
                    hosts.passive.accept(hosts.now, conn, Accept::new(qpn)).unwrap();
                    passive.busy.insert(conn, qpn);
                    p = Some(conn);
                }
                passive.released(&event);
            }
            hosts.deliver_to_active(2);
            while let Some(event) = hosts.active.poll_event() {
                if let Event::Reply { conn, .. } = event {
                    hosts.active.ready(hosts.now, conn, PrivateData::EMPTY).unwrap();
                }
                active.released(&event);
            }
        }
        let p = p.unwrap_or_else(|| panic!("connection {n} was not requested"));
        let (one, conn) = if n % 2 == 0 { (&mut hosts.active, a) } else { (&mut hosts.passive, p) };
        assert_eq!(one.state(conn), Some(State::Established), "connection {n}");
        one.disconnect(hosts.now, conn, Disconnect::default()).unwrap();
        for _ in 0..2 {
            hosts.deliver_to_passive(1);
            hosts.deliver_to_active(2);
        }
        hosts.now += Duration::from_millis(5);
        hosts.active.handle_timeout(hosts.now);
        hosts.passive.handle_timeout(hosts.now);
    }
    let count = u64::from(count);
    for endpoint in [&hosts.active, &hosts.passive] {
        let stats = endpoint.stats();
        assert_eq!((stats.established, stats.resent, stats.repeated_answers), (count, 0, 0), "{stats:?}");
        assert_eq!((stats.stale, stats.refused_requests, stats.rejections_sent), (0, 0, 0), "{stats:?}");
        assert_eq!((stats.dropped_id_taken, stats.dropped_unknown_id), (0, 0), "{stats:?}");
    }
    // However many rest, each name leads to one connection.
    for (endpoint, peer) in [(&hosts.active, 2u8), (&hosts.passive, 1)] {
        let host = endpoint.core.ids.host(Guid(0x100 + u64::from(peer)), Source::Gid(gid(peer)));
        for n in 0..200 {
            assert!(endpoint.core.ids.by_remote(host.qpn(Qpn::truncate(0x100 + n))).count() <= 1);
        }
    }
    match reuse {
        Reuse::QueuePairs => {
            let again = [active.taken_again, passive.taken_again];
            assert!(again.iter().all(|&again| again as u64 > count * 4 / 5), "{again:?} of {count}");
        }
        Reuse::Ids => assert!((ids.len() as u64) < count / 5, "{} IDs", ids.len()),
    }
}

/// Neither side's early reuse hurts: no message is repeated, nobody is called stale. With an ack delay of 134 ms the
/// passive side forgets first, with 268 ms the active one.
#[test]
fn cm_t29_names_may_come_again_while_the_peer_remembers_them() {
    for reuse in [Reuse::QueuePairs, Reuse::Ids] {
        for ack_delay in [15, 16] {
            connections(1500, reuse, ack_delay);
        }
    }
}
