//! A host of the harness, and a MAD on its way between two.

use std::collections::VecDeque;

use ibdev::{DeviceAttr, GidEntry, GidKind, LinkLayer, MadSource, OutgoingMad, PortAttr, PortState};
use ibwire::mad::{MAD_LEN, MadHeader};
use ibwire::{Gid, Guid, Lid, Mtu, PKey, PathRecord, Qpn, Rate, ServiceLevel};

use super::monitor::Monitor;
use super::pair::{ACK_DELAY, LIFE_TIME, Net};
use crate::proto::message::{Drep, Dreq, Message, Mra, Rej, Rep, Req, Rtu};
use crate::proto::{Config, Endpoint, Event, ListenerId, LocalCa, LocalPort, Path};

/// A port's worth of addresses.
#[derive(Debug, Clone, Copy)]
pub(super) struct Address {
    pub(super) gid: Gid,
    pub(super) lid: Lid,
    pub(super) guid: Guid,
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    pub(super) link_layer: LinkLayer,
    /// Ports; with more than one the host can migrate paths. RoCE only.
    pub(super) ports: u8,
}

impl Address {
    /// Host `n` of a RoCE network: 10.0.0.(n + 1).
    pub(super) fn roce(n: usize) -> Self {
        Self {
            gid: Gid::from_ip([10, 0, 0, n as u8 + 1].into()),
            lid: Lid::NONE,
            guid: Guid(0x0200_00ff_fe00_0001 + n as u64),
            responder_resources: 16,
            initiator_depth: 16,
            link_layer: LinkLayer::Ethernet,
            ports: 1,
        }
    }

    /// The same with a second port: 10.0.1.(n + 1).
    pub(super) fn two_ports(n: usize) -> Self {
        Self { ports: 2, ..Self::roce(n) }
    }

    /// The GID of a port.
    pub(super) fn gid_of(&self, port: u8) -> Gid {
        let mut gid = self.gid;
        gid.0[14] += port - 1;
        gid
    }

    /// The port with this GID.
    pub(super) fn port_with(&self, gid: Gid) -> Option<u8> {
        (1..=self.ports).find(|&port| self.gid_of(port) == gid)
    }

    /// Host `n` of an InfiniBand subnet: LIDs 16(n + 1) and on, LMC 1.
    pub(super) fn infiniband(n: usize) -> Self {
        let guid = Guid(0x0002_c903_0000_0001 + n as u64);
        Self {
            gid: Gid::link_local(guid),
            lid: Lid(16 * (n as u16 + 1)),
            guid,
            link_layer: LinkLayer::InfiniBand,
            ..Self::roce(n)
        }
    }

    pub(super) fn is_roce(&self) -> bool {
        self.link_layer == LinkLayer::Ethernet
    }

    /// The sGID's index; a wrong-typed entry of the same GID lies before it.
    pub(super) const GID_INDEX: u16 = 3;
    /// The index of the default P_Key; a limited one lies before it.
    pub(super) const PKEY_INDEX: u16 = 1;
    /// The index of the limited default P_Key.
    pub(super) const LIMITED_PKEY_INDEX: u16 = 0;

    fn ca(&self) -> LocalCa {
        let mut attr = DeviceAttr::new("test", self.guid, self.ports);
        attr.path_migration = self.ports > 1;
        attr.ack_delay = ACK_DELAY;
        attr.max_responder_resources = self.responder_resources;
        attr.max_initiator_depth = self.initiator_depth;
        LocalCa::new(&attr, (1..=self.ports).map(|number| self.numbered_port(number)).collect())
    }

    /// The first port.
    pub(super) fn port(&self) -> LocalPort {
        self.numbered_port(1)
    }

