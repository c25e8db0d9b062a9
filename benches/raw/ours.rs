//! The sockets of `ibraw`, each in a runtime of one thread.

use benches::Sample;
use benches::traffic::Result;
use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use ibraw::protocol::Protocol;
use ibraw::{EtherDest, Ipv6Dest, Link, RawEtherSocket, RawIpv6Socket, RawSocket, Ring};
use tests::veth::Side;
use tokio::runtime::Builder;

use crate::{Kind, Meter, NEXT, QUEUE, TYPE, Way};

/// Datagrams of one call.
const BATCH: usize = 64;

pub(crate) fn receive(side: Side, kind: Kind, way: Way, count: u64) -> Result<Sample> {
    Builder::new_current_thread().enable_all().build()?.block_on(async {
        let link = Link::open(side.interface())?;
        match kind {
            Kind::Ether => {
                let bind = RawEtherSocket::bind(&link, [TYPE]);
                let bind = match way {
                    Way::Ring => bind.ring(Ring::new(QUEUE)),
                    _ => bind.recv_buffer(QUEUE),
                };
                receive_from(bind.await?, way, count).await
            }
            Kind::Ipv6 => {
                receive_from(RawIpv6Socket::bind(&link, [NEXT]).recv_buffer(QUEUE).await?, way, count).await
            }
        }
    })
}

async fn receive_from<P: Protocol>(socket: RawSocket<P>, way: Way, count: u64) -> Result<Sample> {
    let (mut batch, mut stream, mut buffer) = (socket.batch(), socket.stream(), [0; 2048]);
    let meter = Meter::start();
    let mut done = 0;
    while done < count {
        done += match way {
            Way::One => socket.recv().await.map(|_| 1)?,
            Way::Into => socket.recv_from(&mut buffer).await.map(|_| 1)?,
            Way::Batch | Way::Ring => socket.recv_batch(&mut batch).await? as u64,
            Way::Stream => stream.next().await.ok_or("the stream has ended")?.map(|_| 1)?,
        };
    }
    Ok(meter.stop(done))
}

pub(crate) fn send(side: Side, kind: Kind, way: Way, bytes: usize, count: u64) -> Result<Sample> {
    Builder::new_current_thread().enable_all().build()?.block_on(async {
        let (link, to) = (Link::open(side.interface())?, side.other());
        match kind {
            Kind::Ether => {
                let dest = EtherDest::station(to.mac(), TYPE);
                send_to(RawEtherSocket::bind(&link, [TYPE]).await?, &dest, way, bytes, count).await
            }
            Kind::Ipv6 => {
                let dest = Ipv6Dest { addr: to.address().parse()?, next_header: NEXT };
                send_to(RawIpv6Socket::bind(&link, [NEXT]).await?, &dest, way, bytes, count).await
            }
        }
    })
}

async fn send_to<P: Protocol>(
    socket: RawSocket<P>,
    dest: &P::Dest,
    way: Way,
    bytes: usize,
    count: u64,
) -> Result<Sample> {
    let payload = Bytes::from(vec![0; bytes]);
    let all: Vec<_> = (0..BATCH).map(|_| (&payload[..], dest)).collect();
    let mut sink = socket.sink();
    let meter = Meter::start();
    let mut done = 0;
    while done < count {
        done += match way {
            Way::One | Way::Into => socket.send_to(&payload, dest).await.map(|_| 1)?,
            Way::Batch | Way::Ring => {
                socket.send_batch(&all[..BATCH.min((count - done) as usize)]).await? as u64
            }
            Way::Stream => sink.feed((payload.clone(), dest.clone())).await.map(|()| 1)?,
        };
    }
    sink.flush().await?;
    Ok(meter.stop(done))
}
