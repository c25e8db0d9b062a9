//! HCAs that close in the background: who opens the same device again waits for them, within a bound.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::shared::Shared;
use crate::sync::lock;

/// How long an HCA is waited for whose last handle was dropped: longer than a TimeWait by the defaults over RoCE, 0.7 s.
const LONGEST: Duration = Duration::from_secs(2);

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
/// Nobody tells when it is free: another subnet may have one of the same name, and sockets are closed a little after their HCA. So
/// it is tried again.
pub(crate) struct Patience(Option<Instant>);

impl Patience {
    /// To be asked for before the device is: what closes later is known now.
    pub(crate) fn with(device: &str) -> Self {
        // The last hold on one may be ours, and is not let go behind the lock.
        let known: Vec<_> = lock(&CLOSING).iter().filter_map(Weak::upgrade).collect();
        let closes = known.iter().any(|hca| hca.name == device);
        Self(closes.then(|| Instant::now() + LONGEST))
    }

    /// Waits until the next attempt; false if there shall be none.
    pub(crate) async fn rest(&self) -> bool {
        let goes_on = self.0.is_some_and(|until| Instant::now() < until);
        if goes_on {
            sleep(PAUSE).await;
        }
        goes_on
    }
}
