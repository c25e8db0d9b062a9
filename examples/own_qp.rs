//! A queue pair of one's own, connected step by step by this CM alone.
//!
//! ```text
//! cargo run --release --example own_qp                        both ends in this process, on two software HCAs
//! cargo run --release --example own_qp -- serve               one end: waits for the other
//! cargo run --release --example own_qp -- connect 127.0.0.1   the other end
//! ```
//!
//! The queue pairs are raw ones of the software HCA and stand for an `ibv_qp` of yours. `rdma_sys_qp`, an example of
//! ibcm-sys, is the same program with a queue pair of rdma-sys; either may be the other end. The client sends a message, the
//! server sends it back, the client disconnects. `--device NAME` or IBCM_DEVICE names the device; one may serve both ends.
#![forbid(unsafe_code)]

use std::error::Error;

use ibcm::handshake::{self, LocalQp};
use ibcm::{Gid, Hca, Listener, ServiceId, Status};

const SID: ServiceId = ServiceId::new(0x1000_0000_0000_0008);

type Result<T = ()> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

#[tokio::main]
async fn main() -> Result {
    let (device, words) = examples::arguments();
    let device = device.as_deref();
    match &words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => {
            let (here, there) = examples::both_ends(device, None).await?;
            let listener = Listener::bind(SID).device(&there).await?;
            let peer = there.gid();
            let serving = tokio::spawn(async move { serve(&there, &listener).await });
            connect(&here, peer).await?;
            serving.await?
        }
        ["serve"] => {
            let hca = examples::open(device).await?;
            let listener = Listener::bind(SID).device(&hca).await?;
            println!("listening at {}", hca.gid());
            serve(&hca, &listener).await
        }
        ["connect", gid] => connect(&examples::open(device).await?, gid.parse()?).await,
        _ => Err("usage: own_qp [--device NAME] [serve | connect GID]".into()),
    }
}

async fn serve(hca: &Hca, listener: &Listener) -> Result {
    let qp = hca.verbs().create_rc_qp().await?; // stands for your own ibv_qp
    let offer = listener.accept().await?.prepare(LocalQp::rc(qp.qpn()))?;
    let attrs = offer.attrs();
    qp.modify(attrs.init).await?;
    qp.modify(attrs.rtr).await?;
    qp.post_recv(hca.alloc(4096).await?)?; // receives first, then the REP
    let session = offer.reply().await?; // REP out, RTU in
    qp.modify(attrs.rts).await?;
    println!("server: QP {} is connected to QP {} of {}", qp.qpn(), session.peer().qpn, session.peer());
    let message = qp.completion().await;
    if message.status != Status::SUCCESS {
        return Err(message.status.to_string().into());
    }
    qp.post_send(message.into_buf().ok_or("no buffer")?)?;
    qp.completion().await;
    println!("server: {}", session.closed().await);
    session.finish().await; // from here on the QP number may be used again
    Ok(())
}

async fn connect(hca: &Hca, peer: Gid) -> Result {
    let path = hca.path_to(peer).service_id(SID).await?;
    let qp = hca.verbs().create_rc_qp().await?;
    qp.modify(path.qp_init()?).await?;
    qp.post_recv(hca.alloc(4096).await?)?;
    let reply = handshake::connect(path, LocalQp::rc(qp.qpn())).await?; // REQ out, REP in
    qp.modify(reply.attrs().rtr).await?;
    qp.modify(reply.attrs().rts).await?;
    let session = reply.ready().await?; // RTU out
    let mut message = hca.alloc(64).await?;
    message.fill(8);
    qp.post_send(message)?;
    for _ in ["sent", "came back"] {
        let done = qp.completion().await;
        if done.status != Status::SUCCESS {
            return Err(done.status.to_string().into());
        }
        if done.op.is_recv() {
            println!("client: {} bytes came back: {:?}..", done.len, &done.sg[0][..8]);
        }
    }
    println!("client: {}", session.disconnect().await); // DREQ, DREP
    session.finish().await; // TimeWait
    Ok(())
}
