//! Multicast groups and their members (spec/sa.md section 5).

use std::collections::{BTreeMap, BTreeSet};

use ibsa::record::{JoinState, Masked, McMemberRecord, NoticeDetails, ProxyJoin, SwitchInfo};
use ibwire::mad::MadStatus;
use ibwire::{Gid, Guid, Lid, Mtu, PKey, PacketLifeTime, QKey, Rate, Selector};

use super::Sa;
use super::answer::{Answer, Rows};
use super::paths::{are_codes, limit_mtu, limit_rate};
use super::request::{Request, status};
use crate::manager::routing::MulticastTree;
use crate::manager::topology::{NodeId, Port, PortAt, rank, ranked};

/// What a join has to name.
const JOIN: u64 = 0x1_0003;
/// What a join has to name that makes a group.
const CREATE: u64 = 0x1_30c7;
/// Joins that keep a group alive.
const KEEPS: JoinState = JoinState::FULL_MEMBER.union(JoinState::SEND_ONLY_FULL_MEMBER);
const FIRST_MLID: u16 = 0xc000;
const LAST_MLID: u16 = 0xfffe;
/// Signatures in MGIDs: assigned by the SA, IPoIB over IPv4 and IPv6.
const ASSIGNED: [u8; 2] = [0xa0, 0x1b];
const IPOIB: [[u8; 2]; 2] = [[0x40, 0x1b], [0x60, 0x1b]];
const LINK_LOCAL: u8 = 2;

/// A group.
#[derive(Debug)]
pub(super) struct Group {
    /// What all members have in common.
    common: McMemberRecord,
    members: BTreeMap<Gid, Member>,
}

/// A port in a group.
#[derive(Debug, Clone, Copy)]
struct Member {
    state: JoinState,
    /// The port that joined for it, if it was another one.
    proxy: Option<Gid>,
}

impl Group {
    /// What all members have in common.
    pub(super) const fn record(&self) -> &McMemberRecord {
        &self.common
    }

    pub(super) fn has_member(&self, gid: Gid) -> bool {
        self.members.contains_key(&gid)
    }

    fn is_kept(&self) -> bool {
        self.members.values().any(|member| member.state.intersects(KEEPS))
    }

    fn member_record(&self, gid: Gid, member: Member) -> McMemberRecord {
        McMemberRecord {
            port_gid: gid,
            join_state: member.state,
            proxy_join: ProxyJoin(member.proxy.is_some()),
            ..self.common.clone()
        }
    }
}

/// All groups.
#[derive(Debug, Default)]
pub(super) struct Groups {
    by_mgid: BTreeMap<Gid, Group>,
    mlids: BTreeMap<Lid, Gid>,
    /// How many MLIDs in a row are in use, counted from the first.
    used: u16,
    assigned: u32,
    /// MLIDs whose members have changed since the subnet manager asked.
    changed: BTreeSet<Lid>,
}

impl Groups {
    pub(super) fn get(&self, mgid: Gid) -> Option<&Group> {
        self.by_mgid.get(&mgid)
    }

    /// Whether a port with this GUID is in a group.
    pub(super) fn has_member(&self, guid: Guid) -> bool {
        let members = self.by_mgid.values().flat_map(|group| group.members.keys());
        guid != Guid(0) && members.into_iter().any(|gid| gid.interface_id() == guid.0)
    }

    /// The lowest MLID that no group has.
    fn free_mlid(&mut self) -> Option<Lid> {
        while self.mlids.contains_key(&Lid(FIRST_MLID + self.used)) {
            self.used += 1;
        }
        Some(Lid(FIRST_MLID + self.used)).filter(|mlid| mlid.0 <= LAST_MLID)
    }

    fn end(&mut self, mgid: Gid) {
        if let Some(group) = self.by_mgid.remove(&mgid) {
            let mlid = group.common.mlid;
            self.mlids.remove(&mlid);
            self.used = self.used.min(mlid.0 - FIRST_MLID);
            self.changed.insert(mlid);
        }
    }

    /// Ends the memberships of ports that are gone; which groups ended with them.
    pub(super) fn forget(&mut self, is_gone: impl Fn(Gid) -> bool) -> Vec<Gid> {
        for group in self.by_mgid.values_mut() {
            let before = group.members.len();
            group.members.retain(|gid, _| !is_gone(*gid));
            if group.members.len() != before {
                self.changed.insert(group.common.mlid);
            }
        }
        self.sweep()
    }

    /// Deletes the groups that nobody keeps alive.
    fn sweep(&mut self) -> Vec<Gid> {
        let ended: Vec<_> =
            self.by_mgid.iter().filter(|(_, group)| !group.is_kept()).map(|(mgid, _)| *mgid).collect();
        ended.iter().for_each(|mgid| self.end(*mgid));
        ended
    }
}

