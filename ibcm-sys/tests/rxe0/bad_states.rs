//! States of the machine in which it does not work, and what the errors say of them. The guest prepares some of them.

use super::*;

fn met(error: &DeviceError) -> &LinuxError {
    LinuxError::of(error).unwrap_or_else(|| panic!("{error:?}"))
}

#[tokio::test]
#[ignore = "needs rxe0"]
async fn an_unknown_name_is_answered_with_the_names_that_there_are() {
    let error = LinuxDevice::open("rxe9").await.unwrap_err();
    assert_eq!(met(&error), &LinuxError::NoDevice { name: "rxe9".into(), present: vec!["rxe0".into()] });
}

#[tokio::test]
#[ignore = "needs rxe0"]
async fn an_address_that_was_removed_is_named() {
    let device = rxe0().await;
    run("ip address add 10.79.0.1/24 dev veth0");
    event(&device, DeviceEvent::GidChange(1)).await;
    let there = av_from(&device, "10.79.0.1", "10.79.0.1");
    device.domain().create_ah(there).await.unwrap();
    run("ip address del 10.79.0.1/24 dev veth0");
    event(&device, DeviceEvent::GidChange(1)).await;
    let index = there.grh.unwrap().sgid_index;
    let gone = LinuxError::NoGid { device: "rxe0".into(), port: 1, index };
    assert_eq!(met(&device.domain().create_ah(there).await.unwrap_err()), &gone);
    let one = end(&device, 1).await;
    one.init().await;
    let rtr = Rtr {
        av: there,
        path_mtu: Mtu::B1024,
        dest_qpn: Qpn::truncate(77),
        rq_psn: Psn::default(),
        max_dest_rd_atomic: 1,
        min_rnr_timer: RnrTimer::truncate(12),
    };
    assert_eq!(met(&one.qp.modify(Transition::Rtr(rtr)).await.unwrap_err()), &gone);
    // It can be connected all the same.
    one.connect(&device, Qpn::truncate(77), HERE).await;
}

#[tokio::test]
#[ignore = "needs rxe0"]
async fn a_port_that_is_down_is_named() {
    let device = rxe0().await;
    let there = av(&device, HERE);
    run("ip -n b link set veth1 down");
    event(&device, DeviceEvent::PortDown(1)).await;
    assert_eq!(device.port(1).unwrap().state, PortState::Down);
    let error = device.domain().create_ah(there).await.unwrap_err();
    assert_eq!(met(&error), &LinuxError::PortDown { device: "rxe0".into(), port: 1 });
    run("ip -n b link set veth1 up");
    event(&device, DeviceEvent::PortUp(1)).await;
    run("ip -n b address replace fd77::2/64 dev veth1 nodad"); // went with the link
    device.domain().create_ah(there).await.unwrap();
}

/// Run without rights, and with a small limit of locked memory.
#[tokio::test]
#[ignore = "needs rxe0 and prlimit without CAP_IPC_LOCK"]
async fn unprivileged_too_little_memory_can_be_locked() {
    let device = rxe0().await;
    let error = device.domain().alloc(1, 16 << 20).await.unwrap_err();
    assert!(matches!(met(&error), LinuxError::LockedMemory { limit } if *limit == 64 << 10), "{error:?}");
    let error = device.domain().register(SharedMemory::zeroed(16 << 20), Access::all()).await.unwrap_err();
    assert!(matches!(met(&error), LinuxError::LockedMemory { .. }), "{error:?}");
    // What is small enough still fits.
    device.domain().alloc(1, 4096).await.unwrap();
}

#[tokio::test]
#[ignore = "needs rxe0 and a user without rights"]
async fn unprivileged_access_to_the_files_is_asked_for() {
    match LinuxDevice::open("rxe0").await {
        Err(DeviceError::Permission { need }) => assert!(need.contains("/dev/infiniband/uverbs"), "{need}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
#[ignore = "needs a machine without ib_umad"]
async fn unloaded_umad_is_named() {
    let error = rxe0().await.open_agent(CM).unwrap_err();
    assert_eq!(met(&error), &LinuxError::NoModule { module: "ib_umad" });
}
