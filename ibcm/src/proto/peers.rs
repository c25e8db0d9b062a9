//! Connections that ask for their peers, which may ask for them at the same time (spec/cm.md 4.7).

use hashbrown::HashMap;
use ibwire::{Gid, ServiceId};

use super::ids::Keyed;

/// What two REQs that cross have in common: the service, and the ends of the path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Meeting {
    pub(super) service_id: ServiceId,
    pub(super) local_gid: Gid,
    pub(super) remote_gid: Gid,
}

/// Those that have no answer yet, by where their peers would ask for them.
#[derive(Debug)]
pub(super) struct Peers(HashMap<Meeting, Vec<u32>, Keyed>);

impl Peers {
    pub(super) fn new(keyed: Keyed) -> Self {
        Self(HashMap::with_hasher(keyed))
    }

    pub(super) fn insert(&mut self, meeting: Meeting, slot: u32) {
        self.0.entry(meeting).or_default().push(slot);
    }

    pub(super) fn remove(&mut self, meeting: Meeting, slot: u32) {
        if let Some(waiting) = self.0.get_mut(&meeting) {
            waiting.retain(|&other| other != slot);
            if waiting.is_empty() {
                self.0.remove(&meeting);
            }
        }
    }

    /// The slots of those who wait there, the oldest first.
    pub(super) fn at(&self, meeting: Meeting) -> &[u32] {
        self.0.get(&meeting).map_or(&[], Vec::as_slice)
    }
}
