//! Port attributes and GID types in the contract's terms.

use ibdev::{GidKind, LinkLayer, PortAttr, PortState};
use ibwire::{Lid, Mtu, Rate, ServiceLevel};
use rdma_sys::{ibv_port_attr, ibv_port_state};

/// `IBV_LINK_LAYER_ETHERNET` of infiniband/verbs.h.
const ETHERNET: u8 = 2;

pub(super) fn attr(number: u8, raw: &ibv_port_attr) -> PortAttr {
    PortAttr {
        number,
        state: match raw.state {
            ibv_port_state::IBV_PORT_INIT | ibv_port_state::IBV_PORT_ARMED => PortState::Initializing,
            ibv_port_state::IBV_PORT_ACTIVE | ibv_port_state::IBV_PORT_ACTIVE_DEFER => PortState::Active,
            _ => PortState::Down,
        },
        link_layer: if raw.link_layer == ETHERNET { LinkLayer::Ethernet } else { LinkLayer::InfiniBand },
        active_mtu: Mtu(u8::try_from(raw.active_mtu).unwrap_or(0)),
        lid: Lid(raw.lid),
        lmc: raw.lmc,
        sm_lid: Lid(raw.sm_lid),
        sm_sl: ServiceLevel::truncate(raw.sm_sl),
        rate: rate(raw.active_width, raw.active_speed),
    }
}

/// The rate code of a link: lanes times speed (IBTA vol. 1, 14.2.5.6: LinkWidthActive, LinkSpeedActive).
fn rate(width: u8, speed: u8) -> Rate {
    let lanes: u32 = match width {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => return Rate::PORT_CURRENT,
    };
    let lane_gbps_tenths: u32 = match speed {
        1 => 25,
        2 => 50,
        4 | 8 => 100,
        16 => 140,
        32 => 250,
        64 => 500,
        128 => 1000,
        _ => return Rate::PORT_CURRENT,
    };
    match lanes * lane_gbps_tenths / 10 {
        2 => Rate::GBPS_2_5,
        5 => Rate::GBPS_5,
        10 => Rate::GBPS_10,
        14 => Rate::GBPS_14,
        20 => Rate::GBPS_20,
        25 => Rate::GBPS_25,
        28 => Rate::GBPS_28,
        30 => Rate::GBPS_30,
        40 => Rate::GBPS_40,
        50 => Rate::GBPS_50,
        56 => Rate::GBPS_56,
        60 => Rate::GBPS_60,
        80 => Rate::GBPS_80,
        100 => Rate::GBPS_100,
        112 => Rate::GBPS_112,
        120 => Rate::GBPS_120,
        168 => Rate::GBPS_168,
        200 => Rate::GBPS_200,
        300 => Rate::GBPS_300,
        400 => Rate::GBPS_400,
        600 => Rate::GBPS_600,
        800 => Rate::GBPS_800,
        1200 => Rate::GBPS_1200,
        _ => Rate::PORT_CURRENT,
    }
}

/// `ibv_gid_type` of infiniband/verbs.h.
pub(super) fn gid_kind(number: u32) -> Option<GidKind> {
    match number {
        0 => Some(GidKind::Infiniband),
        1 => Some(GidKind::RoceV1),
        2 => Some(GidKind::RoceV2),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_lanes_times_speed() {
        for (width, speed, expected) in [
            (1, 1, Rate::GBPS_2_5),
            (2, 4, Rate::GBPS_40),
            (1, 8, Rate::GBPS_10), // rxe on a 10 Gb/s Ethernet device
            (2, 16, Rate::GBPS_56),
            (2, 32, Rate::GBPS_100),
            (16, 64, Rate::GBPS_100),
            (2, 64, Rate::GBPS_200),
            (2, 128, Rate::GBPS_400),
            (8, 32, Rate::GBPS_300),
            (0, 1, Rate::PORT_CURRENT),
            (1, 3, Rate::PORT_CURRENT),
        ] {
            assert_eq!(rate(width, speed), expected, "width {width}, speed {speed}");
        }
    }

    #[test]
    fn unknown_gid_types_are_left_out() {
        assert_eq!(gid_kind(2), Some(GidKind::RoceV2));
        assert_eq!(gid_kind(3), None);
    }
}
