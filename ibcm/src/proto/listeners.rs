//! Who takes requests for which service.

use hashbrown::HashMap;
use ibwire::{Gid, ServiceId};
use slab::Slab;

use super::command::{Listen, Overflow};
use super::endpoint::ListenerId;
use super::error::ListenError;
use super::ids::Keyed;
use super::invalid::{Invalid, Limit, Value};

/// All listeners.
#[derive(Debug)]
pub(super) struct Listeners {
    slots: Slab<Listener>,
    generation: u32,
    /// For each service the slots of its listeners, the most particular first.
    by_service: HashMap<ServiceId, Vec<u32>, Keyed>,
}

#[derive(Debug)]
struct Listener {
    generation: u32,
    listen: Listen,
    pending: usize,
    /// Requests for which there was no room.
    overflowed: u64,
}

impl Listener {
    /// Whether a request to this port and GID is for this listener.
    fn matches(&self, port: u8, gid: Gid) -> bool {
        self.listen.port.is_none_or(|wanted| wanted == port)
            && self.listen.local_gid.is_none_or(|wanted| wanted == gid)
    }
}

/// How particular a listener is: one with a GID comes before one with a port, that before one for all.
fn rank(listen: &Listen) -> u8 {
    u8::from(listen.local_gid.is_some()) << 1 | u8::from(listen.port.is_some())
}

impl Listeners {
    pub(super) fn new(keyed: Keyed) -> Self {
        Self { slots: Slab::new(), generation: 0, by_service: HashMap::with_hasher(keyed) }
    }

    pub(super) fn insert(&mut self, listen: Listen) -> Result<ListenerId, ListenError> {
        if listen.backlog == 0 {
            let least = Limit::AtLeast(Value::Number(1));
            return Err(Invalid::new("backlog", Value::Number(0), least).into());
        }
        let of_service = self.by_service.entry(listen.service_id).or_default();
        let same = |other: &Listen| (other.port, other.local_gid) == (listen.port, listen.local_gid);
        if of_service.iter().any(|&slot| same(&self.slots[slot as usize].listen)) {
            return Err(ListenError::AddrInUse);
        }
        let place =
            of_service.partition_point(|&slot| rank(&self.slots[slot as usize].listen) >= rank(&listen));
        self.generation = self.generation.wrapping_add(1);
        let listener = Listener { generation: self.generation, listen, pending: 0, overflowed: 0 };
        let slot = self.slots.insert(listener) as u32;
        of_service.insert(place, slot);
        Ok(ListenerId { slot, generation: self.generation })
    }

    pub(super) fn remove(&mut self, id: ListenerId) {
        if self.get(id).is_none() {
            return;
        }
        let service_id = self.slots.remove(id.slot as usize).listen.service_id;
        if let Some(of_service) = self.by_service.get_mut(&service_id) {
            of_service.retain(|&slot| slot != id.slot);
            if of_service.is_empty() {
                self.by_service.remove(&service_id);
            }
        }
    }

    /// Takes no more requests for any listener; they can still be asked about.
    pub(super) fn shut(&mut self) {
        self.by_service.clear();
    }

    /// Whose request it is that comes to this port and GID.
    pub(super) fn find(&self, service_id: ServiceId, port: u8, gid: Gid) -> Option<ListenerId> {
        let of_service = self.by_service.get(&service_id)?;
        let slot = *of_service.iter().find(|&&slot| self.slots[slot as usize].matches(port, gid))?;
        Some(ListenerId { slot, generation: self.slots[slot as usize].generation })
    }

    pub(super) fn is_full(&self, id: ListenerId) -> bool {
        self.get(id).is_none_or(|listener| listener.pending >= listener.listen.backlog)
    }

    pub(super) fn pending(&self, id: ListenerId) -> Option<usize> {
        self.get(id).map(|listener| listener.pending)
    }

    /// There is no room for a request. What happens to it.
    pub(super) fn overflow(&mut self, id: ListenerId) -> Overflow {
        self.get_mut(id).map_or(Overflow::Drop, |listener| {
            listener.overflowed += 1;
            listener.listen.overflow
        })
    }

