//! Completions of operations that are detached: their futures were dropped.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Wake, Waker};

use crate::parked::{Parked, Ticket};
use crate::proto::ConnHandle;
use crate::shared::{Hungry, Shared};

/// Makes the driver look at a connection's completions, as long as there are operations whose futures were dropped:
/// their buffers have to come home, and their failures to be noticed, whoever polls or does not.
pub(super) struct DetachedWatch {
    asking: Arc<Asking>,
    /// Among the tasks that a completion wakes.
    _ticket: Ticket,
}

struct Asking {
    shared: Weak<Shared>,
    conn: ConnHandle,
    asked: AtomicBool,
}

impl DetachedWatch {
    pub(super) fn new(shared: &Arc<Shared>, conn: ConnHandle, parked: &Arc<Parked>) -> Self {
        let asking = Arc::new(Asking { shared: Arc::downgrade(shared), conn, asked: AtomicBool::new(false) });
        let mut ticket = Ticket::new(parked);
        ticket.park(&Context::from_waker(&Waker::from(Arc::clone(&asking))));
        Self { asking, _ticket: ticket }
    }

    /// The driver looks now: what completes from here on asks again.
    pub(super) fn answered(&self) {
        self.asking.asked.store(false, Ordering::Release);
    }
}

impl Wake for Asking {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.asked.swap(true, Ordering::AcqRel)
            && let Some(shared) = self.shared.upgrade()
        {
            shared.feed(Hungry::Connection(self.conn));
        }
    }
}

impl fmt::Debug for DetachedWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DetachedWatch").field("conn", &self.asking.conn).finish_non_exhaustive()
    }
}
