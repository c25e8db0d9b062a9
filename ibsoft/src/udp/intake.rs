//! From the sockets into the engine: by the I/O task, or by a program that looks at an empty completion queue again and
//! again instead of waiting.

use std::io;
use std::time::{Duration, Instant};

use ibwire::icrc::Icrc;

use super::link::Io;
use super::receive::{Receiver, Run};
use super::socket::RoceSocket;
use crate::device::{Core, Intake};
use crate::engine::Engine;

/// Packets between two flushes: acknowledgements leave before a peer's window is used up.
pub(super) const FLUSH_EVERY: usize = 64;
/// What answers fewer packets than these waits a moment: who was woken by them may have something to send as well, and
/// all leaves together.
const FEW: usize = 4;
/// The longest moment.
const PATIENCE: Duration = Duration::from_millis(1);

impl Receiver {
    /// Hands the batch to the engine.
    pub(super) fn hand_in(&mut self, core: &Core) {
        let mut rest = self.runs();
        while !rest.is_empty() {
            let (runs, packets) = portion(rest);
            let handle = |engine: &mut Engine, now| {
                for run in runs {
                    let place = (run.len, Icrc::LEN);
                    engine.handle_run(now, self.port, &run.net, self.bytes(run), place);
                }
                // A flood must not keep timers from expiring.
                engine.handle_timeout(now);
            };
            let driven = match packets < FEW {
                true => core.drive_silently(now(), handle),
                false => core.drive(now(), handle),
            };
            // A device that is gone takes nothing.
            if driven.is_none() {
                break;
            }
            rest = &rest[runs.len()..];
        }
        let refused: usize = rest.iter().map(|run| run.packets).sum();
        self.counters.drop_gone += refused as u64;
    }
}

/// The runs at the front between two flushes, and how many packets they have.
fn portion(runs: &[Run]) -> (&[Run], usize) {
    let (mut count, mut packets) = (0, 0);
    for run in runs {
        if count > 0 && packets + run.packets > FLUSH_EVERY {
            break;
        }
        (count, packets) = (count + 1, packets + run.packets);
    }
    (&runs[..count], packets)
}

impl Intake for Io {
    fn take_in(&self, core: &Core) -> bool {
        // Else another one takes in what there is.
        let Some(mut receiver) = self.try_receiver() else { return false };
        let (mut took, mut failed) = (false, false);
        for socket in 0..self.addresses.len() {
            if receiver.backoffs[socket].rests(now) {
                continue;
            }
            let capture = self.capture.as_ref();
            let receive = |socket: &RoceSocket| receiver.recv_one(socket, capture);
            match self.try_with_socket(socket, receive) {
                Some(Ok(_)) => {
                    receiver.backoffs[socket].worked();
                    receiver.hand_in(core);
                    took = true;
                }
                Some(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                    receiver.backoffs[socket].worked();
                }
                // Whether the socket is broken is for the I/O task to say.
                Some(Err(_)) => {
                    receiver.counters.errors += 1;
                    receiver.backoffs[socket].failed(now());
                    failed = true;
                }
                None => {}
            }
        }
        if !took {
            core.catch_up();
        } else if core.is_behind() {
            // The caller may never come back.
            self.remind(now() + PATIENCE);
        }
        if took || failed {
            self.signals().received = receiver.counters;
        }
        took
    }

    fn wake_task(&self) {
        let task = self.signals().task.take();
        if let Some(task) = task {
            task.wake();
        }
    }
}

pub(super) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
