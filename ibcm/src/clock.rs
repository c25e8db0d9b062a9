//! The runtime's clock.

use std::time::Instant;

/// The time that the engine is told. Under tokio's paused clock it is virtual.
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
