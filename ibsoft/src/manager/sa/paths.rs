//! Paths (spec/sa.md section 4).

use ibsa::record::PathRecord;
use ibwire::mad::MadStatus;
use ibwire::{Gid, Lid, Mtu, PKey, PacketLifeTime, Rate, Selector, ServiceLevel};

use super::Sa;
use super::answer::Rows;
use super::request::{Request, status};
use crate::manager::topology::{PortAt, rank, ranked};

/// Bits of the mask.
mod bit {
    pub(super) const DGID: u32 = 2;
    pub(super) const SGID: u32 = 3;
    pub(super) const DLID: u32 = 4;
    pub(super) const SLID: u32 = 5;
    pub(super) const NUM_PATHS: u32 = 12;
    pub(super) const SERVICE_ID: u64 = 0b11;
}

/// What a path has to be like: the fields that a query names, whatever kind it is.
#[derive(Debug, Clone, Default)]
pub(super) struct Wanted {
    pub p_key: Option<PKey>,
    pub sl: Option<ServiceLevel>,
    pub mtu: Option<(Selector, Mtu)>,
    pub rate: Option<(Selector, Rate)>,
    pub life_time: Option<(Selector, PacketLifeTime)>,
    pub raw: bool,
    /// At most so many for each pair of ports.
    pub most: usize,
}

/// The most paths of a pair of ports.
const MOST: usize = 127;

impl Wanted {
    fn of(request: &Request<'_>, record: &PathRecord) -> Result<Self, MadStatus> {
        let wanted = Self {
            p_key: request.has(13).then_some(record.pkey),
            sl: request.has(15).then_some(record.sl),
            mtu: request.has_all(0b11 << 16).then_some((record.mtu_selector, record.mtu)),
            rate: request.has_all(0b11 << 18).then_some((record.rate_selector, record.rate)),
            life_time: request
                .has_all(0b11 << 20)
                .then_some((record.packet_life_time_selector, record.packet_life_time)),
            raw: request.has(6) && record.raw_traffic,
            most: MOST,
        };
        wanted.checked()
    }

    /// Refuses codes that are none.
    pub(super) fn checked(self) -> Result<Self, MadStatus> {
        if are_codes(self.mtu, self.rate) { Ok(self) } else { Err(status::INVALID) }
    }
}

/// An end of the paths that are asked for: a port and the LIDs of it that may be used.
#[derive(Debug, Clone, Copy)]
pub(super) struct End {
    pub at: PortAt,
    /// The GID that the query has it by.
    pub gid: Gid,
    pub base: Lid,
    pub lids: u16,
}

impl Sa {
    pub(super) fn path_records(&self, request: &Request<'_>) -> Result<Rows, MadStatus> {
        let record: PathRecord = request.record()?;
        let is_table = request.header.mad.method == ibwire::mad::Method::GET_TABLE;
        if matches!(request.header.component_mask & bit::SERVICE_ID, 1 | 2) {
            return Err(status::INSUFFICIENT);
        }
        let mut wanted = Wanted::of(request, &record)?;
        let mut rows = Rows::new(&self.config.limits);
        if is_table && request.has(bit::NUM_PATHS) {
            wanted.most = usize::from(record.num_paths & 0x7f);
        }
        let sgid = request.has(bit::SGID).then_some(record.sgid);
        let slid = request.has(bit::SLID).then_some(record.slid);
        let sources = self.ends(sgid, slid)?;
        if request.has(bit::DGID) && record.dgid.is_multicast() {
            let path = self.group_path(request, record.dgid, sources.as_deref(), &wanted);
            path.iter().try_for_each(|path| rows.push(path))?;
            return Ok(rows);
        }
        let dgid = request.has(bit::DGID).then_some(record.dgid);
        let dlid = request.has(bit::DLID).then_some(record.dlid);
        let destinations = self.ends(dgid, dlid)?;
        let all = || self.topology.end_ports().filter_map(|(at, _)| self.end(at, None, None)).collect();
        let (sources, destinations) = (sources.unwrap_or_else(all), destinations.unwrap_or_else(all));
        for source in &sources {
            for destination in &destinations {
                for path in self.paths(request, source, destination, &wanted) {
                    rows.push(&path)?;
                    if !is_table {
                        return Ok(rows);
                    }
                }
            }
        }
        Ok(rows)
    }

