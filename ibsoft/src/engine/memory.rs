//! Memory that peers reach by key: protection domains and regions (spec/softhca.md 2.5, 4).

use std::collections::VecDeque;

use ibdev::{Access, DeviceError, SharedMemory};
use ibwire::RKey;
use rand::RngExt;
use rand::rngs::ChaCha8Rng;
use slab::Slab;

use super::Engine;
use super::counters::Counters;
use super::limit::one_more;
use super::table::Table;

/// Names a protection domain of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct DomainId(u32);

impl DomainId {
    /// The domain that an engine has from the start and never loses.
    pub const DEFAULT: Self = Self(0);
}

/// What the peer of a QP may do with memory, before the region itself is asked.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Rights {
    pub(super) domain: DomainId,
    pub(super) access: Access,
}

/// Why a peer does not reach memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unreachable {
    /// There is no such key, or not any more.
    Key,
    /// The region is of another domain than the QP.
    Domain,
    /// The region does not allow it.
    Access,
    /// The bytes are not all inside.
    Range,
}

impl Unreachable {
    pub(super) fn count(self, counters: &mut Counters) {
        *match self {
            Self::Key => &mut counters.drop_rkey,
            Self::Domain => &mut counters.drop_domain,
            Self::Access => &mut counters.drop_region_access,
            Self::Range => &mut counters.drop_range,
        } += 1;
    }
}

#[derive(Debug)]
struct Region {
    domain: DomainId,
    access: Access,
    /// The address that peers name for the first byte.
    addr: u64,
    memory: SharedMemory,
}

/// All domains and regions.
#[derive(Debug)]
pub(super) struct Memory {
    /// How many regions, queues and QPs each domain has.
    domains: Slab<u32>,
    max_domains: usize,
    regions: Table<RKey, Region>,
    max_regions: usize,
    /// Keys that were valid not long ago. A peer that still uses one must not reach something else.
    retired: VecDeque<RKey>,
}

impl Memory {
    const RETIRED: usize = 256;
    /// Regions begin at addresses that look like a process's pages, and are none.
    const PAGES: std::ops::Range<u64> = 0x10..1 << 35;
    const PAGE: u64 = 4096;

    pub(super) fn new(max_domains: u32, max_regions: u32) -> Self {
        let mut domains = Slab::new();
        domains.insert(0);
        Self {
            domains,
            max_domains: (max_domains as usize).max(1),
            regions: Table::new(),
            max_regions: (max_regions as usize).min(Table::<RKey, Region>::MOST),
            retired: VecDeque::new(),
        }
    }

    pub(super) fn create_domain(&mut self) -> Result<DomainId, DeviceError> {
        one_more("protection domains", self.domains.len(), self.max_domains)?;
        Ok(DomainId(self.domains.insert(0) as u32))
    }

    /// # Errors
    /// [`DeviceError::InUse`] while something is in it, and for the default domain.
    pub(super) fn destroy_domain(&mut self, domain: DomainId) -> Result<(), DeviceError> {
        let what = "the protection domain";
        if domain == DomainId::DEFAULT {
            return Err(DeviceError::InUse { what, holder: "the device" });
        }
        if self.domains.get(domain.0 as usize).is_some_and(|users| *users > 0) {
            return Err(DeviceError::InUse { what, holder: "what was made in it: destroy that first" });
        }
        self.domains.try_remove(domain.0 as usize);
        Ok(())
    }

    /// Counts one more thing in a domain.
    ///
    /// # Errors
    /// [`DeviceError::Gone`] if there is no such domain.
    pub(super) fn enter(&mut self, domain: DomainId) -> Result<(), DeviceError> {
        *self.domains.get_mut(domain.0 as usize).ok_or(DeviceError::Gone)? += 1;
        Ok(())
    }

    /// Counts one thing less in a domain.
    pub(super) fn leave(&mut self, domain: DomainId) {
        if let Some(users) = self.domains.get_mut(domain.0 as usize) {
            *users -= 1;
        }
    }

