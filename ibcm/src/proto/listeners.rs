//! Who takes requests for which service (spec/cm.md 4.12).

use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use ibwire::{Gid, Lid, PrivateData, ServiceId, TimeCode};
use slab::Slab;

use super::command::{Listen, Overflow};
use super::config::Config;
use super::endpoint::ListenerId;
use super::error::ListenError;
use super::ids::Keyed;
use super::invalid::{Invalid, Limit, Value};
use super::transport::{Transport, Transports};

/// All listeners.
#[derive(Debug)]
pub(super) struct Listeners {
    slots: Slab<Listener>,
    generation: u32,
    /// For each service the slots of its listeners, the most particular first.
    by_service: HashMap<(u64, ServiceId), Vec<u32>, Keyed>,
    /// The masks that listeners have, those with most bits first, each with the number of services under it.
    masks: Vec<(u64, usize)>,
}

#[derive(Debug)]
struct Listener {
    generation: u32,
    listen: Listen,
    mra_terms: MraTerms,
    pending: usize,
    /// Requests for which there was no room.
    overflowed: u64,
}

/// What a listener's peers are told while they wait for an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MraTerms {
    /// How long the user takes to decide, if that is known.
    pub(super) turnaround: Option<Duration>,
    /// How long each MRA asks for.
    pub(super) service_timeout: TimeCode,
    /// What it carries, unless that is nothing.
    pub(super) data: Option<Arc<PrivateData<222>>>,
}

/// Where a request is addressed to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub(super) service_id: ServiceId,
    pub(super) port: u8,
    pub(super) gid: Gid,
    pub(super) lid: Lid,
    pub(super) private_data: &'a PrivateData<92>,
}

impl Listener {
    /// Whether a request to this end is for this listener. Its service is.
    fn matches(&self, wanted: &Wanted<'_>) -> bool {
        let Listen { port, local_gid, local_lid, discriminator, .. } = &self.listen;
        port.is_none_or(|port| port == wanted.port)
            && local_gid.is_none_or(|gid| gid == wanted.gid)
            && local_lid.is_none_or(|lid| lid == wanted.lid)
            && discriminator.is_none_or(|discriminator| discriminator.matches(wanted.private_data))
    }
}

/// Under which listeners are found: the mask and what it leaves of the ID.
fn service(listen: &Listen) -> (u64, ServiceId) {
    (listen.service_mask, listen.service_id)
}

/// How particular a listener is among those of its service: a GID counts most, then a LID, a port, and a discriminator,
/// the longer the more.
fn rank(listen: &Listen) -> (bool, bool, bool, usize) {
    let discriminated = listen.discriminator.map_or(0, |discriminator| discriminator.pattern().len());
    (listen.local_gid.is_some(), listen.local_lid.is_some(), listen.port.is_some(), discriminated)
}

/// Whether a request that fits the one always fits the other.
fn is_same(a: &Listen, b: &Listen) -> bool {
    let key = |listen: &Listen| (listen.port, listen.local_gid, listen.local_lid, listen.discriminator);
    key(a) == key(b)
}

fn check(listen: &Listen) -> Result<(), Invalid> {
    if listen.backlog == 0 {
        return Err(Invalid::new("backlog", Value::Number(0), Limit::AtLeast(Value::Number(1))));
    }
    if listen.service_id.0 & !listen.service_mask != 0 {
        let must = Limit::Must("0 where the service mask is");
        return Err(Invalid::new("service ID", Value::ServiceId(listen.service_id), must));
    }
    if let Some(lid) = listen.local_lid.filter(|lid| !lid.is_unicast()) {
        return Err(Invalid::new("local LID", Value::Lid(lid), Limit::Must("the LID of a port")));
    }
    if listen.transports == Transports::NONE {
        return Err(Invalid::new("transports", Value::Number(0), Limit::AtLeast(Value::Number(1))));
    }
    if listen.turnaround == Some(Duration::ZERO) {
        let must = Limit::Must("more than zero");
        return Err(Invalid::new("turnaround", Value::Time(Duration::ZERO), must));
    }
    Ok(())
}