/// The ports that packets to a multicast LID have to reach, and those that send there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupTree {
    /// The multicast LID.
    pub mlid: Lid,
    /// End ports of members that receive.
    pub receivers: Vec<PortAt>,
    /// End ports of members that only send.
    pub senders: Vec<PortAt>,
}

impl Sa {
    /// The multicast LIDs whose members have changed since the last call: their trees are due.
    pub fn take_changed_groups(&mut self) -> Vec<GroupTree> {
        let changed = std::mem::take(&mut self.groups.changed);
        changed.into_iter().map(|mlid| self.group_tree(mlid)).collect()
    }

    /// The ports of the switches that lead to a group, as they are shown from now on.
    pub fn set_tree(&mut self, mlid: Lid, tree: &MulticastTree) {
        for switch in self.topology.nodes.iter_mut().filter_map(|node| node.switch.as_mut()) {
            switch.multicast.remove(&mlid);
        }
        for (node, ports) in &tree.ports {
            if let Some(switch) = self.topology.nodes.get_mut(*node).and_then(|node| node.switch.as_mut()) {
                switch.multicast.insert(mlid, ports.clone());
            }
        }
    }

    /// The multicast table of a switch reaches as far as this LID from now on. What the switch is to be told, if that is new.
    pub(in crate::manager) fn raise_multicast_top(&mut self, node: NodeId, to: Lid) -> Option<SwitchInfo> {
        let it = self.topology.nodes.get_mut(node).filter(|it| it.has_multicast_top())?;
        let info = &mut it.switch.as_mut()?.info;
        let last = (FIRST_MLID - 1).saturating_add(info.multicast_fdb_cap);
        let top = to.min(Lid(last));
        (info.multicast_fdb_top < top).then(|| {
            info.multicast_fdb_top = top;
            info.clone()
        })
    }

    /// Who is in a group.
    fn group_tree(&self, mlid: Lid) -> GroupTree {
        let mut tree = GroupTree { mlid, receivers: Vec::new(), senders: Vec::new() };
        let group = self.groups.mlids.get(&mlid).and_then(|mgid| self.groups.by_mgid.get(mgid));
        for (gid, member) in group.into_iter().flat_map(|group| &group.members) {
            let Some(at) = self.topology.at_gid(*gid) else { continue };
            let receives = member.state.intersects(JoinState::FULL_MEMBER | JoinState::NON_MEMBER);
            if receives { &mut tree.receivers } else { &mut tree.senders }.push(at);
        }
        tree
    }

    /// After a change of the subnet every tree is due.
    pub(super) fn readdress(&mut self) {
        self.groups.changed.extend(self.groups.mlids.keys().copied());
    }

    pub(super) fn join(&mut self, request: &Request<'_>) -> Result<Answer, MadStatus> {
        let mut wanted: McMemberRecord = request.record()?;
        if !request.has_all(JOIN) {
            return Err(status::INSUFFICIENT);
        }
        if !self.topology.is_local(wanted.port_gid) {
            return Err(status::INVALID_GID);
        }
        let at = self.topology.at_gid(wanted.port_gid).ok_or(status::INVALID)?;
        wanted.port_gid = Gid::from_parts(self.config.prefix, Guid(wanted.port_gid.interface_id()));
        let requester = request.requester.ok_or(status::INVALID)?;
        let is_proxy = requester != at;
        if is_proxy && !self.topology.device_shares_p_key(requester.node, at) || wanted.join_state.is_empty()
        {
            return Err(status::INVALID);
        }
        let port = self.topology.port(at).ok_or(status::INVALID)?;
        let (mut group, is_new) = match self.groups.by_mgid.get(&wanted.mgid) {
            Some(group) => (group.common.clone(), false),
            None => (self.new_group(request, &wanted, port)?, true),
        };
        Self::check_join(request, &wanted, &group, port)?;
        if is_new {
            let full = self.groups.by_mgid.len() >= self.config.limits.groups;
            let Some(mlid) = self.groups.free_mlid().filter(|_| !full) else {
                self.counters.no_resources += 1;
                return Err(status::NO_RESOURCES);
            };
            if group.mgid.is_unspecified() {
                group.mgid = self.assign_mgid(request, &wanted);
            }
            group.mlid = mlid;
            self.groups.mlids.insert(mlid, group.mgid);
            let (mgid, members) = (group.mgid, BTreeMap::new());
            self.groups.by_mgid.insert(mgid, Group { common: group.clone(), members });
        }
        let proxy = is_proxy.then(|| self.topology.gid(requester));
        let Some(stored) = self.groups.by_mgid.get_mut(&group.mgid) else { return Err(status::INVALID) };
        let member =
            stored.members.entry(wanted.port_gid).or_insert(Member { state: JoinState::empty(), proxy });
        member.state |= wanted.join_state;
        let member = *member;
        let answer = stored.member_record(wanted.port_gid, member);
        self.groups.changed.insert(group.mlid);
        if is_new {
            self.notify(request.now, NoticeDetails::GroupCreated(group.mgid));
        }
        Ok(Answer::one(&answer))
    }

