//! The conversations of the captures, and of what no capture has: datagram services, alternate paths.

use std::collections::BTreeMap;
use std::time::Instant;

use ibcm::proto::message::{
    ApStatus, Apr, Ari, Attribute, Eecn, FailoverAccepted, Lap, Message, PathBlock, Rep, RetryCount, Rtu,
    SidrRep, SidrReq, SidrStatus, VendorId,
};
use ibcm::proto::{Config, Connect, Endpoint, LocalCa, Path};
use ibdev::{DeviceAttr, MAD_LEN};
use ibwire::{CommId, Guid, Mtu, PKey, PathRecord, PrivateData, Psn, QKey, Qpn, TimeCode, TransactionId};

use super::{PORTS, SERVICE, fix, gid, own_number, port};
use crate::seeds::{Frame, Seed, frames};

/// The hosts that the ports of a peer with two ports are.
const PEER_PORTS: [u8; 2] = [1, 3];

/// The operation that delivers a MAD from the first peer, for the newest connection.
fn deliver(fixes: u8, message: impl Into<Message>) -> Vec<u8> {
    deliver_as(TransactionId(7), fixes, message)
}

fn deliver_as(tid: TransactionId, fixes: u8, message: impl Into<Message>) -> Vec<u8> {
    let mut mad = [0; MAD_LEN];
    message.into().encode(tid, &mut mad);
    deliver_mad(fixes, &mad)
}

fn deliver_mad(fixes: u8, mad: &[u8; MAD_LEN]) -> Vec<u8> {
    [&[0, 0, fixes, 0][..], &(MAD_LEN as u16).to_be_bytes(), mad].concat()
}

/// One conversation a capture: its MADs as if this engine were the peer of each, and commands in between.
pub fn seeds() -> Vec<Seed> {
    let mut captures: BTreeMap<String, Vec<Frame>> = BTreeMap::new();
    for frame in frames() {
        captures.entry(frame.capture.clone()).or_default().push(frame);
    }
    let mut seeds = Vec::new();
    for (name, frames) in captures {
        let mads: Vec<_> = frames.iter().filter_map(Frame::mad).collect();
        if mads.is_empty() {
            continue;
        }
        // As the passive side of the capture's requests, and as the active side of its answers.
        let preludes = [
            ("passive", &[0][..]),
            ("active", &[0, 3, 0, 15, 20, 0, 0, 0]),
            ("peer", &[0, 3, 0, 15, 20, 0, 0, 1]),
        ];
        for (side, prelude) in preludes {
            let mut bytes = prelude.to_vec();
            for mad in &mads {
                let is_req = mad.get(17) == Some(&(Attribute::REQ.0 as u8));
                let fixes = if is_req { fix::SERVICE } else { fix::SENDER | fix::RECEIVER };
                bytes.extend([0, 0, fixes, 0]);
                bytes.extend((mad.len() as u16).to_be_bytes());
                bytes.extend_from_slice(mad);
                // accept or ready, whichever fits
                bytes.extend([4, 7, 0, 5, 0, 12, 0, 9]);
            }
            seeds.push(Seed { name: format!("{name}-{side}"), bytes });
        }
    }
    seeds.push(sidr_seed());
    seeds.push(asking_seed());
    seeds.push(asked_seed());
    seeds
}

/// A query that is answered, and a service that answers a request.
fn sidr_seed() -> Seed {
    let rep = SidrRep {
        request_id: CommId(1),
        status: SidrStatus::VALID,
        info: Ari::EMPTY,
        vendor_id: VendorId::default(),
        qpn: Qpn::truncate(0x55),
        service_id: SERVICE,
        qkey: QKey(7),
        private_data: PrivateData::EMPTY,
    };
    let req = SidrReq {
        request_id: CommId(9),
        pkey: PKey::DEFAULT,
        service_id: SERVICE,
        private_data: PrivateData::EMPTY,
    };
    let bytes = [
        vec![0, 16, 0, 5, 0, 10, 0, 0],
        deliver(fix::QUERY, rep),
        vec![19, 1],
        deliver(0, req.clone()),
        vec![18, 0, 0, 0, 0x55],
        deliver(0, req),
        vec![16, 1, 5, 0, 10, 0, 0, 13, 13, 17, 0],
    ];
    Seed { name: "sidr".to_owned(), bytes: bytes.concat() }
}

