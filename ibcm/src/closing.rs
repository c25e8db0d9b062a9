//! HCAs that close in the background: who opens the same device again waits for them, within a bound.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use crate::handshake;
use crate::shared::Shared;
use crate::sync::lock;

/// How long an HCA is waited for whose last handle was dropped: longer than a TimeWait by the defaults over RoCE, 0.7 s.
pub(crate) const LONGEST: Duration = Duration::from_secs(2);

/// Those whose last handle was dropped.
static CLOSING: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

/// The last handle of this HCA is dropped.
pub(crate) fn note(shared: &Arc<Shared>) {
    let mut closing = lock(&CLOSING);
    closing.retain(|known| known.strong_count() > 0);
    closing.push(Arc::downgrade(shared));
}

/// Waits for the HCAs of the device with this name. False if there was none, or one that did not close in time.
pub(crate) async fn wait(device: &str) -> bool {
    // The last hold on one may be ours, and is not let go behind the lock.
    let known: Vec<_> = lock(&CLOSING).iter().filter_map(Weak::upgrade).collect();
    let closing: Vec<_> =
        known.into_iter().filter(|hca| &*hca.name == device && !hca.engine().device_closed).collect();
    let all = async {
        for hca in &closing {
            handshake::until(&hca.parked, || hca.engine().device_closed).await;
        }
    };
    !closing.is_empty() && tokio::time::timeout(LONGEST, all).await.is_ok()
}
