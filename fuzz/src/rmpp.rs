//! A sender and a receiver of a message in several MADs, over a wire that the input drives, and MADs of its own between
//! theirs.
//!
//! An input is two numbers, length and window, and a list of operations. However it goes, the message arrives once and whole or
//! not at all, memory stays within the window, and both ends end within a bounded time.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ibdev::MAD_LEN;
use ibsa::mad::{RmppType, SaHeader};
use ibsa::proto::rmpp::{Mad, Received, Receiver, RmppConfig, Sender, Sent};
use ibwire::TransactionId;
use ibwire::mad::{AttributeId, MadHeader, Method, MgmtClass};

use crate::seeds::{self, Seed};
use crate::{Input, mad};

/// Segments on their way, at most.
const WIRE: usize = 512;
/// Ends need no more than this: each wait is at most 2 s, eight times for each segment.
const STEPS: usize = 20_000;

/// The target.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let len = usize::from(input.u16()) % 20_000;
    let mut config = RmppConfig::default();
    config.window = u32::from(input.byte() % 80);
    config.max_len = if input.byte().is_multiple_of(8) { 10_000 } else { 1 << 20 };
    if let Some(mut world) = World::new(len, config) {
        while !input.is_empty() && !world.over() {
            world.step(&mut input);
        }
        world.end();
    }
}

struct World {
    now: Instant,
    config: RmppConfig,
    message: Vec<u8>,
    sender: Option<Sender>,
    receiver: Option<Receiver>,
    /// To the receiver, and to the sender.
    wires: [VecDeque<Mad>; 2],
    /// Whether a MAD that neither end made was delivered: then only the bounds hold.
    forged: bool,
    delivered: u32,
}

fn parts(mad: &Mad) -> Option<(SaHeader, &[u8; SaHeader::DATA_LEN])> {
    Some((SaHeader::parse(mad).ok()?, mad.last_chunk()?))
}

impl World {
    fn new(len: usize, config: RmppConfig) -> Option<Self> {
        let (class, version) = (MgmtClass::SA, SaHeader::CLASS_VERSION);
        let header = MadHeader::new(class, version, Method(0x92), AttributeId(0x35), TransactionId(7));
        let message: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
        let Ok(sender) = Sender::new(SaHeader::new(header), message.clone(), &config) else {
            assert!(len > config.max_len);
            return None;
        };
        let now = Instant::now();
        let (sender, receiver) = (Some(sender), Some(Receiver::new(now, &config)));
        let wires = Default::default();
        Some(Self { now, config, message, sender, receiver, wires, forged: false, delivered: 0 })
    }

    fn over(&self) -> bool {
        self.sender.is_none() && self.receiver.is_none()
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.below(8) {
            0 => self.transmit(1 + input.below(80)),
            1 => self.deliver(0, 0),
            2 => self.deliver(1, 0),
            3 => {
                let (way, at) = (input.below(2), input.below(256));
                self.deliver(way, at);
            }
            4 => {
                let (way, at) = (input.below(2), input.below(256));
                let lost = self.wires[way].remove(at);
                // Lost, or there twice.
                if let Some(mad) = lost.filter(|_| input.below(2) == 1) {
                    self.send(way, mad);
                    self.send(way, mad);
                }
            }
            5 => {
                self.now += Duration::from_millis(u64::from(input.u16()) / 16);
                self.timeouts();
            }
            6 => {
                // A MAD of the peer's with other words.
                let (way, at, place, word) = (input.below(2), input.below(256), input.below(64), input.u32());
                if let Some(mad) = self.wires[way].get_mut(at) {
                    mad[place..place + 4].copy_from_slice(&word.to_be_bytes());
                    self.forged = true;
                }
            }
            _ => {
                let way = input.below(2);
                let mut mad = mad::padded(input.bytes(MAD_LEN));
                (mad[24], mad[25], mad[26]) = (1, mad[25] % 5, mad[26] | 1);
                (self.forged, mad[27]) = (true, mad[27] & input.byte());
                self.send(way, mad);
            }
        }
    }

    fn send(&mut self, way: usize, mad: Mad) {
        if self.wires[way].len() < WIRE {
            self.wires[way].push_back(mad);
        }
    }