/// A peer proposes a path to our second port, then asks for it again and again; we migrate in between.
fn asked_seed() -> Seed {
    let mut attr = DeviceAttr::new("peer", Guid(2), 2);
    attr.path_migration = true;
    let ports = PORTS.map(|number| {
        let mut port = port(true, number, true);
        port.gids[0].gid = gid(true, PEER_PORTS[usize::from(number - 1)]);
        port
    });
    let mut peer = Endpoint::new(Config::default(), LocalCa::new(&attr, ports.into()), [1; 32]);
    let path = |port: u8| {
        let record = PathRecord {
            sgid: gid(true, PEER_PORTS[usize::from(port - 1)]),
            dgid: gid(true, own_number(port)),
            hop_limit: 64,
            pkey: PKey::DEFAULT,
            mtu: Mtu::B1024,
            packet_life_time: TimeCode::truncate(14).into(),
            ..PathRecord::default()
        };
        Path { port, record }
    };
    let mut connect = Connect::new(path(1), SERVICE, Qpn::truncate(0x55));
    connect.alternate = Some(path(2));
    let now = Instant::now();
    peer.connect(now, connect).expect("paths of its ports");
    let req = peer.poll_transmit(now, 1).expect("a REQ").mad;
    let (local_comm_id, remote_comm_id) = (CommId::NONE, CommId::NONE);
    let rtu = Rtu { local_comm_id, remote_comm_id, private_data: PrivateData::EMPTY };
    let lap = |port: u8, tid| {
        let alternate = PathBlock {
            local_gid: gid(true, PEER_PORTS[usize::from(port - 1)]),
            remote_gid: gid(true, own_number(port)),
            hop_limit: 64,
            local_ack_timeout: TimeCode::truncate(14),
            ..PathBlock::NONE
        };
        let lap = Lap {
            local_comm_id,
            remote_comm_id,
            // The first queue pair that accepts.
            remote_qpn: Qpn::truncate(0x101),
            remote_cm_response_timeout: TimeCode::truncate(14),
            alternate,
            private_data: PrivateData::EMPTY,
        };
        deliver_as(TransactionId(tid), fix::SENDER | fix::RECEIVER, lap)
    };
    let bytes = [
        vec![0],
        deliver_mad(0, &req),
        vec![4, 7, 0],
        deliver(fix::SENDER | fix::RECEIVER, rtu),
        // Loaded by the REQ; refused, then accepted after an MRA.
        vec![22, 0],
        lap(1, 8),
        vec![21, 3, 0],
        lap(1, 9),
        vec![13],
        lap(1, 9),
        vec![21, 0, 0],
        lap(1, 9),
        vec![22, 0],
        lap(2, 10),
        lap(1, 8),
    ];
    Seed { name: "path-asked-of-us".to_owned(), bytes: bytes.concat() }
}

/// A connection of which we ask for another path, twice.
fn asking_seed() -> Seed {
    let rep = Rep {
        local_comm_id: CommId(9),
        remote_comm_id: CommId::NONE,
        local_qkey: QKey(0),
        local_qpn: Qpn::truncate(0x55),
        vendor_id: VendorId::default(),
        local_eecn: Eecn::default(),
        starting_psn: Psn::truncate(1),
        responder_resources: 1,
        initiator_depth: 1,
        target_ack_delay: TimeCode::truncate(1),
        failover_accepted: FailoverAccepted::ACCEPTED,
        end_to_end_flow_control: false,
        rnr_retry_count: RetryCount::truncate(7),
        srq: false,
        local_ca_guid: Guid(2),
        private_data: PrivateData::EMPTY,
    };
    let apr = |status| {
        let (local_comm_id, remote_comm_id) = (CommId::NONE, CommId::NONE);
        let apr =
            Apr { local_comm_id, remote_comm_id, status, info: Ari::EMPTY, private_data: PrivateData::EMPTY };
        deliver(fix::SENDER | fix::RECEIVER, apr)
    };
    let bytes = [
        vec![0, 3, 0, 15, 20, 0, 0, 0],
        deliver(fix::RECEIVER, rep),
        vec![5, 0],
        // By our second port; refused, asked for again, loaded, migrated to.
        vec![20, 7, 14, 0, 0, 0],
        apr(ApStatus::REJECTED),
        vec![20, 7, 14, 0, 0, 0, 20, 7, 14, 0, 0, 0, 13],
        apr(ApStatus::LOADED),
        vec![22, 0, 20, 0, 14, 0, 0, 0],
    ];
    Seed { name: "path-asked-for".to_owned(), bytes: bytes.concat() }
}

/// The seeds are worth having only if they get where alternate paths are.
#[test]
fn the_seeds_load_paths() {
    let active = super::play(&asking_seed().bytes);
    assert_eq!((active.established, active.migrations, active.lap_timeouts), (1, 1, 0), "{active:?}");
    let passive = super::play(&asked_seed().bytes);
    let paths = (passive.alternate_requests, passive.migrations);
    assert_eq!((passive.established, paths), (1, (3, 2)), "{passive:?}");
}
