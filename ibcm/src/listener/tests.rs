//! What no program can bring about at will: the order in which the driver and the program come.

use std::time::Duration;

use ibsoft::sim::Subnet;

use super::*;
use crate::{ConnectError, Connection, RejReason};

/// The driver has a request in its hands while the listener closes.
#[tokio::test(start_paused = true)]
async fn a_request_that_comes_while_the_listener_closes_is_rejected() {
    let net = Subnet::star(["server", "client"]).await.unwrap();
    let open = async |name| Hca::open(net.device(name)).await.unwrap();
    let (server, client) = (open("server").await, open("client").await);
    let listener = Listener::bind(ServiceId::new(1)).device(&server).await.unwrap();
    let path = client.path_to(server.gid()).service_id(ServiceId::new(1)).await.unwrap();
    let dialing = tokio::spawn(Connection::connect(path));
    let request = listener.accept().await.unwrap().into_parts();
    drop(request.place);
    let before = listener.stats().rejected;
    listener.close().await;
    listener.backlog.push(server.shared(), request.waiting);
    let dialed = tokio::time::timeout(Duration::from_secs(60), dialing).await.expect("an answer").unwrap();
    assert!(
        matches!(&dialed, Err(ConnectError::Rejected(no)) if no.reason == RejReason::CONSUMER),
        "{dialed:?}"
    );
    assert_eq!(listener.stats().rejected, before + 1);
    tokio::time::timeout(Duration::from_secs(60), server.wait_idle()).await.expect("nothing is left");
}
