//! What all handles of a device share: the engine and its link behind one mutex.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use ibdev::qp::Transition;
use ibdev::{Buf, DeviceAttr, DeviceError, DeviceEvent};
use ibwire::{Gid, PathRecord};
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::waiters::{Waiters, Wakes};
use crate::engine::{Engine, PortGroup};
use crate::foreign;
use crate::sim::{Held, Probe};

/// What carries an engine's packets.
pub(crate) trait Link: fmt::Debug + Send {
    /// Takes what the engine has to send, as far as the link has room, and sees to it that the engine is called again
    /// when its timer is due or when the link has room for more. What is returned is to be called once the device's
    /// mutex is free.
    fn flush(&mut self, engine: &mut Engine, now: Instant) -> Option<Arc<dyn Departure>>;

    /// Takes what the engine still has to send, room or not, before the device is gone or dropped: the engine is not
    /// asked again. The link sends it by itself, as far as it can within a bound, and counts what it cannot.
    fn close(&mut self, engine: &mut Engine, now: Instant);

    /// Receives for those who do not wait for the link's own task, if that is possible.
    fn intake(&self) -> Option<Arc<dyn Intake>> {
        None
    }

    /// Whose sender is gone once the link, closed, holds nothing of the machine any more. `None` if the link is not
    /// the device's own.
    fn closed(&self) -> Option<watch::Receiver<()>>;

    /// The path from a port to a GID, if there is one.
    fn resolve(&self, port: u8, dgid: Gid) -> Option<PathRecord>;

    /// The group's port takes what is sent to it from now on, on behalf of `core`'s QPs.
    fn join(&mut self, core: &Arc<Core>, group: PortGroup) -> Result<(), DeviceError>;

    /// No more.
    fn leave(&mut self, group: PortGroup);

    /// Where it lives.
    fn runtime(&self) -> &Handle;

    /// What the link has counted, by name.
    fn counters(&self) -> Vec<(&'static str, u64)>;

    /// A seed for a layer above the device, if everything random follows from one seed here.
    fn draw_seed(&mut self) -> Option<[u8; 32]> {
        None
    }
}

/// The part of sending that takes its time: system calls.
pub(crate) trait Departure: fmt::Debug + Send + Sync {
    /// Sends what the link took. Whether the link has room for more again, after it had not.
    fn send(&self) -> bool;
}

/// The part of receiving that a caller may do in the place of the link's own task.
pub(crate) trait Intake: fmt::Debug + Send + Sync {
    /// Hands in what has arrived. Whether that was anything. What answers it may wait for the next call, or for something
    /// that is sent first.
    fn take_in(&self, core: &Core) -> bool;

    /// Lets the link's own task see that the device [is behind](Core::is_behind).
    fn wake_task(&self);
}

/// What is left to be done after a call, once the mutex is free: others' code, and system calls. What the link took is sent
/// whatever that code does; until then the link takes nothing else.
#[must_use]
struct Aftermath {
    wakes: Wakes,
    /// Buffers that go home.
    homeless: Vec<Buf>,
    departure: Option<Arc<dyn Departure>>,
}

impl Aftermath {
    /// Does it. Whether the link has room for more again, after it had not.
    fn see_to(self) -> bool {
        for buf in self.homeless {
            foreign::call("the home of a buffer", || drop(buf));
        }
        self.wakes.wake();
        self.departure.is_some_and(|departure| departure.send())
    }
}

/// How often one call lets the link send what the engine has to send. A peer can ask for gigabytes with one packet.
const ROUNDS: usize = 4;

/// An HCA. Its handles hold it by `Arc`, what drives it by `Weak`.
pub(crate) struct Core {
    pub(super) attr: DeviceAttr,
    state: Mutex<State>,
    /// The engine has something to send, or a time to come up at, that the link does not know of.
    behind: AtomicBool,
    intake: Option<Arc<dyn Intake>>,
    probes: Mutex<Vec<Weak<dyn Probe>>>,
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Core").field(&self.attr.name).finish()
    }
}

/// What the mutex guards. It is never held across an await; wakers are called, and buffers go home, after it.
#[derive(Debug)]
pub(super) struct State {
    pub(super) engine: Engine,
    pub(super) link: Box<dyn Link>,
    pub(super) waiters: Waiters,
    pub(super) gone: bool,
    /// The latest time that the engine was given.
    latest: Instant,
}

