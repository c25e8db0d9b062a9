//! One packet of a peer can ask for very much: whoever shares a thread with the device gets its turns all the same.
#![allow(clippy::unwrap_used, reason = "test helpers outside #[test] functions")]

mod common;

use std::net::{SocketAddrV4, UdpSocket};

use common::loopback::Loopback;
use ibdev::qp::{Init, QpSpec, QpType, Rtr, Rts, Transition};
use ibdev::{Access, Device, SharedMemory};
use ibsoft::{SoftDevice, UdpConfig};
use ibwire::icrc::{Icrc, Ipv4Pseudo};
use ibwire::packet::{Bth, Opcode, Reth};
use ibwire::{Gid, Mtu, Psn, QKey, Qpn, RnrTimer, TimeCode};

const LEN: usize = 16 << 20;
const PSN: Psn = Psn::truncate(1000);

#[tokio::test]
async fn a_read_of_everything_is_served_in_turns() {
    let lo = Loopback::claim();
    let [here, there] = [1, 2].map(|host| SocketAddrV4::new(lo.address(host), 4791));
    let device = SoftDevice::bind(UdpConfig::new([lo.address(1).into()])).unwrap();
    let cq = device.create_cq(2).await.unwrap();
    let qp = device.domain().create_qp(QpSpec::new(QpType::Rc, &cq, 1, 1)).await.unwrap();
    let init = Init { port: 1, pkey_index: 0, access: Access::REMOTE_READ, qkey: QKey::default() };
    let rtr = Rtr {
        av: common::address(&device, 1, Gid::from_ip(lo.address(2).into()), true),
        path_mtu: Mtu::B1024,
        dest_qpn: Qpn::truncate(0x11),
        rq_psn: PSN,
        max_dest_rd_atomic: 1,
        min_rnr_timer: RnrTimer::truncate(12),
    };
    let rts = Rts {
        sq_psn: PSN,
        timeout: TimeCode::truncate(14),
        retry_count: 7,
        rnr_retry: 7,
        max_rd_atomic: 0,
        alternate: None,
    };
    for transition in [init.into(), rtr.into(), rts.into()] as [Transition; 3] {
        qp.modify(transition).await.unwrap();
    }
    let memory = SharedMemory::zeroed(LEN);
    let region = device.domain().register(memory, Access::REMOTE_READ).await.unwrap();

    let peer = UdpSocket::bind(there).unwrap();
    let reth = Reth { va: region.remote().addr(), rkey: region.remote().rkey(), len: LEN as u32 };
    let bth = Bth::new(Opcode::RC_RDMA_READ_REQUEST, qp.qpn(), PSN);
    let mut request = [&bth.to_bytes()[..], &reth.to_bytes()].concat();
    let Icrc(icrc) = Ipv4Pseudo::new(there, here).icrc(&request);
    request.extend_from_slice(&icrc);
    peer.send_to(&request, here).unwrap();

    let served = || device.counters().into_iter().find(|(name, _)| *name == "read_responses_sent").unwrap().1;
    let (mut turns, mut before) = (0, 0);
    while before < LEN as u64 / 1024 {
        tokio::task::yield_now().await;
        let now = served();
        turns += u64::from(now > before);
        before = now;
    }
    assert!(turns >= 8, "{turns} turns");
}
