//! `rdma link delete` while everything is in use. Ends with the same device there again.

use super::*;

/// The driver of rxe waits until the last program has let go.
struct Deletion(std::process::Child);

impl Deletion {
    fn begin() -> Self {
        Self(std::process::Command::new("rdma").args(["link", "delete", "rxe0"]).spawn().unwrap())
    }

    async fn end(mut self) {
        within("end of the deletion", async {
            while self.0.try_wait().unwrap().is_none() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
        assert!(self.0.wait().unwrap().success());
        run("rdma link add rxe0 type rxe netdev veth0");
    }
}

#[tokio::test]
#[ignore = "needs rxe0"]
async fn a_removed_device_is_gone_for_all_who_wait_and_flushes() {
    let device = rxe0().await;
    let (a, b) = pair(&device, 4).await;
    let agent = device.open_agent(CM).unwrap();
    let region = device.domain().register(SharedMemory::zeroed(64), Access::all()).await.unwrap();
    for id in 0..3 {
        b.recv(id, buf(&device, 8).await).unwrap();
    }
    let deletion = Deletion::begin();
    let mut mads = Vec::new();
    let (event, flushed, received, ready) = within("end of all waiting", async {
        tokio::join!(
            poll_fn(|cx| device.poll_event(cx)),
            b.complete(3),
            poll_fn(|cx| agent.poll_recv(cx, &mut mads, 1)),
            async {
                while poll_fn(|cx| device.poll_event(cx)).await != DeviceEvent::Gone {}
                poll_fn(|cx| agent.poll_ready(cx)).await
            }
        )
    })
    .await;
    assert_eq!(event, DeviceEvent::Gone);
    assert!(flushed.iter().all(|done| done.status == Status::WR_FLUSH_ERR));
    assert!(matches!(received, Err(DeviceError::Gone)) && matches!(ready, Err(DeviceError::Gone)));
    assert!(matches!(agent.send(&mut VecDeque::new()), Err(DeviceError::Gone)));
    assert!(matches!(device.create_cq(1).await, Err(DeviceError::Gone)));
    assert!(matches!(device.port(1), Err(DeviceError::Gone)));
    assert!(matches!(a.qp.modify(Transition::Reset).await, Err(DeviceError::Gone)));
    assert_eq!(a.send(0, Buf::unregistered(0), None), Err(PostError::Gone));
    assert_eq!(a.recv(0, Buf::unregistered(0)), Err(PostError::Gone));
    drop((flushed, region, a, b, agent, device));
    deletion.end().await;
    let device = rxe0().await;
    let (a, b) = pair(&device, 4).await;
    b.recv(0, buf(&device, 8).await).unwrap();
    a.send(0, filled(&device, b"again").await, None).unwrap();
    assert_eq!(&b.complete(1).await[0].sg[0][..], b"again");
}
