//! Alias GUIDs of ports (spec/sa.md 3.9).

use ibsa::record::GuidInfoRecord;
use ibwire::Guid;
use ibwire::mad::MadStatus;

use super::Sa;
use super::answer::Answer;
use super::records::{guid_block, guid_blocks};
use super::request::{Request, status};
use crate::manager::topology::{PortAt, Topology};

/// The bit of the first GUID in the mask.
const FIRST: usize = 4;
/// LID and block.
const REQUIRED: u64 = 0b11;
/// The first GUID that the service gives by itself; OpenSM's choice.
const FIRST_ASSIGNED: u64 = 0x0014_0500_0000_0001;

impl Sa {
    pub(super) fn set_guids(&mut self, request: &Request<'_>) -> Result<Answer, MadStatus> {
        let (at, record) = self.guids_of(request)?;
        let stored = self.stored_block(at, record.block_num);
        let is_replaced = |index: usize| stored[index] != record.guids[index];
        if named(request).any(|index| is_replaced(index) && self.groups.has_member(stored[index])) {
            return Err(status::DENIED);
        }
        for index in named(request) {
            let guid = match record.guids[index] {
                Guid(0) => Some(self.unused_guid()),
                guid => self.topology.at_guid(guid).is_none().then_some(guid),
            };
            self.put_guid(at, &record, index, guid);
        }
        self.guid_answer(at, record.block_num, |index, guid| {
            // A GUID that another port has is answered with 0.
            let refused = request.has((FIRST + index) as u32)
                && record.guids[index] != Guid(0)
                && record.guids[index] != guid;
            if refused { Guid(0) } else { guid }
        })
    }

    pub(super) fn delete_guids(&mut self, request: &Request<'_>) -> Result<Answer, MadStatus> {
        let (at, record) = self.guids_of(request)?;
        let stored = self.stored_block(at, record.block_num);
        if named(request).any(|index| self.groups.has_member(stored[index])) {
            return Err(status::DENIED);
        }
        for index in named(request) {
            self.put_guid(at, &record, index, Some(Guid(0)));
        }
        self.guid_answer(at, record.block_num, |_, guid| guid)
    }

    /// The port and block that a request is about, checked.
    fn guids_of(&self, request: &Request<'_>) -> Result<(PortAt, GuidInfoRecord), MadStatus> {
        let record: GuidInfoRecord = request.record()?;
        if !request.has_all(REQUIRED) {
            return Err(status::INSUFFICIENT);
        }
        if record.block_num == 0 && request.has(FIRST as u32) {
            return Err(status::INVALID); // a port's own GUID stays
        }
        let at = self.topology.at_lid(record.lid).ok_or(status::NO_RECORDS)?;
        let port = self.topology.port(at).ok_or(status::NO_RECORDS)?;
        if record.block_num >= guid_blocks(port) {
            return Err(status::NO_RECORDS);
        }
        let may =
            request.requester.is_some_and(|requester| self.topology.device_shares_p_key(requester.node, at));
        if may { Ok((at, record)) } else { Err(status::NO_RECORDS) }
    }

    /// A block of GUIDs as it is now.
    fn stored_block(&self, at: PortAt, block_num: u8) -> [Guid; 8] {
        self.topology.port(at).map(|port| guid_block(port, block_num)).unwrap_or_default()
    }

    fn put_guid(&mut self, at: PortAt, record: &GuidInfoRecord, index: usize, guid: Option<Guid>) {
        let (Some(guid), Some(port)) = (guid, self.topology.port_mut(at)) else { return };
        let slot = usize::from(record.block_num) * 8 + index;
        if slot >= usize::from(port.info.guid_cap) {
            return;
        }
        if port.guids.len() <= slot {
            port.guids.resize(slot + 1, Guid(0));
        }
        port.guids[slot] = guid;
        self.topology.index();
    }

    fn guid_answer(
        &self,
        at: PortAt,
        block_num: u8,
        shown: impl Fn(usize, Guid) -> Guid,
    ) -> Result<Answer, MadStatus> {
        let port = self.topology.port(at).ok_or(status::NO_RECORDS)?;
        let mut guids = guid_block(port, block_num);
        guids.iter_mut().enumerate().for_each(|(index, guid)| *guid = shown(index, *guid));
        Ok(Answer::one(&GuidInfoRecord { lid: port.info.lid, block_num, guids }))
    }

    fn unused_guid(&self) -> Guid {
        let mut guid = Guid(FIRST_ASSIGNED);
        while self.topology.at_guid(guid).is_some() {
            guid.0 += 1;
        }
        guid
    }

    /// Gives the ports of a new topology the aliases that they had.
    pub(super) fn keep_aliases(&self, topology: &mut Topology) {
        let ends: Vec<_> = topology.end_ports().map(|(at, port)| (at, port.guid())).collect();
        for (at, guid) in ends {
            let old = self.topology.at_guid(guid).and_then(|old| self.topology.port(old));
            let Some((old, port)) = old.zip(topology.port_mut(at)) else { continue };
            if old.guid() == guid && old.guids.len() > port.guids.len() {
                port.guids.clone_from(&old.guids);
            }
        }
    }
}

/// The GUIDs of the block that a request names.
fn named(request: &Request<'_>) -> impl Iterator<Item = usize> {
    (0..8).filter(|index| request.has((FIRST + index) as u32))
}