impl State {
    /// This moment, or the latest one that the engine knows if that is later.
    fn not_before(&mut self, now: Instant) -> Instant {
        self.latest = self.latest.max(now);
        self.latest
    }

    /// Lets the link take what it is to send if it shall, and finds whom to wake and which buffers go home.
    fn settle(&mut self, now: Instant, sends: bool) -> Aftermath {
        let departure = if self.gone || !sends { None } else { self.link.flush(&mut self.engine, now) };
        while let Some(event) = self.engine.poll_event() {
            self.waiters.event(event, &self.engine);
        }
        let wakes = self.waiters.take_woken(&self.engine);
        Aftermath { wakes, homeless: self.engine.take_released(), departure }
    }
}

impl Drop for State {
    fn drop(&mut self) {
        if !self.gone {
            self.link.close(&mut self.engine, self.latest);
        }
        self.waiters.take_followers().wake();
    }
}

impl Core {
    pub(crate) fn new(engine: Engine, link: Box<dyn Link>, now: Instant) -> Self {
        let (attr, intake) = (engine.device().clone(), link.intake());
        let state = State { engine, link, waiters: Waiters::default(), gone: false, latest: now };
        let (state, behind) = (Mutex::new(state), AtomicBool::new(false));
        Self { attr, state, behind, intake, probes: Mutex::new(Vec::new()) }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls the engine at this moment.
    pub(super) fn with<R>(&self, call: impl FnOnce(&mut State) -> R) -> R {
        self.at(tokio::time::Instant::now().into_std(), |state, _| call(state))
    }

    /// Calls the engine at this moment, unless the device is gone.
    pub(super) fn with_live<R>(&self, call: impl FnOnce(&mut State) -> R) -> Result<R, DeviceError> {
        self.with(|state| if state.gone { Err(DeviceError::Gone) } else { Ok(call(state)) })
    }

    /// For calls that send nothing and wake nobody, unless the device is gone.
    pub(super) fn lock_live(&self) -> Result<MutexGuard<'_, State>, DeviceError> {
        let state = self.lock();
        if state.gone { Err(DeviceError::Gone) } else { Ok(state) }
    }

    /// Calls the engine at the given moment, or the latest one it knows if that is later; then lets the link send,
    /// and wakes whom it concerns.
    fn at<R>(&self, now: Instant, call: impl FnOnce(&mut State, Instant) -> R) -> R {
        let mut state = self.lock();
        let now = state.not_before(now);
        let result = call(&mut state, now);
        let mut has_room = self.settle(state, now);
        for _ in 1..ROUNDS {
            if !has_room {
                return result;
            }
            let mut state = self.lock();
            let now = state.not_before(now);
            has_room = self.settle(state, now);
        }
        if has_room {
            self.leave_to_task();
        }
        result
    }

    /// Lets the link send, and does what follows from the call that was made. Whether the link has room for more again.
    fn settle(&self, mut state: MutexGuard<'_, State>, now: Instant) -> bool {
        self.behind.store(false, Ordering::Relaxed);
        let aftermath = state.settle(now, true);
        drop(state);
        aftermath.see_to()
    }

    /// The engine has more to send than one caller shall: the link's own task goes on, in turn with others.
    fn leave_to_task(&self) {
        // First: the task looks at it before it rests.
        self.behind.store(true, Ordering::Relaxed);
        if let Some(intake) = &self.intake {
            intake.wake_task();
        }
    }

    /// What a link's task does at `now`: hands in packets, lets timers expire. `None` if the device is gone.
    pub(crate) fn drive<R>(&self, now: Instant, call: impl FnOnce(&mut Engine, Instant) -> R) -> Option<R> {
        self.at(now, |state, now| (!state.gone).then(|| call(&mut state.engine, now)))
    }

    /// The same, but what the engine has to send waits for the next call. The link sees to it that there is one, if
    /// the device [is behind](Self::is_behind). Only the NAK of a queue pair that failed leaves at once: it is never
    /// repeated, and a program that learns of the failure may do what keeps the next call away for long.
    pub(crate) fn drive_silently(&self, now: Instant, call: impl FnOnce(&mut Engine, Instant)) -> Option<()> {
        let failed = self.at_silently(now, |state, now| {
            if state.gone {
                return None;
            }
            let (due, errors) = (state.engine.poll_timeout(), state.engine.counters().qp_errors);
            call(&mut state.engine, now);
            if state.engine.has_packets() || state.engine.poll_timeout() != due {
                self.behind.store(true, Ordering::Relaxed);
            }
            Some(state.engine.counters().qp_errors != errors)
        })?;
        if failed {
            self.catch_up();
        }
        Some(())
    }

