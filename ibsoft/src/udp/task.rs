//! The I/O task: receives, keeps time, sends what callers could not; at last it closes the sockets.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::time::{Sleep, sleep_until};

use super::backoff::{GIVE_UP, Verdict};
use super::intake::now;
use super::link::{Io, Rest};
use super::socket::RoceSocket;
use crate::device::Core;

/// Bytes before other tasks get their turn, such as one that posts receives again; the last batch may exceed it.
const BUDGET: u64 = 512 << 10;
/// A datagram counts as so many at least.
const LEAST: u64 = 1 << 10;
/// How often what is on its way is looked for before the task sleeps: to be woken costs the peer that sends it as much as to
/// send it.
const LOOKS: u32 = 32;
/// Between two looks: who looks without a pause is in the way of the thread that puts the next packet into the socket. With it
/// all looks together take about 30 microseconds.
const PAUSE: u32 = 30;
/// How long packets that wait for room are kept when the device goes.
pub(super) const LINGER: Duration = Duration::from_secs(1);

/// Drives the device until it is gone or its last handle is; then sends what is left and closes the sockets, and
/// drops `open` behind that. If the runtime ends first, the device is gone.
pub(super) fn run(core: Weak<Core>, io: Arc<Io>, open: watch::Sender<()>) -> impl Future<Output = ()> {
    let mut task = Task {
        core,
        next_socket: 0,
        looks: 0,
        sleep: None,
        resting: None,
        linger: None,
        sockets: io.sockets(),
        io,
        _open: open,
    };
    async move {
        // Those who were woken come before the task's next turn, also the one whom the runtime is made for.
        while let Turn::Waits = poll_fn(|cx| task.poll(cx)).await {
            tokio::task::yield_now().await;
        }
    }
}

#[derive(Debug)]
struct Task {
    core: Weak<Core>,
    io: Arc<Io>,
    /// The socket whose turn it is.
    next_socket: usize,
    /// How often what is on its way is still looked for.
    looks: u32,
    sleep: Option<Pin<Box<Sleep>>>,
    /// When the first of the sockets that were left alone in this turn is to be tried again.
    resting: Option<Instant>,
    /// How long what is left may wait for room.
    linger: Option<Instant>,
    /// The sender's, which goes first. Held only while the task runs.
    sockets: Weak<[RoceSocket]>,
    _open: watch::Sender<()>,
}

/// How the task's turn ends, unless there is nothing to do.
#[derive(Debug)]
enum Turn {
    /// There is more to do, but others come first, and what the runtime has to tell them: more has arrived; or what the engine
    /// has to send waits, unless somebody sends it with something of his own; or more of a message or a stream has to come at
    /// any moment.
    Waits,
    /// It was the last.
    Last,
}

/// What came of trying to receive.
enum Received {
    /// So much of the [`BUDGET`], or an error.
    Some(u64),
    Nothing,
    /// The socket is broken.
    Broken,
}

impl Task {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Turn> {
        let core = self.core.upgrade();
        let closing = {
            let mut signals = self.io.signals();
            // Whoever arms the alarm while this runs need not wake it: it looks again before it rests.
            signals.task = core.is_none().then(|| cx.waker().clone());
            signals.closing
        };
        match (core, self.sockets.upgrade()) {
            (_, None) => Poll::Ready(Turn::Last),
            (_, Some(sockets)) if closing => self.finish(cx, &sockets).map(|()| Turn::Last),
            (Some(core), Some(sockets)) => self.work(cx, &core, &sockets),
            // The last handle is going this moment.
            (None, Some(_)) => Poll::Pending,
        }
    }

    fn work(&mut self, cx: &mut Context<'_>, core: &Core, sockets: &[RoceSocket]) -> Poll<Turn> {
        core.catch_up();
        let mut budget = BUDGET;
        while budget > 0 {
            let mut progress = false;
            self.resting = None;
            for _ in 0..sockets.len() {
                let socket = self.next_socket;
                self.next_socket = (socket + 1) % sockets.len();
                match self.receive(cx, core, sockets, socket) {
                    Ok(Received::Nothing) => {}
                    Ok(Received::Some(bytes)) => {
                        progress = true;
                        budget = budget.saturating_sub(bytes.max(LEAST));
                    }
                    Ok(Received::Broken) => {
                        core.remove();
                        return self.finish(cx, sockets).map(|()| Turn::Last);
                    }
                    // The runtime is shutting down.
                    Err(_) => return Poll::Ready(Turn::Last),
                }
                if budget == 0 {
                    break;
                }
            }
            if !progress {
                if !self.keep_time(cx, core, sockets) {
                    let looks = self.looks > 0;
                    if looks {
                        (0..PAUSE).for_each(|_| std::hint::spin_loop());
                    }
                    self.looks = self.looks.saturating_sub(1);
                    return if looks || core.is_behind() { Poll::Ready(Turn::Waits) } else { Poll::Pending };
                }
                budget = budget.saturating_sub(LEAST);
            }
        }
        // In a flood, too, packets that wait for room get it.
        self.keep_time(cx, core, sockets);
        Poll::Ready(Turn::Waits)
    }

