//! Both sides of the stepwise handshake, with raw queue pairs.

use std::time::Duration;

use ibcm::handshake::{self, LocalQp, Offer, Reply, Session};
use ibcm::verbs::RcQp;
use ibcm::{Hca, Listener, ServicePath};

use super::Result;

/// The passive side up to its REP: a queue pair in RTR with one receive posted.
pub async fn offer(hca: &Hca, listener: &Listener) -> Result<(RcQp, Offer)> {
    let qp = hca.verbs().create_rc_qp().await?;
    let offer = listener.accept().await?.prepare(LocalQp::rc(qp.qpn()))?;
    qp.modify(offer.attrs().init).await?;
    qp.modify(offer.attrs().rtr).await?;
    qp.post_recv(hca.alloc(4096).await?)?;
    Ok((qp, offer))
}

/// The same to the end of the handshake.
pub async fn accept(hca: &Hca, listener: &Listener) -> Result<(RcQp, Session)> {
    let (qp, offer) = offer(hca, listener).await?;
    let attrs = offer.attrs();
    let session = offer.private_data(b"welcome").reply().await?;
    qp.modify(attrs.rts).await?;
    Ok((qp, session))
}

/// The active side up to its RTU: a queue pair in RTS with one receive posted.
pub async fn ask(hca: &Hca, path: &ServicePath) -> Result<(RcQp, Reply)> {
    let qp = hca.verbs().create_rc_qp().await?;
    qp.modify(path.qp_init()?).await?;
    qp.post_recv(hca.alloc(4096).await?)?;
    let connect = handshake::connect(path.clone(), LocalQp::rc(qp.qpn()));
    let reply = connect.private_data(b"hello").deadline(Duration::from_secs(60)).await?;
    qp.modify(reply.attrs().rtr).await?;
    qp.modify(reply.attrs().rts).await?;
    Ok((qp, reply))
}

/// The same to the end of the handshake.
pub async fn connect(hca: &Hca, path: &ServicePath) -> Result<(RcQp, Session)> {
    let (qp, reply) = ask(hca, path).await?;
    Ok((qp, reply.rtu_data(b"go").ready().await?))
}
