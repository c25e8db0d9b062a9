//! Devices in a subnet, through the device contract alone.

mod common;


use common::*;
use ibdev::{Device, OutgoingMad};
use ibsoft::sim::Subnet;

async fn star() -> Subnet {
    Subnet::star(["a", "b"]).seed(1).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn messages_pass_with_and_without_grh() {
    let net = star().await;
    for grh in [false, true] {
        let options = Options { grh, ..Options::default() };
        let (a, b) = pair(net.device("a"), net.device("b"), options).await;
        soon(exchange(&a, &b, 3)).await;
    }
    net.quiet().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn mads_pass_and_are_answered() {
    let net = star().await;
    let (a, b) = (net.device("a"), net.device("b"));
    let (agent_a, agent_b) = (a.open_agent(CM).unwrap(), b.open_agent(CM).unwrap());
    let to = to_gsi(&a, b.gids(1).unwrap()[0].gid);
    send_all(&*agent_a, (0..1000).map(|n| OutgoingMad { to, mad: mad(n) })).await;
    let received = soon(receive(&*agent_b, 1000)).await;
    assert!(received.iter().zip(0..).all(|(got, n)| got.mad == mad(n)));
    let answer = OutgoingMad { to: received[0].from.reply(), mad: mad(7) };
    send_all(&*agent_b, [answer]).await;
    assert_eq!(soon(receive(&*agent_a, 1)).await[0].mad, mad(7));
    net.quiet().await.unwrap();
}
