//! How the service is set up, and what it can hold.

use std::collections::BTreeMap;
use std::time::Duration;

use ibsa::proto::rmpp::RmppConfig;
use ibwire::{PacketLifeTime, ServiceLevel, TimeCode};

use crate::manager::Topology;

/// What a partition's paths and groups have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Partition {
    /// Service level of paths that ask for none.
    pub sl: ServiceLevel,
}

/// Bounds of what is kept for peers. What does not fit is refused: with NO_RESOURCES if it is a record, as busy if it is a
/// transfer.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SaLimits {
    /// Transfers of more than one MAD under way, of all requesters. Default 4096.
    pub transfers: usize,
    /// Transfers of one requester, each way. Default 64.
    pub transfers_each: usize,
    /// Bytes of records in all answers that are transfers under way. Default 256 MiB.
    pub bytes: usize,
    /// Answers that wait to be sent. Default 16,384.
    pub answers: usize,
    /// Multicast groups. Default 16,383: the multicast LIDs.
    pub groups: usize,
    /// Service records. Default 65,536.
    pub services: usize,
    /// Subscriptions. Default 16,384.
    pub subscriptions: usize,
    /// Reports without an answer. Default 65,536.
    pub reports: usize,
    /// Records of one answer. Default 1,048,576.
    pub records: usize,
}

impl Default for SaLimits {
    fn default() -> Self {
        Self {
            transfers: 4096,
            transfers_each: 64,
            bytes: 256 << 20,
            answers: 16_384,
            groups: 0x3fff,
            services: 65_536,
            subscriptions: 16_384,
            reports: 65_536,
            records: 1 << 20,
        }
    }
}

/// How the service is set up. The defaults are OpenSM's.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SaConfig {
    /// Subnet prefix of all GIDs. Default fe80::.
    pub prefix: u64,
    /// Who knows it is trusted: sees all members, all keys, and may change what others have made. Default 1.
    pub sm_key: u64,
    /// Packet lifetime of all paths. Default 18, 1.07 s.
    pub life_time: PacketLifeTime,
    /// How long an answer takes at most, as ClassPortInfo says. Default 16, 268 ms.
    pub resp_time: TimeCode,
    /// Partitions by the lower 15 bits of their P_Key; those that are not named have SL 0.
    pub partitions: BTreeMap<u16, Partition>,
    /// A report that is not answered is sent again after so long. Default 200 ms.
    pub report_timeout: Duration,
    /// So often. Default 3.
    pub report_retries: u32,
    /// Transfers of more than one MAD.
    pub rmpp: RmppConfig,
    /// Bounds.
    pub limits: SaLimits,
}

impl Default for SaConfig {
    fn default() -> Self {
        Self {
            prefix: Topology::DEFAULT_PREFIX,
            sm_key: 1,
            life_time: PacketLifeTime::truncate(18),
            resp_time: TimeCode::truncate(16),
            partitions: BTreeMap::new(),
            report_timeout: Duration::from_millis(200),
            report_retries: 3,
            rmpp: RmppConfig::default(),
            limits: SaLimits::default(),
        }
    }
}

/// How the service behaves, for tests of its clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SaMode {
    /// As it should.
    #[default]
    Normal,
    /// Every request is answered with "busy".
    Busy,
    /// Nothing is answered.
    Silent,
    /// Answers, but not transfers, leave so much later.
    Slow(Duration),
}
