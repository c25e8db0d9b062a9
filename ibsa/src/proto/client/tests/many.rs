//! Many transactions at once against an SA that loses, repeats, rests and is slow.

use proptest::prelude::*;

use super::*;

/// An SA that answers most requests, some late, some twice, some BUSY, some not at all.
struct RandomSa {
    rng: ChaCha8Rng,
    trouble: u32,
    /// What is on its way to the client.
    under_way: Vec<(Instant, Mad)>,
    /// Tables that are being sent.
    tables: Vec<Sender>,
}

impl RandomSa {
    fn carry(&mut self, now: Instant, mad: Mad) {
        let copies = match self.rng.random_range(0..100) {
            roll if roll < self.trouble / 2 => 0,
            roll if roll < self.trouble => 2,
            _ => 1,
        };
        for _ in 0..copies {
            let delay = MS * self.rng.random_range(1..=30u32);
            self.under_way.push((now + delay, mad));
        }
    }

    fn hear(&mut self, now: Instant, mad: &Mad) {
        if self.rng.random_range(0..100) < self.trouble / 2 {
            return; // lost
        }
        let header = SaHeader::parse(mad).unwrap();
        if header.rmpp.is_active() {
            let of_transfer = |sender: &Sender| sender.is_of(header.mad.tid);
            let Some(at) = self.tables.iter().position(of_transfer) else { return };
            match self.tables[at].handle(now, &header) {
                Sent::Going => self.flush(now, at),
                Sent::Done | Sent::Failed(..) => _ = self.tables.swap_remove(at),
            }
            return;
        }
        match self.rng.random_range(0..100) {
            roll if roll < self.trouble => self.carry(now, answer(&header, MadStatus::BUSY, &[])),
            roll if roll < 2 * self.trouble => self.carry(now, answer(&header, MadStatus(0x0300), &[])),
            _ if header.mad.method == Method::GET_TABLE => {
                let len = self.rng.random_range(0..60) * 112;
                let header =
                    SaHeader { mad: header.mad.response(MadStatus::OK), attribute_offset: 14, ..header };
                let config = RmppConfig::default();
                self.tables.push(Sender::new(header, vec![0; len], &config).unwrap());
                self.flush(now, self.tables.len() - 1);
            }
            _ => self.carry(now, answer(&header, MadStatus::OK, &node_data())),
        }
    }

    fn flush(&mut self, now: Instant, at: usize) {
        while let Some(mad) = self.tables[at].poll_transmit(now) {
            self.carry(now, mad);
        }
    }

    fn timeout(&mut self, now: Instant) {
        for at in (0..self.tables.len()).rev() {
            match self.tables[at].handle_timeout(now) {
                Sent::Failed(..) => _ = self.tables.swap_remove(at),
                _ => self.flush(now, at),
            }
        }
    }

    fn next(&self) -> Option<Instant> {
        let arrivals = self.under_way.iter().map(|(at, _)| *at);
        arrivals.chain(self.tables.iter().filter_map(Sender::poll_timeout)).min()
    }
}

proptest! {
    #[test]
    fn every_request_ends_in_one_event(seed in any::<u64>(), trouble in 0u32..25, count in 1usize..120) {
        let mut now = Instant::now();
        let mut client = client(now);
        let rng = ChaCha8Rng::seed_from_u64(seed);
        let mut sa = RandomSa { rng, trouble, under_way: Vec::new(), tables: Vec::new() };
        let mut open = BTreeSet::new();
        for at in 0..count {
            let method = if at % 3 == 0 { Method::GET_TABLE } else { Method::GET };
            open.insert(client.request(now, node(method, now)).unwrap());
        }
        let mut steps = 0;
        while !open.is_empty() {
            steps += 1;
            prop_assert!(steps < 1_000_000, "it does not end");
            if sa.rng.random_range(0..400) == 0 && let Some(id) = open.pop_first() {
                client.cancel(now, id);
            }
            if sa.rng.random_range(0..2000) == 0 {
                client.set_sa(now, Some(address(SA)), vec![PKey::DEFAULT]);
            }
            while let Some(out) = client.poll_transmit() {
                sa.hear(now, &out.mad);
            }
            while let Some(event) = client.poll_event() {
                let (Event::Answered { id, .. } | Event::Failed { id, .. }) = event else { continue };
                prop_assert!(open.remove(&id), "an event of a request that had ended");
            }
            prop_assert!(client.under_way <= 16 && client.by_tid.len() == client.under_way as usize);
            let next = [client.poll_timeout(), sa.next()].into_iter().flatten().min();
            let Some(next) = next else { continue };
            now = now.max(next);
            for at in (0..sa.under_way.len()).rev() {
                if sa.under_way[at].0 <= now {
                    let (_, mad) = sa.under_way.swap_remove(at);
                    client.handle(now, &source(SA), &mad);
                }
            }
            client.handle_timeout(now);
            sa.timeout(now);
        }
        prop_assert_eq!((client.pending(), client.under_way, client.poll_timeout()), (0, 0, None));
        prop_assert!(client.queue.is_empty() && client.by_tid.is_empty() && client.finished.len() <= 64);
    }

    #[test]
    fn any_mads_are_survived_by_the_client(
        mads in prop::collection::vec(prop::collection::vec(any::<u8>(), 256), 1..60),
    ) {
        let now = Instant::now();
        let mut client = client(now);
        client.request(now, node(Method::GET_TABLE, now)).unwrap();
        let (header, _) = sent(&mut client).unwrap();
        for (at, bytes) in mads.into_iter().enumerate() {
            let mut mad: Mad = bytes.try_into().unwrap();
            mad[..3].copy_from_slice(&[1, 3, 2]);
            (mad[3], mad[24]) = (if at % 5 == 0 { 6 } else { 0x92 }, mad[24] & 1);
            mad[8..16].copy_from_slice(&header.mad.tid.0.to_be_bytes());
            mad[16..18].copy_from_slice(&[0, 0x11]);
            if at % 2 == 0 {
                mad[4..6].fill(0);
                mad[28..31].fill(0);
            }
            client.handle(now, &source(SA), &mad);
            client.handle_timeout(now);
            while client.poll_transmit().is_some() {}
        }
        prop_assert!(client.events.len() <= 61);
    }
}
