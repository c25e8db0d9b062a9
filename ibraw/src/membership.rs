//! Membership of a group.

use std::fmt;
use std::sync::Arc;

use crate::backend::Protocol;
use crate::core::Core;
use crate::{Group, RawError};

/// Membership of a group: it is left when this is dropped. Memberships are counted: a socket is a member until the last
/// of them has ended.
#[must_use = "the group is left when this is dropped"]
pub struct Membership<P: Protocol> {
    core: Arc<Core<P>>,
    group: Group,
    is_held: bool,
}

impl<P: Protocol> Membership<P> {
    pub(crate) fn new(core: Arc<Core<P>>, group: Group) -> Self {
        Self { core, group, is_held: true }
    }

    /// The group.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Leaves, and says whether that went well.
    ///
    /// # Errors
    /// [`RawError::NotMember`] if [`leave`](crate::RawSocket::leave) has ended this membership before.
    pub fn leave(mut self) -> Result<(), RawError> {
        self.is_held = false;
        self.core.leave(&self.group)
    }

    /// Keeps it until the socket is closed, or until it is left by name.
    pub fn forget(mut self) {
        self.is_held = false;
    }
}

impl<P: Protocol> Drop for Membership<P> {
    fn drop(&mut self) {
        if self.is_held {
            _ = self.core.leave(&self.group);
        }
    }
}

impl<P: Protocol> fmt::Debug for Membership<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Membership").field(&self.group).finish()
    }
}