    fn transmit(&mut self, count: usize) {
        for _ in 0..count {
            let Some(mad) = self.sender.as_mut().and_then(|sender| sender.poll_transmit(self.now)) else {
                return;
            };
            assert!(parts(&mad).is_some_and(|(header, _)| header.rmpp.kind == RmppType::DATA));
            self.send(0, mad);
        }
    }

    fn deliver(&mut self, way: usize, at: usize) {
        let Some(mad) = self.wires[way].remove(at) else { return };
        let Some((header, data)) = parts(&mad) else { return };
        if way == 0 {
            let Some(receiver) = &mut self.receiver else { return };
            let received = receiver.handle(self.now, &header, data);
            let bound =
                2 * (self.config.max_len + SaHeader::DATA_LEN) + 512 * (self.config.window as usize + 2);
            assert!(receiver.held() <= bound, "{} bytes", receiver.held());
            self.received(received);
        } else if let Some(sender) = &mut self.sender {
            match sender.handle(self.now, &header) {
                Sent::Going => {}
                Sent::Done => {
                    assert!(self.forged || self.delivered == 1, "acknowledged without a delivery");
                    self.sender = None;
                }
                Sent::Failed(_, mad) => {
                    self.sender = None;
                    mad.into_iter().for_each(|mad| self.send(0, mad));
                }
            }
        }
    }

    fn received(&mut self, received: Received) {
        match received {
            Received::Going(mad) => mad.into_iter().for_each(|mad| self.send(1, mad)),
            Received::Done(data, mad) => {
                self.delivered += 1;
                assert_eq!(self.delivered, 1, "delivered again");
                assert!(self.forged || data == self.message, "{} bytes", data.len());
                self.send(1, mad);
            }
            Received::Failed(_, mad) => {
                // A finished transfer stays so; only its owner's clock ends it.
                if self.delivered == 0 {
                    self.receiver = None;
                }
                mad.into_iter().for_each(|mad| self.send(1, mad));
            }
        }
    }

    fn timeouts(&mut self) {
        if self.receiver.as_ref().is_some_and(|receiver| receiver.poll_timeout() <= self.now) {
            self.receiver = None;
        }
        if let Some(Sent::Failed(_, mad)) = self.sender.as_mut().map(|sender| sender.handle_timeout(self.now))
        {
            self.sender = None;
            mad.into_iter().for_each(|mad| self.send(0, mad));
        }
    }

    /// From now on the wire is a good one.
    fn end(mut self) {
        for _ in 0..STEPS {
            self.transmit(usize::MAX);
            while !(self.wires[0].is_empty() && self.wires[1].is_empty()) {
                self.deliver(0, 0);
                self.deliver(1, 0);
            }
            let sender = self.sender.as_ref().and_then(Sender::poll_timeout);
            let next = sender.into_iter().chain(self.receiver.as_ref().map(Receiver::poll_timeout)).min();
            let Some(next) = next else { return };
            self.now = self.now.max(next);
            self.timeouts();
        }
        panic!("the ends do not end");
    }
}

/// Transfers on a good wire and on bad ones, and the MADs of captured transfers.
pub fn seeds() -> Vec<Seed> {
    let seed = |name: String, bytes| Seed { name, bytes };
    let mut seeds = Vec::new();
    for (len, window) in [(0u16, 1u8), (200, 1), (201, 2), (2576, 64), (12_000, 4), (19_000, 64)] {
        let head = [&len.to_be_bytes()[..], &[window, 1]].concat();
        for (name, operations) in [
            ("good", &[0, 79, 1, 2][..]),
            ("reordered", &[0, 79, 3, 0, 3, 1, 1, 2]),
            ("lost", &[0, 79, 1, 1, 4, 0, 2, 0, 1, 2, 5, 0x80, 0]),
            ("twice", &[0, 79, 4, 0, 0, 1, 1, 1, 2, 2]),
            ("changed", &[0, 79, 1, 2, 6, 0, 0, 28, 0, 0, 0, 9, 1, 2]),
        ] {
            seeds.push(seed(format!("{name}-{len}-{window}"), [&head[..], &operations.repeat(60)].concat()));
        }
    }
    for capture in seeds::sa_captures() {
        if capture.bytes.get(25).is_some_and(|kind| *kind != 0) {
            let bytes = [&[10, 0, 64, 1, 0, 79, 1, 2, 7, 0][..], &capture.bytes, &[0, 1, 2]].concat();
            seeds.push(seed(capture.name, bytes));
        }
    }
    seeds
}