    /// The ports that a GID and a LID name; `None` if neither is given.
    fn ends(&self, gid: Option<Gid>, lid: Option<Lid>) -> Result<Option<Vec<End>>, MadStatus> {
        let by_gid = gid.map(|gid| self.topology.at_gid(gid));
        let by_lid = lid.map(|lid| self.topology.at_lid(lid));
        let at = match (by_gid, by_lid) {
            (None, None) => return Ok(None),
            (Some(Some(a)), Some(b)) if Some(a) != b => return Err(status::INVALID),
            (Some(None), _) | (None, Some(None)) => return Ok(Some(Vec::new())),
            (Some(Some(at)), _) | (None, Some(Some(at))) => at,
        };
        Ok(Some(self.end(at, gid, lid).into_iter().collect()))
    }

    /// A port as an end of paths.
    pub(super) fn end(&self, at: PortAt, gid: Option<Gid>, lid: Option<Lid>) -> Option<End> {
        let port = self.topology.port(at).filter(|port| port.info.lid.is_unicast())?;
        let gid = gid.unwrap_or_else(|| self.topology.gid(at));
        let (base, lids) = lid.map_or((port.info.lid, port.lids()), |lid| (lid, 1));
        Some(End { at, gid, base, lids })
    }

    /// The paths between two ports: first those from the nth LID of one to the nth of the other, which are preferred.
    pub(super) fn paths(
        &self,
        request: &Request<'_>,
        source: &End,
        destination: &End,
        wanted: &Wanted,
    ) -> Vec<PathRecord> {
        let mut found = Vec::new();
        let Some(p_key) = self.path_p_key(request, source.at, destination.at, wanted.p_key) else {
            return found;
        };
        let pair = |s: u16, d: u16| (Lid(source.base.0 + s), Lid(destination.base.0 + d));
        let diagonal = (0..source.lids.min(destination.lids)).map(|n| (pair(n, n), 0));
        let others = (0..source.lids).flat_map(|s| (0..destination.lids).map(move |d| (s, d)));
        let others = others.filter(|(s, d)| s != d).map(|(s, d)| (pair(s, d), 2));
        for ((slid, dlid), preference) in diagonal.chain(others) {
            if found.len() >= wanted.most {
                break;
            }
            if let Some(path) = self.path(source, destination, slid, dlid, p_key, wanted) {
                found.push(PathRecord { preference, ..path });
            }
        }
        found
    }

    fn path(
        &self,
        source: &End,
        to: &End,
        slid: Lid,
        dlid: Lid,
        p_key: PKey,
        wanted: &Wanted,
    ) -> Option<PathRecord> {
        let way = self.topology.way(source.at, dlid)?;
        let (mut mtu, mut rate) = (Mtu::B4096, usize::MAX);
        for at in &way {
            let info = &self.topology.port(*at)?.info;
            mtu = mtu.min(info.mtu_cap);
            // Port 0 of a switch has no link of its own.
            if at.port != 0 || way.len() == 1 {
                rate = rate.min(rank(info.rate()?)?);
            }
        }
        let life_time = if source.at == to.at { PacketLifeTime::default() } else { self.config.life_time };
        let sl = wanted.sl.unwrap_or_else(|| self.partition(p_key).sl);
        let has_vl =
            |at: &PortAt| self.topology.port(*at).is_some_and(|port| port.vls[usize::from(sl.get())] != 15);
        if !way.iter().all(has_vl) {
            return None;
        }
        let mtu = limit_mtu(mtu, wanted.mtu)?;
        let rate = ranked(limit_rate(rate, wanted.rate)?);
        limit_life_time(life_time, wanted.life_time)?;
        let record = PathRecord::exact(source.gid, to.gid, mtu, rate, life_time);
        Some(PathRecord {
            dlid,
            slid,
            raw_traffic: wanted.raw,
            hop_limit: 0,
            num_paths: 0,
            reversible: true,
            pkey: if wanted.raw { PKey(0) } else { p_key },
            sl,
            ..record
        })
    }

    /// What the partition of a P_Key is set up with.
    pub(super) fn partition(&self, p_key: PKey) -> super::Partition {
        self.config.partitions.get(&p_key.base()).copied().unwrap_or_default()
    }

