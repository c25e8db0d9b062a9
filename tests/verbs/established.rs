//! The RTU that is late.

use ibcm::handshake::{self, LocalQp};

use super::super::*;

/// rxe never raises IBV_EVENT_COMM_EST. That a message has come says the same: rxe0 takes the connection for established,
/// though no RTU has been sent.
#[test]
#[ignore = "needs rxe0"]
fn a_message_stands_for_the_rtu() {
    let (tell, told) = tokio::sync::oneshot::channel();
    between(
        false,
        |hca, ready| async move {
            let listener = Listener::bind(SERVICE).device(&hca).await?;
            ready.send(()).unwrap();
            let conn = listener.accept().await?.accept().await?;
            assert!(conn.recv().await?.is_some_and(|message| message[..] == *b"early"));
            tell.send(()).unwrap();
            assert_eq!(conn.closed().await.how, How::ByPeer);
            Ok(())
        },
        |hca| async move {
            let path = hca.path_to(Family::V4.rxe0()).service_id(SERVICE).await?;
            let qp = hca.verbs().create_rc_qp().await?;
            qp.modify(path.qp_init()?).await?;
            let reply = handshake::connect(path, LocalQp::rc(qp.qpn())).await?;
            qp.modify(reply.attrs().rtr).await?;
            qp.modify(reply.attrs().rts).await?;
            let mut message = hca.alloc(5).await?;
            message.copy_from_slice(b"early");
            qp.post_send(message)?;
            told.await?;
            let session = reply.ready().await?;
            assert_eq!(session.disconnect().await.how, How::Confirmed);
            session.finish().await;
            Ok(())
        },
    );
}
