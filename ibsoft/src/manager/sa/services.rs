//! Service records and their leases (spec/sa.md 6.1).

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use ibsa::record::{Masked, ServiceRecord};
use ibwire::mad::MadStatus;
use ibwire::{Gid, PKey, ServiceId};

use super::answer::{Answer, Rows};
use super::request::{Request, status};
use super::{Sa, SaCounters};

/// What names a record.
type Identity = (ServiceId, Gid, PKey);

/// Service ID and GID.
const REQUIRED: u64 = 0b11;
const P_KEY: u32 = 2;
const LEASE: u32 = 4;

/// All records.
#[derive(Debug, Default)]
pub(super) struct Services {
    records: BTreeMap<Identity, Stored>,
    leases: BTreeSet<(Instant, Identity)>,
}

#[derive(Debug)]
struct Stored {
    record: ServiceRecord,
    /// When it ends; `None`: never.
    end: Option<Instant>,
}

impl Stored {
    /// The record as it is shown: with the time that is left.
    fn shown(&self, request: &Request<'_>) -> ServiceRecord {
        let left = self.end.map(|end| end.saturating_duration_since(request.now));
        let service_lease = left.map_or(ServiceRecord::FOR_EVER, |left| {
            left.as_secs().saturating_add(u64::from(left.subsec_nanos() > 0)).min(u64::from(u32::MAX - 1))
                as u32
        });
        let service_key = if request.is_trusted { self.record.service_key } else { [0; 16] };
        ServiceRecord { service_lease, service_key, ..self.record.clone() }
    }
}

impl Services {
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.leases.first().map(|(end, _)| *end)
    }

    pub(super) fn expire(&mut self, now: Instant, counters: &mut SaCounters) {
        while let Some((_, identity)) = self.leases.first().filter(|(end, _)| *end <= now).copied() {
            self.remove(&identity);
            counters.leases_expired += 1;
        }
    }

    /// Removes the records of ports that are gone.
    pub(super) fn forget(&mut self, is_gone: impl Fn(Gid) -> bool, counters: &mut SaCounters) {
        let gone: Vec<_> = self.records.keys().filter(|(_, gid, _)| is_gone(*gid)).copied().collect();
        counters.leases_expired += gone.len() as u64;
        for identity in &gone {
            self.remove(identity);
        }
    }

    fn remove(&mut self, identity: &Identity) -> Option<Stored> {
        let stored = self.records.remove(identity)?;
        if let Some(end) = stored.end {
            self.leases.remove(&(end, *identity));
        }
        Some(stored)
    }
}

impl Sa {
    pub(super) fn register(&mut self, request: &Request<'_>) -> Result<Answer, MadStatus> {
        let mut record: ServiceRecord = request.record()?;
        if !request.has_all(REQUIRED) {
            return Err(status::INVALID);
        }
        if !request.has(P_KEY) {
            record.service_p_key = PKey::DEFAULT;
        }
        if !request.has(LEASE) {
            record.service_lease = ServiceRecord::FOR_EVER;
        }
        let identity = identity(&record);
        let is_new = !self.services.records.contains_key(&identity);
        if is_new && self.services.records.len() >= self.config.limits.services {
            self.counters.no_resources += 1;
            return Err(status::NO_RESOURCES);
        }
        self.services.remove(&identity);
        let lease = Duration::from_secs(u64::from(record.service_lease));
        let end = (record.service_lease != ServiceRecord::FOR_EVER).then(|| request.now + lease);
        let stored = Stored { record, end };
        let answer = Answer::one(&stored.shown(request));
        if !lease.is_zero() {
            self.services.leases.extend(end.map(|end| (end, identity)));
            self.services.records.insert(identity, stored);
        }
        Ok(answer)
    }

    pub(super) fn unregister(&mut self, request: &Request<'_>) -> Result<Answer, MadStatus> {
        let mut record: ServiceRecord = request.record()?;
        if !request.has(P_KEY) {
            record.service_p_key = PKey::DEFAULT;
        }
        self.services.expire(request.now, &mut self.counters);
        let removed = self.services.remove(&identity(&record)).ok_or(status::NO_RECORDS)?;
        Ok(Answer::one(&removed.shown(request)))
    }

    pub(super) fn service_records(&self, request: &Request<'_>) -> Result<Rows, MadStatus> {
        let wanted: ServiceRecord = request.record()?;
        let mut rows = Rows::new(&self.config.limits);
        let mask = request.header.component_mask & !(1 << LEASE);
        let own = request.requester.and_then(|at| self.topology.port(at)).ok_or(status::NO_RECORDS)?;
        for stored in self.services.records.values() {
            let over = stored.end.is_some_and(|end| end <= request.now);
            let full = PKey(stored.record.service_p_key.0 | 0x8000);
            let sees = request.is_trusted || own.p_keys.iter().any(|key| key.matches(full));
            if !over && sees && stored.record.matches(&wanted, mask) {
                rows.push(&stored.shown(request))?;
            }
        }
        Ok(rows)
    }
}

fn identity(record: &ServiceRecord) -> Identity {
    (record.service_id, record.service_gid, record.service_p_key)
}
