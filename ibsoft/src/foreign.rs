//! Code that others have given us to call: wakers, the homes of buffers, what follows a device's events.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Calls it. A panic there is reported and ends there: whoever happens to make the call has nothing to do with it, and the
/// calls behind it are still to be made.
pub(crate) fn call(what: &'static str, call: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(call)).is_err() {
        tracing::error!(what, "code that a device called for others panicked");
    }
}
