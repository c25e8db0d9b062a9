//! The path of a connection: as a PathRecord, as a block of the REQ, as an address vector.

use ibdev::{AddressVector, GlobalRoute};
use ibwire::{Lid, PathRecord, TimeCode};

use super::local::LocalPort;
use super::message::PathBlock;

/// A path record bound to the local port that it starts from.
///
/// Of the record, addresses, flow label, hop limit, traffic class, SL, P_Key, MTU, rate and packet lifetime count;
/// values stand for themselves, whatever their selectors say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Path {
    /// The local port, from 1.
    pub port: u8,
    /// The path from there. `sgid` and `slid` are ours.
    pub record: PathRecord,
}

/// Hop limit of packets whose path names none: an IP packet with 0 does not travel.
pub(super) const DEFAULT_HOP_LIMIT: u8 = 64;

impl Path {
    /// How long a packet may be under way, one direction.
    pub(super) fn life_time(&self) -> TimeCode {
        self.record.packet_life_time.time_code()
    }

    /// Whether the path stays in its InfiniBand subnet, so that packets need no GRH.
    pub(super) fn is_subnet_local(&self, port: &LocalPort) -> bool {
        !port.is_ethernet() && self.record.hop_limit <= 1
    }

    /// The address of the port at the other end.
    pub(super) fn address_vector(&self, port: &LocalPort, sgid_index: u16) -> AddressVector {
        let record = &self.record;
        AddressVector {
            port: self.port,
            dlid: record.dlid,
            sl: record.sl,
            path_bits: port.path_bits(record.slid),
            rate: record.rate,
            grh: (!self.is_subnet_local(port)).then_some(GlobalRoute {
                dgid: record.dgid,
                sgid_index,
                flow_label: record.flow_label,
                hop_limit: if record.hop_limit == 0 { DEFAULT_HOP_LIMIT } else { record.hop_limit },
                traffic_class: record.traffic_class,
            }),
        }
    }

    /// The path as a REQ tells it. One that may leave the subnet carries no LIDs (spec/cm.md 5.4).
    pub(super) fn block(&self, port: &LocalPort, local_ack_timeout: TimeCode) -> PathBlock {
        let record = &self.record;
        let (local_lid, remote_lid) = match record.hop_limit {
            0 | 1 => (record.slid, record.dlid),
            _ => (Lid::PERMISSIVE, Lid::PERMISSIVE),
        };
        PathBlock {
            local_lid,
            remote_lid,
            local_gid: record.sgid,
            remote_gid: record.dgid,
            flow_label: record.flow_label,
            rate: record.rate,
            traffic_class: record.traffic_class,
            hop_limit: record.hop_limit,
            sl: record.sl,
            subnet_local: self.is_subnet_local(port),
            local_ack_timeout,
        }
    }

    /// The same as an alternate path: there its LIDs say whether it is one (spec/cm.md 2.1).
    pub(super) fn alternate_block(&self, port: &LocalPort, local_ack_timeout: TimeCode) -> PathBlock {
        let block = self.block(port, local_ack_timeout);
        match port.is_ethernet() {
            true => PathBlock { local_lid: Lid::PERMISSIVE, remote_lid: Lid::PERMISSIVE, ..block },
            false => block,
        }
    }
}
