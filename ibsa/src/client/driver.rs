//! The task of one client: MADs and timers between the device and the engine.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use ibdev::{Device, DeviceError, MadAgent, OutgoingMad, PortTables, ReceivedMad};
use tokio::time::Sleep;

use super::notices::renew;
use super::shared::{End, Shared, now};

/// MADs taken in one round.
const MADS: usize = 64;
/// MADs that may wait for the send window before nothing more is received: what a peer makes us answer is bounded.
const WAITING: usize = 1024;
/// After a port could not be read.
const READ_AGAIN: Duration = Duration::from_secs(1);
/// Rounds before other tasks get a turn.
const ROUNDS: usize = 16;

/// Ends with the last handle of the client or with the device.
pub(super) struct Driver {
    shared: Arc<Shared>,
    agent: Box<dyn MadAgent>,
    outgoing: VecDeque<OutgoingMad>,
    received: Vec<ReceivedMad>,
    timer: Option<Instant>,
    sleep: Pin<Box<Sleep>>,
    /// The port, while it is being read.
    reading: Option<Reading>,
}

type Reading = Pin<Box<dyn Future<Output = Result<PortTables, DeviceError>> + Send>>;

impl Driver {
    pub(super) fn new(shared: Arc<Shared>, agent: Box<dyn MadAgent>) -> Self {
        let sleep = Box::pin(tokio::time::sleep_until(now().into()));
        let (outgoing, received) = (VecDeque::new(), Vec::new());
        Self { shared, agent, outgoing, received, timer: None, sleep, reading: None }
    }

    /// One round: whether there may be more to do.
    fn round(&mut self, cx: &mut Context<'_>) -> Result<bool, DeviceError> {
        let mut busy = self.read_port(cx)?;
        // Otherwise room in the window is what wakes.
        if self.outgoing.len() < WAITING
            && let Poll::Ready(result) = self.agent.poll_recv(cx, &mut self.received, MADS)
        {
            result?;
            busy = true;
        }
        let now = now();
        let mut state = self.shared.lock();
        for ReceivedMad { from, mad } in self.received.drain(..) {
            state.engine.handle(now, &from, &mad);
        }
        state.engine.handle_timeout(now);
        self.outgoing.extend(std::iter::from_fn(|| state.engine.poll_transmit()));
        let (told, next) = (state.told(), state.engine.poll_timeout());
        drop(state);
        self.shared.deliver(told);
        self.send(cx)?;
        Ok(busy | self.wait_until(cx, next))
    }

    fn send(&mut self, cx: &mut Context<'_>) -> Result<(), DeviceError> {
        while !self.outgoing.is_empty() {
            let before = self.outgoing.len();
            self.agent.send(&mut self.outgoing)?;
            if self.outgoing.len() < before {
                continue;
            }
            match self.agent.poll_ready(cx) {
                Poll::Ready(ready) => ready?,
                Poll::Pending => break,
            }
        }
        Ok(())
    }

    /// Reads the port again after an event.
    fn read_port(&mut self, cx: &mut Context<'_>) -> Result<bool, DeviceError> {
        if self.reading.is_none() {
            let mut state = self.shared.lock();
            if std::mem::take(&mut state.stale)
                && let Some(device) = state.device.clone()
            {
                self.reading = Some(Box::pin(read(device, self.shared.port)));
            }
        }
        let Some(reading) = &mut self.reading else { return Ok(false) };
        let Poll::Ready(tables) = reading.as_mut().poll(cx) else { return Ok(false) };
        self.reading = None;
        if self.shared.set_port(tables?)
            && let Some(runtime) = self.shared.runtime()
        {
            runtime.spawn(renew(Arc::clone(&self.shared)));
        }
        Ok(true)
    }

    /// Arms the timer; true if it has run out already.
    fn wait_until(&mut self, cx: &mut Context<'_>, next: Option<Instant>) -> bool {
        let Some(next) = next else {
            self.timer = None;
            return false;
        };
        if self.timer.replace(next) != Some(next) {
            self.sleep.as_mut().reset(next.into());
        }
        let due = self.sleep.as_mut().poll(cx).is_ready();
        if due {
            self.timer = None;
        }
        due
    }

    /// Tells everyone who waits.
    fn finish(&mut self, end: End) {
        let mut state = self.shared.lock();
        let error = state.end.get_or_insert(end).error();
        let (waiters, device) = (std::mem::take(&mut state.waiters), state.device.take());
        let feeds = state.feeds.all();
        let kept = (state.groups.end(), state.services.end());
        drop(state);
        drop(kept);
        feeds.iter().for_each(|feed| feed.end());
        drop(device);
        for waiter in waiters.into_values() {
            _ = waiter.send(Err(error.clone()));
        }
    }
}

/// Reads the port, again and again until that succeeds or the device is gone.
async fn read(device: Arc<dyn Device>, port: u8) -> Result<PortTables, DeviceError> {
    loop {
        match device.read_port(port).await {
            Err(error) if !matches!(error, DeviceError::Gone) => {
                tracing::warn!(port, %error, "the port is not readable");
                tokio::time::sleep(READ_AGAIN).await;
            }
            read => return read,
        }
    }
}

impl Future for Driver {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        for _ in 0..ROUNDS {
            let mut state = this.shared.lock();
            state.driver = Some(cx.waker().clone());
            let end = state.end.clone();
            drop(state);
            if let Some(end) = end {
                this.finish(end);
                return Poll::Ready(());
            }
            match this.round(cx) {
                Ok(true) => {}
                Ok(false) => return Poll::Pending,
                Err(error) => {
                    this.finish(End::Device(error));
                    return Poll::Ready(());
                }
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Drop for Driver {
    /// The runtime ends.
    fn drop(&mut self) {
        self.finish(End::Closed);
    }
}