    /// Calls the engine at this moment for what makes it send nothing.
    pub(super) fn with_silently<R>(&self, call: impl FnOnce(&mut State) -> R) -> R {
        self.at_silently(tokio::time::Instant::now().into_std(), |state, _| call(state))
    }

    fn at_silently<R>(&self, now: Instant, call: impl FnOnce(&mut State, Instant) -> R) -> R {
        let mut state = self.lock();
        let now = state.not_before(now);
        let result = call(&mut state, now);
        let aftermath = state.settle(now, false);
        drop(state);
        aftermath.see_to();
        result
    }

    /// Whether the engine has something to send, or a time to come up at, that the link does not know of.
    pub(crate) fn is_behind(&self) -> bool {
        self.behind.load(Ordering::Relaxed)
    }

    /// Lets the link send what waits since the engine was driven silently.
    pub(crate) fn catch_up(&self) {
        if self.is_behind() {
            self.with(|_| ());
        }
    }

    /// Takes in what has arrived, in the place of the link's own task. Whether that was anything.
    pub(super) fn take_in(&self) -> bool {
        self.intake.as_ref().is_some_and(|intake| intake.take_in(self))
    }

    /// Takes the device away, and waits until its link holds nothing of the machine any more; nothing if the link is not
    /// the device's own.
    pub(super) async fn close(&self) {
        let closed = self.lock().link.closed();
        let Some(mut closed) = closed else { return };
        self.remove();
        // An error: the sender is gone.
        _ = closed.changed().await;
    }

    /// Takes the device away: all posted work is flushed, all calls answer [`DeviceError::Gone`].
    pub(crate) fn remove(&self) {
        self.at(tokio::time::Instant::now().into_std(), |state, now| {
            if state.gone {
                return;
            }
            // Before the queue pairs stop: acknowledgements.
            state.link.close(&mut state.engine, now);
            for qpn in state.engine.qpns() {
                // A QP in RESET has no work to flush.
                _ = state.engine.modify(qpn, Transition::Error);
            }
            while let Some(event) = state.engine.poll_event() {
                state.waiters.event(event, &state.engine);
            }
            state.gone = true;
            state.waiters.device_event(DeviceEvent::Gone, &state.engine);
            state.waiters.wake_all();
        });
    }

    /// Adds what [`Subnet::quiet`](crate::sim::Subnet::quiet) asks besides the device itself.
    pub(super) fn add_probe(&self, probe: Weak<dyn Probe>) {
        let mut probes = self.probes.lock().unwrap_or_else(PoisonError::into_inner);
        probes.retain(|probe| probe.strong_count() > 0);
        probes.push(probe);
    }

    /// QPs, memory regions, shared receive queues, and what the probes say. Nothing if the device is gone.
    pub(crate) fn held(&self) -> Vec<Held> {
        let name = &self.attr.name;
        let mut held = Vec::new();
        {
            let mut state = self.lock();
            let State { engine, gone, .. } = &mut *state;
            if *gone {
                return held;
            }
            held.extend(engine.qpns().into_iter().map(|qpn| {
                let (sends, receives) = engine.outstanding(qpn).unwrap_or_default();
                let what = format!("{name}: QP {qpn} with {sends} sends and {receives} receives posted");
                Held { what, ends: false }
            }));
            let regions =
                engine.rkeys().into_iter().map(|rkey| format!("memory region with key {:#x}", rkey.0));
            let srqs =
                engine.srqs().into_iter().map(|srq| format!("shared receive queue {:#x}", srq.number()));
            let others = regions.chain(srqs);
            held.extend(others.map(|what| Held { what: format!("{name}: {what}"), ends: false }));
        }
        let probes: Vec<_> = {
            let probes = self.probes.lock().unwrap_or_else(PoisonError::into_inner);
            probes.iter().filter_map(Weak::upgrade).collect()
        };
        let asked = probes.iter().flat_map(|probe| probe.held());
        held.extend(asked.map(|held| Held { what: format!("{name}: {}", held.what), ends: held.ends }));
        held
    }
}