impl MraTerms {
    fn new(listen: &Listen, config: &Config) -> Self {
        let most = config.max_mra_service_timeout;
        Self {
            turnaround: listen.turnaround,
            service_timeout: listen
                .turnaround
                .map_or(config.mra_service_timeout, |time| TimeCode::at_least(time).min(most)),
            data: (listen.mra_data != PrivateData::EMPTY).then(|| Arc::new(listen.mra_data)),
        }
    }

    /// What a peer is told that asked no listener.
    pub(super) const fn default(config: &Config) -> Self {
        Self { turnaround: None, service_timeout: config.mra_service_timeout, data: None }
    }

    /// After what part of the time that a request gives for its answer its peer is asked for more.
    pub(super) fn asked_after(&self, answer_within: Duration) -> Duration {
        match self.turnaround {
            Some(turnaround) if turnaround > answer_within => Duration::ZERO,
            _ => answer_within / 2,
        }
    }
}

impl Listeners {
    pub(super) fn new(keyed: Keyed) -> Self {
        Self { slots: Slab::new(), generation: 0, by_service: HashMap::with_hasher(keyed), masks: Vec::new() }
    }

    pub(super) fn insert(&mut self, listen: Listen, config: &Config) -> Result<ListenerId, ListenError> {
        check(&listen)?;
        let (mask, _) = service(&listen);
        let of_service = self.by_service.entry(service(&listen)).or_default();
        if of_service.iter().any(|&slot| is_same(&self.slots[slot as usize].listen, &listen)) {
            return Err(ListenError::AddrInUse);
        }
        if of_service.is_empty() {
            match self.masks.iter_mut().find(|known| known.0 == mask) {
                Some((_, services)) => *services += 1,
                None => {
                    let place = self.masks.partition_point(|known| known.0.count_ones() >= mask.count_ones());
                    self.masks.insert(place, (mask, 1));
                }
            }
        }
        let place =
            of_service.partition_point(|&slot| rank(&self.slots[slot as usize].listen) >= rank(&listen));
        self.generation = self.generation.wrapping_add(1);
        let mra_terms = MraTerms::new(&listen, config);
        let listener = Listener { generation: self.generation, listen, mra_terms, pending: 0, overflowed: 0 };
        let slot = self.slots.insert(listener) as u32;
        of_service.insert(place, slot);
        Ok(ListenerId { slot, generation: self.generation })
    }

    pub(super) fn remove(&mut self, id: ListenerId) {
        if self.get(id).is_none() {
            return;
        }
        let service = service(&self.slots.remove(id.slot as usize).listen);
        let Some(of_service) = self.by_service.get_mut(&service) else { return };
        of_service.retain(|&slot| slot != id.slot);
        if !of_service.is_empty() {
            return;
        }
        self.by_service.remove(&service);
        self.masks.retain_mut(|(mask, services)| {
            *services -= usize::from(*mask == service.0);
            *services > 0
        });
    }

    /// Takes no more requests for any listener; they can still be asked about.
    pub(super) fn shut(&mut self) {
        self.by_service.clear();
        self.masks.clear();
    }

    /// Whose request it is.
    pub(super) fn find(&self, wanted: &Wanted<'_>) -> Option<ListenerId> {
        let slot = self.masks.iter().find_map(|&(mask, _)| {
            let of_service = self.by_service.get(&(mask, ServiceId(wanted.service_id.0 & mask)))?;
            of_service.iter().find(|&&slot| self.slots[slot as usize].matches(wanted)).copied()
        })?;
        Some(ListenerId { slot, generation: self.slots[slot as usize].generation })
    }

    /// Whether it takes requests for this transport.
    pub(super) fn takes(&self, id: ListenerId, transport: Transport) -> bool {
        self.get(id).is_some_and(|listener| listener.listen.transports.contains(transport))
    }

    /// What its peers are told while they wait.
    pub(super) fn mra_terms(&self, id: ListenerId) -> Option<&MraTerms> {
        self.get(id).map(|listener| &listener.mra_terms)
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
mod tests;