    /// Lets the peers of a domain reach `memory`. Key and address are random; the address says nothing about where the
    /// memory is in this process.
    pub(super) fn register(
        &mut self,
        rng: &mut ChaCha8Rng,
        domain: DomainId,
        memory: SharedMemory,
        access: Access,
    ) -> Result<(RKey, u64), DeviceError> {
        one_more("memory regions", self.regions.len(), self.max_regions)?;
        self.enter(domain)?;
        let addr = rng.random_range(Self::PAGES) * Self::PAGE;
        let Self { regions, retired, .. } = self;
        let region = Region { domain, access, addr, memory };
        let rkey = regions.insert_unless(rng, |rkey| retired.contains(&rkey), |_, _| region);
        Ok((rkey, addr))
    }

    /// Ends the access by a key.
    pub(super) fn deregister(&mut self, rkey: RKey) {
        let Some(region) = self.regions.remove(rkey) else { return };
        self.leave(region.domain);
        if self.retired.len() == Self::RETIRED {
            self.retired.pop_front();
        }
        self.retired.push_back(rkey);
    }

    pub(super) fn regions(&self) -> usize {
        self.regions.len()
    }

    fn rkeys(&self) -> Vec<RKey> {
        self.regions.numbers().collect()
    }

    /// The memory, and where in it the `len` bytes at `addr` begin, if a peer may do `need` with all of them.
    pub(super) fn reach(
        &self,
        domain: DomainId,
        rkey: RKey,
        need: Access,
        addr: u64,
        len: usize,
    ) -> Result<(&SharedMemory, usize), Unreachable> {
        let region = self.regions.get(rkey).ok_or(Unreachable::Key)?;
        if region.domain != domain {
            return Err(Unreachable::Domain);
        }
        if !region.access.contains(need) {
            return Err(Unreachable::Access);
        }
        let at = addr.checked_sub(region.addr).and_then(|at| usize::try_from(at).ok());
        match at {
            Some(at) if region.memory.check(at, len).is_ok() => Ok((&region.memory, at)),
            _ => Err(Unreachable::Range),
        }
    }
}

impl Engine {
    /// Creates a protection domain.
    ///
    /// # Errors
    /// [`DeviceError::Limit`] if there are too many.
    pub fn create_domain(&mut self) -> Result<DomainId, DeviceError> {
        self.shared.memory.create_domain()
    }

    /// Destroys a protection domain.
    ///
    /// # Errors
    /// [`DeviceError::InUse`] while something is in it, and for the default domain.
    pub fn destroy_domain(&mut self, domain: DomainId) -> Result<(), DeviceError> {
        self.shared.memory.destroy_domain(domain)
    }

    /// Lets the peers of a domain's QPs reach `memory`, as far as `access` and the QP allow. Returns the key and the
    /// address of the first byte that they have to name. Both are random; the address is a multiple of 4096 and says
    /// nothing about where the memory is in this process.
    ///
    /// # Errors
    /// [`DeviceError::Limit`] if there are too many regions, [`DeviceError::Gone`] for a domain that was destroyed.
    pub fn register(
        &mut self,
        domain: DomainId,
        memory: SharedMemory,
        access: Access,
    ) -> Result<(RKey, u64), DeviceError> {
        self.shared.memory.register(&mut self.rng, domain, memory, access)
    }

    /// Ends the access to a region. What a peer asks for afterwards, and what it has asked for and not got, is refused
    /// with a NAK for a remote access error. The key is not given out again soon.
    pub fn deregister(&mut self, rkey: RKey) {
        self.shared.memory.deregister(rkey);
    }

    /// How many regions there are.
    pub fn region_count(&self) -> usize {
        self.shared.memory.regions()
    }