    /// The P_Key of a path that the requester may see (spec/sa.md 4.6): the one that is wanted, or the lowest that both ends
    /// share, as the source has it.
    fn path_p_key(
        &self,
        request: &Request<'_>,
        from: PortAt,
        to: PortAt,
        wanted: Option<PKey>,
    ) -> Option<PKey> {
        let requester = request.requester?;
        let visible =
            [from, to].into_iter().all(|end| self.topology.device_shares_p_key(requester.node, end));
        let (a, b) = (self.topology.port(from)?, self.topology.port(to)?);
        let shared = a.p_keys.iter().filter(|a| b.p_keys.iter().any(|b| a.matches(*b)));
        let shared = match wanted {
            Some(wanted) => shared.map(|_| wanted).find(|_| {
                let mut both = a.p_keys.iter().filter(|a| a.base() == wanted.base());
                both.any(|a| b.p_keys.iter().any(|b| a.matches(*b)))
            }),
            None => shared.copied().min_by_key(|key| key.base()),
        };
        shared.filter(|_| visible)
    }

    /// The path to a group: what its record says (spec/sa.md 4.4).
    fn group_path(
        &self,
        request: &Request<'_>,
        mgid: Gid,
        sources: Option<&[End]>,
        wanted: &Wanted,
    ) -> Option<PathRecord> {
        let group = self.groups.get(mgid)?.record();
        let source = match sources {
            Some(sources) => {
                let source = sources.first()?;
                self.groups.get(mgid)?.has_member(self.topology.gid(source.at)).then_some(source.gid)?
            }
            None => Gid::UNSPECIFIED,
        };
        let requester = self.topology.port(request.requester?)?;
        let may = requester.p_keys.iter().any(|key| key.matches(PKey(group.p_key.0 | 0x8000)));
        let fits = wanted.p_key.is_none_or(|key| key.base() == group.p_key.base())
            && wanted.sl.is_none_or(|sl| sl == group.sl)
            && limit_mtu(group.mtu, wanted.mtu) == Some(group.mtu)
            && rank(group.rate).is_some_and(|rank| limit_rate(rank, wanted.rate) == Some(rank))
            && limit_life_time(group.packet_life_time, wanted.life_time).is_some();
        if !may || !fits {
            return None;
        }
        let is_link_local = mgid.0[1] & 0xf == 2;
        let record = PathRecord::exact(source, mgid, group.mtu, group.rate, group.packet_life_time);
        Some(PathRecord {
            dlid: group.mlid,
            flow_label: group.flow_label,
            traffic_class: group.traffic_class,
            hop_limit: if is_link_local { 0 } else { 0xff },
            reversible: false,
            num_paths: 1,
            pkey: group.p_key,
            sl: group.sl,
            ..record
        })
    }
}

/// Whether an MTU and a rate that are asked for have codes that mean something, where they count.
pub(super) fn are_codes(mtu: Option<(Selector, Mtu)>, rate: Option<(Selector, Rate)>) -> bool {
    mtu.is_none_or(|(how, mtu)| how == Selector::Best || mtu.bytes().is_some())
        && rate.is_none_or(|(how, code)| how == Selector::Best || rank(code).is_some())
}

/// The MTU of a path that can have `mtu`: larger packets than wanted are not sent.
pub(super) fn limit_mtu(mtu: Mtu, wanted: Option<(Selector, Mtu)>) -> Option<Mtu> {
    match wanted {
        Some((Selector::GreaterThan, least)) => (mtu > least).then_some(mtu),
        Some((Selector::LessThan, most)) => {
            Some(Mtu(mtu.0.min(most.0.checked_sub(1).filter(|code| *code > 0)?)))
        }
        Some((Selector::Exactly, exactly)) => (mtu >= exactly).then_some(exactly),
        Some((Selector::Best, _)) | None => Some(mtu),
    }
}

/// The rate of a path that can have the rate of this rank.
pub(super) fn limit_rate(rate: usize, wanted: Option<(Selector, Rate)>) -> Option<usize> {
    match wanted {
        Some((Selector::GreaterThan, least)) => (rate > rank(least)?).then_some(rate),
        Some((Selector::LessThan, most)) => Some(rate.min(rank(most)?.checked_sub(1)?)),
        Some((Selector::Exactly, exactly)) => (rate == rank(exactly)?).then_some(rate),
        Some((Selector::Best, _)) | None => Some(rate),
    }
}

/// Whether a path of this lifetime is wanted: it is what it is.
fn limit_life_time(
    time: PacketLifeTime,
    wanted: Option<(Selector, PacketLifeTime)>,
) -> Option<PacketLifeTime> {
    let fits = match wanted {
        Some((Selector::GreaterThan, least)) => time > least,
        Some((Selector::LessThan, most)) => time < most,
        Some((Selector::Exactly, exactly)) => time == exactly,
        Some((Selector::Best, _)) | None => true,
    };
    fits.then_some(time)
}