    /// What a group would be like that this join makes.
    fn new_group(
        &self,
        request: &Request<'_>,
        wanted: &McMemberRecord,
        port: &Port,
    ) -> Result<McMemberRecord, MadStatus> {
        if !wanted.join_state.intersects(KEEPS) {
            return Err(status::INVALID);
        }
        if !request.has_all(CREATE) {
            return Err(status::INSUFFICIENT);
        }
        self.check_mgid(wanted.mgid)?;
        let rate = port.info.rate().and_then(rank).ok_or(status::INVALID)?;
        let (mut asked_mtu, mut asked_rate) = selected(request, wanted)?;
        asked_mtu = asked_mtu.filter(|(how, _)| *how != Selector::Best);
        asked_rate = asked_rate.filter(|(how, _)| *how != Selector::Best);
        let life_time = request.has_all(0b11 << 10).then_some(wanted.packet_life_time);
        let life_time = match (wanted.packet_life_time_selector, life_time) {
            (Selector::GreaterThan, Some(least)) => PacketLifeTime::new(least.get() + 1),
            (Selector::LessThan, Some(most)) => most.get().checked_sub(1).and_then(PacketLifeTime::new),
            (Selector::Exactly, Some(exactly)) => Some(exactly),
            (Selector::Best, _) | (_, None) => Some(PacketLifeTime::default()),
        };
        Ok(McMemberRecord {
            mgid: wanted.mgid,
            q_key: wanted.q_key,
            traffic_class: wanted.traffic_class,
            p_key: wanted.p_key,
            sl: wanted.sl,
            flow_label: wanted.flow_label,
            hop_limit: if request.has(14) { wanted.hop_limit } else { 0 },
            scope: if request.has(15) { wanted.scope } else { 0 },
            mtu_selector: Selector::Exactly,
            mtu: limit_mtu(port.info.neighbor_mtu, asked_mtu).ok_or(status::INVALID)?,
            rate_selector: Selector::Exactly,
            rate: match asked_rate {
                Some((Selector::Exactly, exactly)) if rank(exactly).is_some_and(|asked| asked <= rate) => {
                    exactly
                }
                asked => ranked(limit_rate(rate, asked).ok_or(status::INVALID)?),
            },
            packet_life_time_selector: Selector::Exactly,
            packet_life_time: life_time.ok_or(status::INVALID)?,
            ..McMemberRecord::default()
        })
    }

    /// Whether a group may have this MGID (spec/sa.md 5.4).
    fn check_mgid(&self, mgid: Gid) -> Result<(), MadStatus> {
        if mgid.is_unspecified() {
            return Ok(());
        }
        let (scope, signature) = (mgid.0[1] & 0xf, [mgid.0[2], mgid.0[3]]);
        let is_fine = mgid.0[0] == 0xff && !(signature == ASSIGNED && scope == LINK_LOCAL);
        let mut broadcast = Gid([0xff; 16]);
        broadcast.0[1] = 0x10 | scope;
        broadcast.0[2..4].copy_from_slice(&IPOIB[0]);
        broadcast.0[4..6].copy_from_slice(&mgid.0[4..6]);
        broadcast.0[6..12].fill(0);
        let has_broadcast =
            !IPOIB.contains(&signature) || mgid == broadcast || self.groups.get(broadcast).is_some();
        if is_fine && has_broadcast { Ok(()) } else { Err(status::INVALID) }
    }

    /// Compares what a join names with the group and the port (spec/sa.md 5.2). Nothing is changed before this is done.
    fn check_join(
        request: &Request<'_>,
        wanted: &McMemberRecord,
        group: &McMemberRecord,
        port: &Port,
    ) -> Result<(), MadStatus> {
        /// Q_Key, traffic class, SL, flow label, hop limit.
        const SAME: u64 = 1 << 2 | 1 << 6 | 1 << 12 | 1 << 13 | 1 << 14;
        let is_same = group.matches(wanted, request.header.component_mask & SAME)
            && (!request.has(7) || wanted.p_key.base() == group.p_key.base());
        let (mtu, rate) = selected(request, wanted)?;
        let fits = limit_mtu(group.mtu, mtu) == Some(group.mtu)
            && rank(group.rate).is_some_and(|rank| limit_rate(rank, rate) == Some(rank));
        let has_p_key = port.p_keys.iter().any(|key| key.base() == group.p_key.base() && key.base() != 0);
        let carries = port.info.neighbor_mtu >= group.mtu
            && port
                .info
                .rate()
                .and_then(rank)
                .zip(rank(group.rate))
                .is_some_and(|(port, group)| port >= group);
        if is_same && fits && has_p_key && carries { Ok(()) } else { Err(status::INVALID) }
    }