    pub(super) fn overflowed(&self, id: ListenerId) -> Option<u64> {
        self.get(id).map(|listener| listener.overflowed)
    }

    /// A request was handed to the listener.
    pub(super) fn request_added(&mut self, id: ListenerId) {
        if let Some(listener) = self.get_mut(id) {
            listener.pending += 1;
        }
    }

    /// A request of the listener, which may be gone meanwhile, is decided or has ended.
    pub(super) fn request_decided(&mut self, id: ListenerId) {
        if let Some(listener) = self.get_mut(id) {
            listener.pending -= 1;
        }
    }

    fn get(&self, id: ListenerId) -> Option<&Listener> {
        self.slots.get(id.slot as usize).filter(|listener| listener.generation == id.generation)
    }

    fn get_mut(&mut self, id: ListenerId) -> Option<&mut Listener> {
        self.slots.get_mut(id.slot as usize).filter(|listener| listener.generation == id.generation)
    }
}

#[cfg(test)]
mod tests {
    use ibwire::RejReason;
    use rand::SeedableRng;
    use rand::rngs::ChaCha8Rng;

    use super::*;

    const SERVICE: ServiceId = ServiceId::new(1);

    #[test]
    fn the_most_particular_listener_wins() {
        let mut listeners = Listeners::new(Keyed::new(&mut ChaCha8Rng::from_seed([0; 32])));
        let gid = Gid([1; 16]);
        let any = listeners.insert(Listen::new(SERVICE)).unwrap();
        let by_gid = listeners.insert(Listen { local_gid: Some(gid), ..Listen::new(SERVICE) }).unwrap();
        let by_port = listeners.insert(Listen { port: Some(2), ..Listen::new(SERVICE) }).unwrap();
        assert_eq!(listeners.find(SERVICE, 2, gid), Some(by_gid));
        assert_eq!(listeners.find(SERVICE, 2, Gid([2; 16])), Some(by_port));
        assert_eq!(listeners.find(SERVICE, 1, Gid([2; 16])), Some(any));
        assert_eq!(listeners.find(ServiceId::new(2), 1, gid), None);
        assert_eq!(listeners.insert(Listen::new(SERVICE)), Err(ListenError::AddrInUse));

        listeners.remove(any);
        listeners.remove(any);
        assert_eq!(listeners.find(SERVICE, 1, Gid([2; 16])), None);
        let again = listeners.insert(Listen::new(SERVICE)).unwrap();
        assert_ne!(again, any);
        assert_eq!(listeners.pending(any), None);
        listeners.request_decided(any);
        assert_eq!(listeners.pending(again), Some(0));
    }

    #[test]
    fn overflows_are_counted_until_the_listener_is_removed() {
        let mut listeners = Listeners::new(Keyed::new(&mut ChaCha8Rng::from_seed([0; 32])));
        let overflow = Overflow::Reject(RejReason::NO_RESOURCES);
        let id = listeners.insert(Listen { backlog: 1, overflow, ..Listen::new(SERVICE) }).unwrap();
        assert!(!listeners.is_full(id));
        listeners.request_added(id);
        assert!(listeners.is_full(id));
        assert_eq!(listeners.overflow(id), overflow);
        listeners.shut();
        assert_eq!((listeners.find(SERVICE, 1, Gid([1; 16])), listeners.overflowed(id)), (None, Some(1)));
        listeners.remove(id);
        assert_eq!((listeners.overflow(id), listeners.overflowed(id)), (Overflow::Drop, None));
    }

    #[test]
    fn a_backlog_of_nothing_is_refused() {
        let mut listeners = Listeners::new(Keyed::new(&mut ChaCha8Rng::from_seed([0; 32])));
        let error = listeners.insert(Listen { backlog: 0, ..Listen::new(SERVICE) }).unwrap_err();
        assert_eq!(error.to_string(), "backlog is 0, at least 1 is needed");
    }
}