    /// The keys of the regions that there are.
    pub fn rkeys(&self) -> Vec<RKey> {
        self.shared.memory.rkeys()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::SeedableRng;

    use super::*;

    const READ: Access = Access::REMOTE_READ;

    fn setup(len: usize) -> (Memory, RKey, u64) {
        let mut memory = Memory::new(4, 4);
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let (rkey, addr) =
            memory.register(&mut rng, DomainId::DEFAULT, SharedMemory::zeroed(len), READ).unwrap();
        (memory, rkey, addr)
    }

    #[test]
    fn key_domain_access_range_in_this_order() {
        let (mut memory, rkey, addr) = setup(100);
        let other = memory.create_domain().unwrap();
        let reach =
            |domain, rkey, need, addr, len| memory.reach(domain, rkey, need, addr, len).map(|(_, at)| at);
        let write = Access::REMOTE_WRITE;
        assert_eq!(addr % 4096, 0);
        assert_eq!(reach(DomainId::DEFAULT, rkey, READ, addr + 40, 60), Ok(40));
        assert_eq!(reach(other, RKey(rkey.0 ^ 0x100), write, 0, 1), Err(Unreachable::Key));
        assert_eq!(reach(other, rkey, write, 0, 1), Err(Unreachable::Domain));
        assert_eq!(reach(DomainId::DEFAULT, rkey, write, 0, 1), Err(Unreachable::Access));
        assert_eq!(reach(DomainId::DEFAULT, rkey, READ, addr + 41, 60), Err(Unreachable::Range));
        assert_eq!(reach(DomainId::DEFAULT, RKey(0), READ, addr, 1), Err(Unreachable::Key));
    }

    proptest! {
        /// Against arithmetic that cannot wrap.
        #[test]
        fn no_range_wraps(
            len in 0usize..200,
            from in prop_oneof![any::<i64>(), -300i64..300],
            size in prop_oneof![0usize..300, any::<usize>()],
        ) {
            let (memory, rkey, addr) = setup(len);
            let at = addr.wrapping_add(from as u64);
            let inside = u128::from(at) >= u128::from(addr)
                && u128::from(at) + size as u128 <= u128::from(addr) + len as u128;
            prop_assert_eq!(memory.reach(DomainId::DEFAULT, rkey, READ, at, size).is_ok(), inside);
        }
    }

    #[test]
    fn a_key_is_gone_for_good() {
        let (mut memory, rkey, addr) = setup(8);
        memory.deregister(rkey);
        memory.deregister(rkey);
        assert_eq!(memory.reach(DomainId::DEFAULT, rkey, READ, addr, 8).err(), Some(Unreachable::Key));
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        for _ in 0..100 {
            // The same seed draws the same key first.
            let domain = DomainId::DEFAULT;
            let (next, _) = memory.register(&mut rng, domain, SharedMemory::zeroed(8), READ).unwrap();
            assert_ne!(next, rkey);
            memory.deregister(next);
        }
        assert_eq!(memory.regions(), 0);
    }

    #[test]
    fn numbers_are_bounded() {
        let (mut memory, rkey, _) = setup(8);
        let mut rng = ChaCha8Rng::seed_from_u64(2);
        let mut domains: Vec<_> = (0..3).map(|_| memory.create_domain().unwrap()).collect();
        assert!(matches!(memory.create_domain(), Err(DeviceError::Limit { value: 5, limit: 4, .. })));
        let mut register =
            |memory: &mut Memory, domain| memory.register(&mut rng, domain, SharedMemory::zeroed(8), READ);
        let keys: Vec<_> = domains.iter().map(|&domain| register(&mut memory, domain).unwrap().0).collect();
        let first = domains[0];
        assert!(matches!(register(&mut memory, first), Err(DeviceError::Limit { value: 5, limit: 4, .. })));
        assert!(matches!(memory.destroy_domain(first), Err(DeviceError::InUse { .. })));
        memory.deregister(keys[0]);
        memory.destroy_domain(first).unwrap();
        assert!(matches!(register(&mut memory, first), Err(DeviceError::Gone)));
        assert!(matches!(memory.destroy_domain(DomainId::DEFAULT), Err(DeviceError::InUse { .. })));
        domains[0] = memory.create_domain().unwrap();
        memory.deregister(rkey);
        register(&mut memory, domains[0]).unwrap();
    }
}
