//! Sending in threads of its own, because writing a MAD can wait.
//!
//! On RoCE the kernel resolves the destination's Ethernet address inside write(2), whatever O_NONBLOCK says: tens of
//! milliseconds for the first MAD to a neighbour, a second for one that does not answer (measured, Linux 6.1). Meanwhile it
//! holds the open file's lock, so read, poll and even arriving MADs of that file wait too. So each lane has an open file
//! and a thread of its own, and none of them receives. All MADs to one port take the same lane: they keep their order, and
//! the kernel's part of their transaction IDs stays the same. Classes whose requests are answered have one lane, on the file
//! that receives: they are those of InfiniBand, where nothing has to be resolved.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use ibdev::{DeviceError, OutgoingMad};
use rustix::io::Errno;

use super::abi;
use crate::counters::{Counters, count};

/// Lanes of an agent: how many destinations without a neighbour it takes to hold up all others.
const LANES: usize = 4;

/// MADs accepted and not yet written.
const WINDOW: usize = 128;

/// How often a MAD is written again while the kernel still sends one with the same transaction ID, and how long after the first
/// time; then twice as long each time, 16 ms in all. It takes two as one operation and refuses the second, even if they answer
/// different peers; those behind have to wait.
const REPEATS: u32 = 10;
const REPEAT_AFTER: Duration = Duration::from_micros(16);

/// How long what was accepted is still written when the agent is dropped. The rest is counted.
const GRACE: Duration = Duration::from_secs(2);

/// The sending side of an agent. Dropped, what it has accepted is still written for a while.
#[derive(Debug)]
pub(super) struct Lanes {
    senders: Vec<Sender<OutgoingMad>>,
    window: Arc<Window>,
}

#[derive(Debug, Default)]
struct Window {
    used: AtomicUsize,
    gone: AtomicBool,
    /// When the agent was dropped.
    closed: OnceLock<Instant>,
    waiting: Mutex<Option<Waker>>,
}

impl Drop for Lanes {
    fn drop(&mut self) {
        _ = self.window.closed.set(Instant::now());
    }
}

impl Lanes {
    pub(super) fn open(path: &Path, counters: &Arc<Counters>) -> io::Result<Self> {
        let window = Arc::new(Window::default());
        let mut senders = Vec::with_capacity(LANES);
        for _ in 0..LANES {
            let file = OpenOptions::new().read(true).write(true).open(path)?;
            let agent = abi::register_sender(&file)?;
            senders.push(start(Arc::new(file), agent, &window, counters)?);
        }
        Ok(Self { senders, window })
    }

    /// One lane, by the agent that receives.
    pub(super) fn of_receiver(file: Arc<File>, agent: u32, counters: &Arc<Counters>) -> io::Result<Self> {
        let window = Arc::new(Window::default());
        Ok(Self { senders: vec![start(file, agent, &window, counters)?], window })
    }

    /// Accepts from the front while there is room.
    pub(super) fn send(
        &self,
        batch: &mut std::collections::VecDeque<OutgoingMad>,
    ) -> Result<(), DeviceError> {
        while !batch.is_empty() {
            if self.window.gone.load(Ordering::Relaxed) {
                return Err(DeviceError::Gone);
            }
            let room = |used| (used < WINDOW).then_some(used + 1);
            if self.window.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, room).is_err() {
                break;
            }
            if let Some(mad) = batch.pop_front() {
                // A lane ends when its sender is dropped only, so this can't fail.
                _ = self.senders[lane_of(&mad) % self.senders.len()].send(mad);
            }
        }
        Ok(())
    }

    pub(super) fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<Result<(), DeviceError>> {
        if let Some(ready) = self.window.state() {
            return Poll::Ready(ready);
        }
        *self.window.waiting.lock().unwrap_or_else(PoisonError::into_inner) = Some(cx.waker().clone());
        // Room that came before the waker was there woke nobody.
        self.window.state().map_or(Poll::Pending, Poll::Ready)
    }
}

fn start(
    file: Arc<File>,
    agent: u32,
    window: &Arc<Window>,
    counters: &Arc<Counters>,
) -> io::Result<Sender<OutgoingMad>> {
    let (sender, queue) = mpsc::channel();
    let lane = Lane { file, agent, queue, window: window.clone(), counters: counters.clone() };
    thread::Builder::new().name("umad-send".into()).spawn(move || lane.run())?;
    Ok(sender)
}

/// The same for all MADs to one port.
fn lane_of(mad: &OutgoingMad) -> usize {
    let av = &mad.to.av;
    let gid = av.grh.map_or([0; 16], |route| route.dgid.0);
    gid.iter().chain(&av.dlid.0.to_be_bytes()).fold(0_usize, |sum, byte| sum + usize::from(*byte))
}

impl Window {
    fn state(&self) -> Option<Result<(), DeviceError>> {
        if self.gone.load(Ordering::Acquire) {
            Some(Err(DeviceError::Gone))
        } else if self.used.load(Ordering::Acquire) < WINDOW {
            Some(Ok(()))
        } else {
            None
        }
    }

    fn release(&self) {
        self.used.fetch_sub(1, Ordering::AcqRel);
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(waker) = waiting {
            waker.wake();
        }
    }
}

#[derive(Debug)]
struct Lane {
    file: Arc<File>,
    agent: u32,
    queue: Receiver<OutgoingMad>,
    window: Arc<Window>,
    counters: Arc<Counters>,
}

impl Lane {
    fn run(self) {
        for mad in &self.queue {
            if self.window.closed.get().is_some_and(|closed| closed.elapsed() > GRACE) {
                count(&self.counters.mads_unsent);
                continue;
            }
            match self.write(&mad) {
                Ok(()) => count(&self.counters.mads_sent),
                Err(error) => {
                    count(&self.counters.mads_refused);
                    if matches!(Errno::from_io_error(&error), Some(Errno::IO | Errno::NODEV)) {
                        self.window.gone.store(true, Ordering::Release);
                    }
                }
            }
            self.window.release();
        }
    }

    fn write(&self, mad: &OutgoingMad) -> io::Result<()> {
        let wait = abi::Wait::of(&mad.mad);
        let packet = abi::encode(self.agent, mad, wait).ok_or(Errno::INVAL)?;
        for repeat in 0..REPEATS {
            match (&*self.file).write(&packet) {
                Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => {}
                result => return result.map(drop),
            }
            count(&self.counters.mads_repeated);
            if wait.is_some() {
                return Ok(()); // a request that is sent again: the kernel does that already
            }
            thread::sleep(REPEAT_AFTER * (1 << repeat));
        }
        (&*self.file).write(&packet).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_full_window_wakes_who_waits_when_there_is_room() {
        let lanes = Lanes { senders: Vec::new(), window: Arc::default() };
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(woken.clone());
        let mut cx = Context::from_waker(&waker);
        assert!(matches!(lanes.poll_ready(&mut cx), Poll::Ready(Ok(()))));
        lanes.window.used.store(WINDOW, Ordering::Relaxed);
        assert!(lanes.poll_ready(&mut cx).is_pending());
        lanes.window.release();
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
        assert!(matches!(lanes.poll_ready(&mut cx), Poll::Ready(Ok(()))));
        lanes.window.gone.store(true, Ordering::Relaxed);
        assert!(matches!(lanes.poll_ready(&mut cx), Poll::Ready(Err(DeviceError::Gone))));
    }
}
