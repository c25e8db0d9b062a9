//! Who sent a datagram: from the completion and the 40 bytes before the message.

use ibdev::{DatagramSource, GlobalRoute, SgList};
use ibwire::packet::{GrhArea, Ipv4Header};
use ibwire::{Lid, Qpn, ServiceLevel};
use rdma_sys::{ibv_wc, ibv_wc_flags};

use super::Hca;

/// `port` is the receiving QP's.
pub(super) fn source(wc: &ibv_wc, sg: &SgList, port: u8, hca: &Hca) -> DatagramSource {
    let has_grh = wc.wc_flags & ibv_wc_flags::IBV_WC_GRH.0 != 0;
    DatagramSource {
        qpn: Qpn::truncate(wc.src_qp),
        slid: Lid(wc.slid),
        sl: ServiceLevel::truncate(wc.sl),
        path_bits: wc.dlid_path_bits,
        pkey_index: wc.pkey_index,
        grh: if has_grh { route_back(&area(sg), port, hca) } else { None },
    }
}

fn area(sg: &SgList) -> [u8; GrhArea::LEN] {
    let mut area = [0; GrhArea::LEN];
    for (to, from) in area.iter_mut().zip(sg.iter().flat_map(|buf| buf.iter())) {
        *to = *from;
    }
    area
}

/// rxe leaves checksum and length of an IPv4 header zero when it sends to itself; then it is one if no IPv6 header is there.
fn parse(area: &[u8; GrhArea::LEN]) -> Option<GrhArea> {
    let without_checksum = || Ipv4Header::parse(&area[GrhArea::LEN - Ipv4Header::LEN..]).ok();
    GrhArea::parse(area).ok().or_else(|| without_checksum().map(GrhArea::Ipv4))
}

/// To the sender, from the address that it has sent to; that of a group is none to send from.
fn route_back(area: &[u8; GrhArea::LEN], port: u8, hca: &Hca) -> Option<GlobalRoute> {
    let area = parse(area)?;
    let (flow_label, traffic_class) = match &area {
        GrhArea::Ipv4(header) => (Default::default(), header.tos),
        GrhArea::Grh(grh) => (grh.flow_label, grh.traffic_class),
    };
    let sgid_index = hca.gid_index(port, area.dgid())?;
    // As rdma-core does for an address from a completion: the way back may be longer than what is left of the way here.
    Some(GlobalRoute { dgid: area.sgid(), sgid_index, flow_label, hop_limit: u8::MAX, traffic_class })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_without_checksum_is_read() {
        let mut area = [0; GrhArea::LEN];
        area[20..].copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 77, 0, 1, 10, 77, 0, 2]);
        let read = parse(&area).unwrap();
        assert_eq!(read.sgid().to_string(), "::ffff:10.77.0.1");
        assert_eq!(read.dgid().to_string(), "::ffff:10.77.0.2");
        assert_eq!(parse(&[0; GrhArea::LEN]), None);
    }
}