    fn assign_mgid(&mut self, request: &Request<'_>, wanted: &McMemberRecord) -> Gid {
        let scope = if request.has(15) { wanted.scope } else { LINK_LOCAL };
        loop {
            let mut mgid = [0; 16];
            mgid[..2].copy_from_slice(&[0xff, 0x10 | scope]);
            mgid[2..4].copy_from_slice(&ASSIGNED);
            mgid[4..12].copy_from_slice(&self.config.prefix.to_be_bytes());
            mgid[12..].copy_from_slice(&self.groups.assigned.to_be_bytes());
            self.groups.assigned = self.groups.assigned.wrapping_add(1);
            if self.groups.get(Gid(mgid)).is_none() {
                return Gid(mgid);
            }
        }
    }

    pub(super) fn leave(&mut self, request: &Request<'_>) -> Result<Answer, MadStatus> {
        let wanted: McMemberRecord = request.record()?;
        if !request.has_all(JOIN) {
            return Err(status::INSUFFICIENT);
        }
        if !self.topology.is_local(wanted.port_gid) {
            return Err(status::INVALID_GID);
        }
        let own = request.requester.map(|at| self.topology.gid(at));
        let gid = Gid::from_parts(self.config.prefix, Guid(wanted.port_gid.interface_id()));
        let is_own = self.topology.at_gid(gid) == request.requester;
        let group = self.groups.by_mgid.get_mut(&wanted.mgid).ok_or(status::INVALID)?;
        let member = group.members.get_mut(&gid).ok_or(status::INVALID)?;
        let may = request.is_trusted || is_own || member.proxy.is_some() && member.proxy == own;
        if !may || wanted.join_state.is_empty() || !member.state.contains(wanted.join_state) {
            return Err(status::INVALID);
        }
        member.state -= wanted.join_state;
        let left = *member;
        let answer = McMemberRecord {
            q_key: QKey(0),
            p_key: PKey(0),
            mlid: Lid::NONE,
            mtu: Mtu(0),
            rate: Rate(0),
            packet_life_time: PacketLifeTime::default(),
            ..group.member_record(wanted.port_gid, left)
        };
        if left.state.is_empty() {
            group.members.remove(&gid);
        }
        let (mlid, is_kept) = (group.common.mlid, group.is_kept());
        self.groups.changed.insert(mlid);
        if !is_kept {
            self.groups.end(wanted.mgid);
            self.notify(request.now, NoticeDetails::GroupDeleted(wanted.mgid));
        }
        Ok(Answer::one(&answer))
    }

    pub(super) fn member_records(&self, request: &Request<'_>) -> Result<Rows, MadStatus> {
        let wanted: McMemberRecord = request.record()?;
        let mut rows = Rows::new(&self.config.limits);
        let (mtu, rate) = selected(request, &wanted)?;
        let own = request.requester.and_then(|at| self.topology.port(at)).ok_or(status::NO_RECORDS)?;
        let groups = self.groups.by_mgid.range(match request.has(0) {
            true => wanted.mgid..=wanted.mgid,
            false => Gid::UNSPECIFIED..=Gid([0xff; 16]),
        });
        for (_, group) in groups {
            let common = &group.common;
            let sees = own.p_keys.iter().any(|key| key.matches(PKey(common.p_key.0 | 0x8000)));
            let fits = limit_mtu(common.mtu, mtu) == Some(common.mtu)
                && rank(common.rate).is_some_and(|rank| limit_rate(rank, rate) == Some(rank));
            if !fits || !sees && !request.is_trusted {
                continue;
            }
            let members = group.members.iter().map(|(gid, member)| group.member_record(*gid, *member));
            let mut found = members.filter(|record| record.matches(&wanted, request.header.component_mask));
            if request.is_trusted {
                found.try_for_each(|record| rows.push(&record))?;
            } else if found.next().is_some() {
                rows.push(common)?;
            }
        }
        Ok(rows)
    }
}

/// An MTU and a rate with their selectors, those that are named.
type Selected = (Option<(Selector, Mtu)>, Option<(Selector, Rate)>);

/// The MTU and the rate that a request names.
fn selected(request: &Request<'_>, wanted: &McMemberRecord) -> Result<Selected, MadStatus> {
    let mtu = request.has_all(0b11 << 4).then_some((wanted.mtu_selector, wanted.mtu));
    let rate = request.has_all(0b11 << 8).then_some((wanted.rate_selector, wanted.rate));
    if are_codes(mtu, rate) { Ok((mtu, rate)) } else { Err(status::INVALID) }
}
