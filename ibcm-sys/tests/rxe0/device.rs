//! What the device says of itself.

use super::*;

#[tokio::test]
#[ignore = "needs rxe0"]
async fn attributes_and_tables_are_those_of_the_kernel() {
    assert_eq!(LinuxDevice::names().await.unwrap(), ["rxe0"]);
    let device = rxe0().await;
    let attr = device.attr();
    assert_eq!((attr.name.as_str(), attr.ports, attr.max_message), ("rxe0", 1, 1 << 23));
    assert_eq!(
        (attr.max_responder_resources, attr.max_initiator_depth, attr.ack_delay.get()),
        (128, 128, 15)
    );
    assert_eq!(attr.node_guid, rxe0().await.attr().node_guid);
    let port = device.port(1).unwrap();
    assert_eq!((port.state, port.link_layer), (PortState::Active, LinkLayer::Ethernet));
    assert_eq!((port.active_mtu, port.lid, port.rate), (Mtu::B1024, Lid::NONE, Rate::GBPS_10));
    assert_eq!(device.pkeys(1).unwrap(), [PKey::DEFAULT]);
    let gids = device.gids(1).unwrap();
    assert!(gids.iter().all(|entry| entry.kind == GidKind::RoceV2), "{gids:?}");
    for expected in [HERE, "fd77::1"] {
        assert!(gids.iter().any(|entry| entry.gid == expected.parse().unwrap()), "{gids:?}");
    }
    assert!(matches!(device.port(2), Err(DeviceError::Limit { what: "port", value: 2, limit: 1 })));
}

#[tokio::test]
#[ignore = "needs rxe0"]
async fn limits_are_named() {
    let device = rxe0().await;
    let too_many = device.attr().max_cqe + 1;
    match device.create_cq(too_many).await {
        Err(DeviceError::Limit { value, limit, .. }) => {
            assert_eq!((value, limit), (too_many.into(), 32_767));
        }
        other => panic!("{other:?}"),
    }
}

/// An address more or less is a change of the GID table; the other end of the wire is the port's carrier.
#[tokio::test]
#[ignore = "needs rxe0"]
async fn events_of_the_port_and_its_gids_arrive() {
    let device = rxe0().await;
    for (command, expected) in [
        ("ip address add 10.78.0.1/24 dev veth0", DeviceEvent::GidChange(1)),
        ("ip address del 10.78.0.1/24 dev veth0", DeviceEvent::GidChange(1)),
        ("ip -n b link set veth1 down", DeviceEvent::PortDown(1)),
        ("ip -n b link set veth1 up", DeviceEvent::PortUp(1)),
    ] {
        run(command);
        event(&device, expected).await;
    }
    assert_eq!(device.port(1).unwrap().state, PortState::Active);
    run("ip -n b address replace fd77::2/64 dev veth1 nodad"); // went with the link
}
