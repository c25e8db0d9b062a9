//! The protocol of ibsim, without ibsim: this test holds the other ends of the sockets.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::thread;

use ibdev::{AgentSpec, DeviceError, MAD_LEN};
use ibwire::mad::MgmtClass;
use ibwire::{Guid, Lid, Qpn};

use super::attach::{Attachment, attach};
use super::core::{Agent, Core};
use super::packet::{Control, Packet};

/// A device with an agent of class 3.
fn core() -> std::sync::Arc<Core> {
    let (control, _) = UnixDatagram::pair().unwrap();
    let (data, _) = UnixDatagram::pair().unwrap();
    data.set_nonblocking(true).unwrap();
    let (node_guid, port_guid) = (Guid(0x20_0000), Guid(0x20_0001));
    let core = Core::new(Attachment { control, data, slot: 0, node_guid, port_guid }, "B").unwrap();
    let spec = AgentSpec { port: 1, class: MgmtClass::SA, class_version: 2, methods: &[] };
    core.lock().agents.insert(1, Agent { spec, received: Default::default(), waker: None });
    core
}

fn packet(class: u8, method: u8, status: u32) -> Vec<u8> {
    let mut mad = [0; MAD_LEN];
    mad[..4].copy_from_slice(&[1, class, 2, method]);
    let (dqp, sqp) = (Qpn::GSI, Qpn::GSI);
    Packet { dlid: Lid(2), slid: Lid(1), dqp, sqp, status, mad }.to_bytes().to_vec()
}

fn count(core: &Core, name: &str) -> u64 {
    core.counters().into_iter().find(|(known, _)| *known == name).unwrap().1
}

fn waiting(core: &Core) -> usize {
    core.lock().agents[&1].received.len()
}

#[tokio::test]
async fn sa_t76_an_own_packet_that_comes_back_is_no_request() {
    let core = core();
    core.deliver(&packet(3, 0x01, 110));
    core.deliver(&packet(3, 0x81, 110));
    assert_eq!((waiting(&core), count(&core, "mads_undelivered")), (0, 2));
    core.deliver(&packet(3, 0x81, 0));
    assert_eq!((waiting(&core), count(&core, "mads_received")), (1, 1));
}

#[tokio::test]
async fn sa_t81_classes_that_nobody_has_are_dropped() {
    let core = core();
    core.deliver(&packet(5, 0x81, 0));
    core.deliver(&packet(3, 0x01, 0)); // a request, which the agent does not take
    assert_eq!((waiting(&core), count(&core, "mads_dropped_no_agent")), (0, 2));
    core.deliver(&[0; 100]);
    assert_eq!(count(&core, "mads_dropped_malformed"), 1);
}

#[tokio::test]
async fn sa_t78_the_port_has_a_guid_of_its_own() {
    let core = core();
    assert_eq!((core.attr.node_guid, core.port_guid), (Guid(0x20_0000), Guid(0x20_0001)));
}

#[test]
fn sa_t79_t80_what_ibsim_refuses_is_said_and_leaves_no_name_behind() {
    let base = format!("ibsoft-refuses-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(format!("{base}:ctl\0")).unwrap();
    let refuses = |address: &SocketAddr| {
        let ibsim = UnixDatagram::bind_addr(address).unwrap();
        thread::spawn(move || {
            let mut bytes = [0; Control::LEN];
            let (_, from) = ibsim.recv_from(&mut bytes).unwrap();
            let asked = Control::parse(&bytes).unwrap();
            assert_eq!(asked.kind, Control::CONNECT);
            ibsim.send_to_addr(&Control::new(0, 0).to_bytes(), &from).unwrap();
        })
    };
    // Many times, so that names are used again.
    for _ in 0..70 {
        let ibsim = refuses(&address);
        let error = attach(&base, "B").unwrap_err();
        assert!(matches!(error, DeviceError::InUse { .. }), "{error:?}");
        assert!(error.to_string().contains("ten programs are attached"), "{error}");
        ibsim.join().unwrap();
    }
    let error = attach(&base, "B").unwrap_err();
    assert!(error.to_string().contains("is it running"), "{error}");
}
