//! Connections over UC.

use ibcm::{Access, RemoteRegion, Transport};

use super::super::*;

/// Messages both ways, and writes of the active side into the passive side's memory.
fn uc(rxe0_is_active: bool, family: Family) {
    let to = if rxe0_is_active { family.soft() } else { family.rxe0() };
    between(
        rxe0_is_active,
        |hca, ready| async move {
            let listener = Listener::bind(SERVICE).device(&hca).transport(Transport::Uc).await?;
            ready.send(()).unwrap();
            let request = listener.accept().await?;
            assert_eq!(request.transport(), Transport::Uc);
            let region = hca.expose(4096, Access::REMOTE_WRITE).await?;
            let advert = region.remote().to_bytes();
            let conn = request.accept().private_data(&advert).recv(Recv::buffers(8, 40_000)).await?;
            while let Some(message) = conn.recv().await? {
                if message.is_empty() {
                    // A message that ends writes comes behind them.
                    let mut written = [0; 4096];
                    region.copy_to(0, &mut written)?;
                    assert!(written.iter().all(|byte| *byte == 0x5c));
                }
                conn.send(message.into_buf()).await?;
            }
            assert_eq!(conn.closed().await.how, How::ByPeer);
            Ok(())
        },
        move |hca| async move {
            let path = hca.path_to(to).service_id(SERVICE).await?;
            let connect = Connection::connect(path).transport(Transport::Uc).recv(Recv::buffers(8, 40_000));
            let conn = connect.await?;
            assert_eq!(conn.transport(), Transport::Uc);
            let memory = RemoteRegion::from_bytes(&conn.private_data()[..RemoteRegion::BYTES])?;
            let mut block = hca.alloc(memory.len()).await?;
            block.fill(0x5c);
            conn.write(block, memory).await?;
            for size in SIZES {
                let message: Vec<u8> = (0..size).map(|at| (at + size) as u8).collect();
                conn.send_copy(&message).await?;
                let answer = conn.recv().await?.ok_or("closed before the answer")?;
                assert!(answer[..] == message[..], "{size} bytes");
            }
            assert_eq!(conn.disconnect().await.how, How::Confirmed);
            Ok(())
        },
    );
}

#[test]
#[ignore = "needs rxe0"]
fn uc_from_the_soft_hca_to_rxe0_v4() {
    uc(false, Family::V4);
}

#[test]
#[ignore = "needs rxe0"]
fn uc_from_the_soft_hca_to_rxe0_v6() {
    uc(false, Family::V6);
}

#[test]
#[ignore = "needs rxe0"]
fn uc_from_rxe0_to_the_soft_hca_v4() {
    uc(true, Family::V4);
}

#[test]
#[ignore = "needs rxe0"]
fn uc_from_rxe0_to_the_soft_hca_v6() {
    uc(true, Family::V6);
}
