//! rxe0 on a kernel with ib_cm loaded, where other programs connect through rdma_cm. Runs in the configuration `cm`.

use ibcm::{DeviceError, ListenError};
use ibdev::{AgentSpec, Device};
use ibwire::mad::{Method, MgmtClass};

use super::super::*;

/// The CM's class is held, and who holds it is said at once. The rest of the device is there.
#[test]
#[ignore = "needs rxe0 and ib_cm"]
fn all_but_connections() {
    on_rxe0(|hca| async move {
        assert!(ibcm::devices().iter().all(|device| device.ib_cm && device.unusable.is_none()));
        // Who holds the class, and what to do about it.
        let names_ib_cm = |error: &DeviceError| {
            assert_eq!(
                error.to_string(),
                "management class 7 (CM) is taken: a kernel module, ib_cm for class 7 (unload rdma_ucm, rdma_cm, ib_ipoib and \
                 ib_cm; or connect from a software HCA; or leave connections to librdmacm), or another program"
            );
        };
        match Listener::bind(SERVICE).device(&hca).await {
            Err(ListenError::Device(error)) => names_ib_cm(&error),
            other => return Err(format!("{other:?}").into()),
        }
        let path = hca.path_to(Family::V4.rxe0()).service_id(SERVICE).await?;
        let qp = hca.verbs().create_rc_qp().await?;
        qp.modify(path.qp_init()?).await?;
        qp.post_recv(hca.alloc(64).await?)?;
        match Connection::connect(path).await {
            Err(ConnectError::Device(error)) => names_ib_cm(&error),
            other => return Err(format!("{other:?}").into()),
        }
        Ok(())
    });
}

/// Subnet administration is another class, which the kernel shares.
#[test]
#[ignore = "needs rxe0 and ib_cm"]
fn agents_of_the_sa_open() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(within(async {
        let device = ibcm_sys::LinuxDevice::open("rxe0").await?;
        let agent =
            |class, methods| device.open_agent(AgentSpec { port: 1, class, class_version: 2, methods });
        let (first, second) = (agent(MgmtClass::SA, &[])?, agent(MgmtClass::SA, &[])?);
        assert!(matches!(agent(MgmtClass::CM, &[Method::SEND]), Err(DeviceError::InUse { .. })));
        drop((first, second));
        Ok(())
    }));
}
