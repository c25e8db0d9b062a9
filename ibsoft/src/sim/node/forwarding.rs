//! The forwarding tables of a switch.

use ibsa::record::SwitchInfo;
use ibwire::{Lid, TimeCode};

/// The tables of a switch, as large as what was set.
#[derive(Debug)]
pub(crate) struct Forwarding {
    pub info: SwitchInfo,
    linear: Vec<u8>,
    /// By MLID: a bit for each port, 16 a word.
    multicast: Vec<[u16; Self::POSITIONS]>,
}

/// A set of ports of a switch.
pub(crate) type PortMask = [u16; Forwarding::POSITIONS];

impl Forwarding {
    /// Entries in a block of the linear table.
    pub(crate) const LINEAR_BLOCK: usize = 64;
    /// Entries in a block of the multicast table.
    pub(crate) const MULTICAST_BLOCK: usize = 32;
    /// Words of a set of ports.
    pub(crate) const POSITIONS: usize = 16;
    /// No way.
    pub(crate) const NO_PORT: u8 = 255;
    const LINEAR_CAP: u16 = 0xc000;
    pub(crate) const MULTICAST_CAP: u16 = 0x3fff;
    pub(crate) const FIRST_MLID: u16 = 0xc000;

    pub(crate) fn new() -> Self {
        let info = SwitchInfo {
            linear_fdb_cap: Self::LINEAR_CAP,
            multicast_fdb_cap: Self::MULTICAST_CAP,
            // Nothing is in it.
            multicast_fdb_top: Lid(Self::FIRST_MLID - 1),
            life_time: TimeCode::truncate(18),
            partition_enforcement_cap: super::port::PKEYS as u16,
            inbound_enforcement_cap: true,
            outbound_enforcement_cap: true,
            filter_raw_inbound_cap: true,
            filter_raw_outbound_cap: true,
            default_multicast_primary_port: Self::NO_PORT,
            default_multicast_not_primary_port: Self::NO_PORT,
            ..SwitchInfo::default()
        };
        Self { info, linear: Vec::new(), multicast: Vec::new() }
    }

    /// The port towards a LID.
    pub(crate) fn port(&self, lid: Lid) -> Option<u8> {
        let entry = *self.linear.get(usize::from(lid.0)).filter(|_| lid.0 <= self.info.linear_fdb_top)?;
        (entry != Self::NO_PORT).then_some(entry)
    }

    /// The ports towards a group.
    pub(crate) fn ports(&self, mlid: Lid) -> Option<&PortMask> {
        // 0: it ends where it ends.
        let top = self.info.multicast_fdb_top;
        if top != Lid::NONE && mlid > top {
            return None;
        }
        self.multicast.get(usize::from(mlid.0.checked_sub(Self::FIRST_MLID)?))
    }

    pub(crate) fn linear_block(&self, block: usize) -> Option<[u8; Self::LINEAR_BLOCK]> {
        let first = Self::checked(block, Self::LINEAR_BLOCK, Self::LINEAR_CAP)?;
        Some(std::array::from_fn(|at| self.linear.get(first + at).copied().unwrap_or(Self::NO_PORT)))
    }

    /// Whether there is such a block.
    pub(crate) fn set_linear_block(&mut self, block: usize, entries: &[u8; Self::LINEAR_BLOCK]) -> bool {
        let Some(first) = Self::checked(block, Self::LINEAR_BLOCK, Self::LINEAR_CAP) else { return false };
        let end = first + Self::LINEAR_BLOCK;
        self.linear.resize(self.linear.len().max(end), Self::NO_PORT);
        self.linear[first..end].copy_from_slice(entries);
        true
    }

    pub(crate) fn multicast_block(
        &self,
        block: usize,
        position: usize,
    ) -> Option<[u16; Self::MULTICAST_BLOCK]> {
        let first = Self::checked(block, Self::MULTICAST_BLOCK, self.multicast_cap())?;
        let at = |index: usize| self.multicast.get(first + index).map_or(0, |mask| mask[position]);
        (position < Self::POSITIONS).then(|| std::array::from_fn(at))
    }

    /// Whether there is such a block.
    pub(crate) fn set_multicast_block(
        &mut self,
        block: usize,
        position: usize,
        entries: &[u16; Self::MULTICAST_BLOCK],
    ) -> bool {
        let first = Self::checked(block, Self::MULTICAST_BLOCK, self.multicast_cap());
        let Some(first) = first.filter(|_| position < Self::POSITIONS) else { return false };
        let end = first + Self::MULTICAST_BLOCK;
        self.multicast.resize(self.multicast.len().max(end), [0; Self::POSITIONS]);
        for (mask, entry) in self.multicast[first..end].iter_mut().zip(entries) {
            mask[position] = *entry;
        }
        true
    }

    fn multicast_cap(&self) -> u16 {
        self.info.multicast_fdb_cap.min(Self::MULTICAST_CAP)
    }

    /// The first entry of a block, if the table has it.
    fn checked(block: usize, len: usize, cap: u16) -> Option<usize> {
        block.checked_mul(len).filter(|first| *first < usize::from(cap))
    }
}

/// The ports of a set.
pub(crate) fn ports_of(mask: &PortMask) -> impl Iterator<Item = u8> + use<> {
    let mask = *mask;
    (0..Forwarding::POSITIONS as u8).flat_map(move |word| {
        let bits = mask[usize::from(word)];
        (0..16).filter(move |bit| bits >> bit & 1 != 0).map(move |bit| 16 * word + bit)
    })
}

#[cfg(test)]
impl Forwarding {
    /// Replaces the linear table by these routes.
    pub(crate) fn replace_routes(&mut self, routes: &[(u16, u8)]) {
        let top = routes.iter().map(|(lid, _)| *lid).max().unwrap_or(0);
        self.info.linear_fdb_top = top;
        self.linear.clear();
        self.linear.resize(usize::from(top) + 1, Self::NO_PORT);
        for (lid, port) in routes {
            self.linear[usize::from(*lid)] = *port;
        }
    }

    /// Sets the ports of a group.
    pub(crate) fn set_ports(&mut self, mlid: Lid, ports: PortMask) {
        let Some(at) = mlid.0.checked_sub(Self::FIRST_MLID).map(usize::from) else { return };
        self.multicast.resize(self.multicast.len().max(at + 1), [0; Self::POSITIONS]);
        self.multicast[at] = ports;
    }
}