    fn numbered_port(&self, number: u8) -> LocalPort {
        let roce = self.is_roce();
        let attr = PortAttr {
            number,
            state: PortState::Active,
            link_layer: self.link_layer,
            active_mtu: Mtu::B4096,
            lid: self.lid,
            lmc: if roce { 0 } else { 1 },
            sm_lid: Lid::NONE,
            sm_sl: ServiceLevel::default(),
            rate: Rate::GBPS_100,
        };
        let entry = |index, kind| GidEntry { index, gid: self.gid_of(number), kind };
        let gids = if roce {
            vec![entry(2, GidKind::RoceV1), entry(Self::GID_INDEX, GidKind::RoceV2)]
        } else {
            vec![entry(Self::GID_INDEX, GidKind::Infiniband)]
        };
        LocalPort::new(&attr, gids, vec![PKey(0x7fff), PKey::DEFAULT])
    }

    /// The path from this host to another, by the first port of each.
    pub(super) fn path_to(&self, peer: &Self) -> Path {
        self.path_between(1, peer, 1)
    }

    /// The path from a port of this host to a port of another.
    pub(super) fn path_between(&self, port: u8, peer: &Self, peer_port: u8) -> Path {
        let roce = self.is_roce();
        let record = PathRecord {
            dgid: peer.gid_of(peer_port),
            sgid: self.gid_of(port),
            dlid: peer.lid,
            slid: self.lid,
            hop_limit: if roce { 64 } else { 0 },
            reversible: true,
            pkey: PKey::DEFAULT,
            sl: ServiceLevel::truncate(if roce { 0 } else { 3 }),
            mtu: Mtu::B1024,
            rate: Rate::GBPS_100,
            packet_life_time: LIFE_TIME.into(),
            ..PathRecord::default()
        };
        Path { port, record }
    }
}

/// One host.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) ep: Endpoint,
    pub(super) address: Address,
    pub(super) listener: Option<ListenerId>,
    pub(super) monitor: Monitor,
    pub(super) events: VecDeque<Event>,
    pub(super) next_qpn: u32,
}

impl Host {
    pub(super) fn new(address: Address, config: Config, seed: u64) -> Self {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        Self {
            ep: Endpoint::new(config, address.ca(), bytes),
            address,
            listener: None,
            monitor: Monitor::default(),
            events: VecDeque::new(),
            next_qpn: 0x100,
        }
    }

    /// A QP number that this host has not used yet.
    pub(super) fn qpn(&mut self) -> Qpn {
        self.next_qpn += 1;
        Qpn::new(self.next_qpn).unwrap()
    }
}

/// A MAD on the wire.
#[derive(Debug, Clone)]
pub(super) struct Flight {
    pub(super) from: usize,
    /// `None`: nobody has that address.
    pub(super) to: Option<usize>,
    /// As the receiver sees it.
    pub(super) source: MadSource,
    /// As the sender sent it.
    pub(super) sent: OutgoingMad,
    pub(super) header: MadHeader,
    pub(super) message: Message,
}

macro_rules! message_as {
    ($($name:ident -> $message:ident;)*) => {
        $(#[track_caller]
        pub(super) fn $name(&self) -> &$message {
            match &self.message {
                Message::$message(message) => message,
                other => panic!("{other:?}"),
            }
        })*
    };
}

impl Flight {
    message_as! {
        req -> Req;
        mra -> Mra;
        rej -> Rej;
        rep -> Rep;
        rtu -> Rtu;
        dreq -> Dreq;
        drep -> Drep;
    }

    pub(super) fn bytes(&self) -> &[u8; MAD_LEN] {
        &self.sent.mad
    }

    /// The same with another message in it.
    pub(super) fn with(&self, message: impl Into<Message>) -> Self {
        let mut flight = self.clone();
        flight.message = message.into();
        flight.message.encode(flight.header.tid, &mut flight.sent.mad);
        flight
    }

    /// The same with other bytes, which may be no message any more.
    pub(super) fn patched(&self, patch: impl FnOnce(&mut [u8; MAD_LEN])) -> Self {
        let mut flight = self.clone();
        patch(&mut flight.sent.mad);
        flight
    }

    /// The same as if another host had sent it.
    pub(super) fn as_from(&self, net: &Net, host: usize) -> Self {
        let mut flight = self.clone();
        let address = &net.hosts[host].address;
        flight.from = host;
        flight.source.slid = address.lid;
        if let Some(grh) = &mut flight.source.grh {
            grh.dgid = address.gid;
        }
        flight
    }
}
