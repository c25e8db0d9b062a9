//! A link that goes down and comes back, addresses that come and go.

use futures::StreamExt;
use ibcm::{HcaEvent, PortState, QueryError};

use super::super::*;

const KEEPALIVE: Duration = Duration::from_millis(500);

fn shell(commands: &str) {
    let status = Command::new("bash").args(["-eu", "-c", commands]).status().unwrap();
    assert!(status.success(), "{commands}");
}

/// A link that is down is told, ends what was on it, and is no way to a peer; up again it is.
#[test]
#[ignore = "needs rxe0"]
fn link_goes_down_and_comes_back() {
    // What `link_up` of tests/guest/cases/lib.sh says.
    const UP: &str = "ip link set veth0 up; ip address replace fd77::1/64 dev veth0 nodad; \
        for peer in 10.77.0.2 fd77::2; do ip neighbour replace $peer lladdr 02:00:00:00:00:02 dev veth0 nud permanent; done";
    between(
        false,
        |hca, ready| async move {
            let mut events = hca.port(1).ok_or("no port")?.events();
            let listener = Listener::bind(SERVICE).device(&hca).await?;
            ready.send(()).unwrap();
            let conn = listener.accept().await?.accept().keepalive(KEEPALIVE).await?;
            shell("ip link set veth0 down");
            while events.next().await.ok_or("no event")? != (HcaEvent::PortDown { port: 1 }) {}
            assert_eq!(hca.port(1).map(|port| port.state()), Some(PortState::Down));
            let way = hca.path_to(Family::V4.soft()).await;
            assert!(matches!(way, Err(QueryError::PortDown { port: 1 })), "{way:?}");
            let closed = conn.closed().await;
            assert!(matches!(closed.how, How::Silent(_) | How::Broken(_)), "{closed}");
            shell(UP);
            while events.next().await.ok_or("no event")? != (HcaEvent::PortUp { port: 1 }) {}
            while hca.path_to(Family::V6.soft()).await.is_err() {
                events.next().await;
            }
            let conn = listener.accept().await?.accept().await?;
            assert_eq!(conn.closed().await.how, How::ByPeer);
            Ok(())
        },
        |hca| async move {
            let path = || hca.path_to(Family::V4.rxe0()).service_id(SERVICE);
            let conn = Connection::connect(path().await?).keepalive(KEEPALIVE).await?;
            let closed = conn.closed().await;
            assert!(matches!(closed.how, How::Silent(_)), "{closed}");
            let again = Connection::connect(path().await?).deadline(Duration::from_secs(30)).await?;
            assert_eq!(again.disconnect().await.how, How::Confirmed);
            Ok(())
        },
    );
}

/// An address that comes is a GID to connect from; one that went away is none, and the error names it.
#[test]
#[ignore = "needs rxe0"]
fn gids_come_and_vanish() {
    on_rxe0(|hca| async move {
        let sgid: Gid = "10.78.0.1".parse()?;
        let mut events = hca.events();
        let path =
            || hca.path_to("10.78.0.2".parse().unwrap_or(Gid::UNSPECIFIED)).sgid(sgid).service_id(SERVICE);
        shell("ip address add 10.78.0.1/24 dev veth0");
        let path = loop {
            match path().await {
                Ok(path) => break path,
                Err(_) => assert_eq!(events.next().await, Some(HcaEvent::GidChange { port: 1 })),
            }
        };
        shell("ip address del 10.78.0.1/24 dev veth0");
        let error = loop {
            match path.qp_init() {
                Ok(_) => assert_eq!(events.next().await, Some(HcaEvent::GidChange { port: 1 })),
                Err(_) => break Connection::connect(path.clone()).await.unwrap_err(),
            }
        };
        assert!(
            matches!(error, ConnectError::Invalid(_)) && error.to_string().contains("10.78.0.1"),
            "{error}"
        );
        Ok(())
    });
}
