//! A mutex that a panic elsewhere does not close, and one that is never locked.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks. What a panicking holder left is taken as it is: every critical section here leaves valid state at
/// each step.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is used through `&mut` alone: it is Sync even if `T` is not, for nobody who shares it can look at it.
pub(crate) struct Exclusive<T>(Mutex<T>);

impl<T> Exclusive<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}