    /// Receives one batch.
    fn receive(
        &mut self,
        cx: &mut Context<'_>,
        core: &Core,
        sockets: &[RoceSocket],
        socket: usize,
    ) -> io::Result<Received> {
        let from = &sockets[socket];
        {
            let mut receiver = self.io.receiver();
            let backoff = &mut receiver.backoffs[socket];
            if backoff.rests(now) {
                // Nobody says when it can be read: this is looked at again even if somebody else has read it by then.
                self.resting = self.resting.into_iter().chain(backoff.until()).min();
                return Ok(Received::Nothing);
            }
        }
        match from.socket.poll_recv_ready(cx) {
            Poll::Ready(ready) => ready?,
            Poll::Pending => return Ok(Received::Nothing),
        }
        let mut receiver = self.io.receiver();
        let mut received = Err(io::ErrorKind::WouldBlock.into());
        // An error that is not handed on: to the runtime it only means that the next readiness has to be waited for.
        _ = from.socket.try_recv(|| {
            received = receiver.recv(from, self.io.capture.as_ref());
            match &received {
                Ok(received) if !received.emptied => Ok(()),
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => Ok(()),
                _ => Err(io::Error::from(io::ErrorKind::WouldBlock)),
            }
        });
        let received = match received {
            Ok(received) => {
                receiver.backoffs[socket].worked();
                receiver.hand_in(core);
                self.looks = if received.goes_on { LOOKS } else { 0 };
                Received::Some(received.bytes.max(received.datagrams * LEAST))
            }
            // The next readiness has to be waited for, which the next poll does.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                receiver.backoffs[socket].worked();
                Received::Some(0)
            }
            // Such as an ICMP message about an earlier packet, which the transport's timers take care of; or worse.
            Err(error) => {
                receiver.counters.errors += 1;
                let verdict = receiver.backoffs[socket].failed(now());
                tracing::debug!(local = %from.local, %error, ?verdict, "receiving failed");
                match verdict {
                    Verdict::Again => Received::Some(0),
                    Verdict::Rest => {
                        let until = receiver.backoffs[socket].until();
                        self.resting = self.resting.into_iter().chain(until).min();
                        Received::Nothing
                    }
                    Verdict::GiveUp => {
                        receiver.counters.failed_sockets += 1;
                        tracing::error!(local = %from.local, %error, tried = ?GIVE_UP, "receiving fails: the device is gone");
                        Received::Broken
                    }
                }
            }
        };
        self.io.signals().received = receiver.counters;
        Ok(received)
    }

    /// Does what is due, and arranges to be woken for what is not. Whether to look again.
    fn keep_time(&mut self, cx: &mut Context<'_>, core: &Core, sockets: &[RoceSocket]) -> bool {
        let (alarm, blocked) = {
            let mut signals = self.io.signals();
            if signals.closing {
                // Meanwhile; the next poll finishes.
                cx.waker().wake_by_ref();
                return false;
            }
            signals.task = Some(cx.waker().clone());
            (signals.alarm, signals.blocked)
        };
        let has_room = blocked.is_some_and(|socket| sockets[socket].poll_room(cx).is_ready());
        if has_room {
            self.io.signals().unblock();
        }
        let next = self.resting.into_iter().chain(alarm).min();
        let is_due = next.is_some_and(|next| self.poll_sleep(cx, next).is_ready());
        if is_due {
            self.io.signals().alarm = None;
        }
        if has_room || is_due {
            self.io.signals().task = None;
            // The flush at the end sets the next alarm.
            core.drive(now(), |engine, now| engine.handle_timeout(now));
        }
        has_room || is_due
    }

    /// The device is gone or closed: sends what is left, for as long as that may take.
    fn finish(&mut self, cx: &mut Context<'_>, sockets: &[RoceSocket]) -> Poll<()> {
        loop {
            match self.io.send_rest(cx.waker()) {
                Rest::Nothing => return Poll::Ready(()),
                Rest::Sender => break,
                Rest::Room(socket) => match sockets[socket].poll_room(cx) {
                    Poll::Ready(Ok(())) => self.io.signals().unblock(),
                    // The runtime is shutting down.
                    Poll::Ready(Err(_)) => return Poll::Ready(()),
                    Poll::Pending => break,
                },
            }
        }
        let until = *self.linger.get_or_insert_with(|| now() + LINGER);
        self.poll_sleep(cx, until)
    }

    fn poll_sleep(&mut self, cx: &mut Context<'_>, alarm: Instant) -> Poll<()> {
        let alarm = alarm.into();
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep_until(alarm)));
        if sleep.deadline() != alarm {
            sleep.as_mut().reset(alarm);
        }
        sleep.as_mut().poll(cx)
    }
}

impl Drop for Task {
    /// If the device is still there the runtime has ended: nobody will receive or keep time any more.
    fn drop(&mut self) {
        if let Some(core) = self.core.upgrade() {
            core.remove();
            // Answers that waited, as far as there is room.
            self.io.send_rest(Waker::noop());
        }
        self.io.close();
    }
}
