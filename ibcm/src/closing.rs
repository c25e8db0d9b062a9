//! HCAs that close in the background: who opens the same device again waits for them, within a bound.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::shared::{Phase, Shared};
use crate::sync::lock;

/// How long an HCA is waited for whose last handle was dropped: longer than a TimeWait by the defaults over RoCE, 0.7 s.
const LONGEST: Duration = Duration::from_secs(2);

/// How long one that has ended may tell an SA what it gives up, which [`Client::shutdown`](crate::sa::Client::shutdown) bounds by 5 s,
/// and a little more.
const TELLING: Duration = Duration::from_millis(5_100);

/// How long the system may hold what was an HCA's.
const AFTER: Duration = Duration::from_millis(50);

/// From one attempt to the next.
const PAUSE: Duration = Duration::from_millis(2);

/// Those whose last handle was dropped.
static CLOSING: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

/// The last handle of this HCA is dropped.
pub(crate) fn note(shared: &Arc<Shared>) {
    let mut closing = lock(&CLOSING);
    closing.retain(|known| known.strong_count() > 0);
    closing.push(Arc::downgrade(shared));
}

/// The patience of who opens a device that is in use: none, if no HCA of a device with this name closes.
///
/// It is tried again until the device is free, which nobody tells: a device of another subnet may have the same name, and sockets
/// are closed a little after their HCA.
pub(crate) struct Patience {
    closing: Vec<Weak<Shared>>,
    until: Option<Instant>,
}

impl Patience {
    /// To be asked for before the device is: what closes later is known now.
    pub(crate) fn with(device: &str) -> Self {
        // The last hold on one may be ours, and is not let go behind the lock.
        let known: Vec<_> = lock(&CLOSING).iter().filter_map(Weak::upgrade).collect();
        let of_device = known.iter().filter(|hca| hca.name == device);
        let closing: Vec<_> = of_device.map(Arc::downgrade).collect();
        let until = (!closing.is_empty()).then(|| Instant::now() + LONGEST);
        Self { closing, until }
    }

    /// Waits until the next attempt; false if there shall be none.
    pub(crate) async fn rest(&mut self) -> bool {
        let Some(until) = &mut self.until else { return false };
        let now = Instant::now();
        if !self.closing.is_empty() {
            self.closing.retain(|hca| hca.upgrade().is_some_and(|hca| !hca.engine().device_closed));
            if self.closing.is_empty() {
                *until = (*until).min(now + AFTER);
            }
        }
        let goes_on = now < *until;
        if goes_on {
            sleep(PAUSE).await;
        }
        goes_on
    }

    /// Waits for those whose drivers have ended and that only tell an SA what they give up, as long as that is why an agent for
    /// it is `in_use`: a silent SA takes them longer than the rest of their end.
    pub(crate) async fn for_sa(&self, in_use: impl Fn() -> bool) {
        let until = Instant::now() + TELLING;
        let tells = |hca: Arc<Shared>| {
            let engine = hca.engine();
            engine.phase == Phase::Closed && !engine.device_closed
        };
        while Instant::now() < until && self.closing.iter().filter_map(Weak::upgrade).any(tells) && in_use() {
            sleep(PAUSE).await;
        }
    }
}
