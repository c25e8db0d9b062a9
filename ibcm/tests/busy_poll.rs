//! Looking again and again instead of sleeping.

mod common;

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use common::{Net, Result};
use futures::FutureExt;
use ibcm::{ConnectError, Connection, Gid, Hca, Invalid, Listener, ServiceId};

const SID: ServiceId = ServiceId::new(0x1000_0000_0000_0001);
/// As long as can be: the machine may be busy.
const TIME: Duration = Duration::from_millis(10);

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

/// The other end, in a thread of its own: tells where it listens, then sends one message each time that it is asked to,
/// and says when it has left.
fn sender(gid: mpsc::Sender<Gid>, asked: mpsc::Receiver<()>, sent: mpsc::Sender<()>) -> Result {
    runtime()?.block_on(async {
        let hca = Hca::open("soft").await?;
        let listener = Listener::bind(SID).device(&hca).await?;
        gid.send(hca.gid())?;
        let conn = listener.accept().await?.accept().await?;
        conn.recv().await?;
        while asked.recv().is_ok() {
            let posted = conn.send_copy(b"now").post().await?;
            sent.send(())?;
            posted.await?;
        }
        Ok(())
    })
}

/// A message that lies in the socket is received by one look of the task that waits for it, not by the device's own task,
/// which had no turn.
#[test]
fn who_waits_receives() -> Result {
    let (gid, where_to) = mpsc::channel();
    let (ask, asked) = mpsc::channel();
    let (sent, has_sent) = mpsc::channel();
    let other = thread::spawn(move || sender(gid, asked, sent));
    let peer = where_to.recv_timeout(Duration::from_secs(30))?;
    runtime()?.block_on(async {
        let hca = Hca::open("soft").await?;
        let path = hca.path_to(peer).service_id(SID).await?;
        let conn = Connection::connect(path).busy_poll(TIME).await?;
        // Behind this the connection is established at the other end, too, and the threads may block.
        conn.send_copy(b"ready").await?;
        for _ in 0..3 {
            ask.send(())?;
            has_sent.recv_timeout(Duration::from_secs(30))?;
            let message = conn.recv().now_or_never().ok_or("nothing in one look")??;
            assert_eq!(&message.ok_or("the other end is gone")?[..], b"now");
            // Nothing comes: it ends all the same.
            assert!(conn.recv().now_or_never().is_none());
            // The acknowledgement has left by now, and the other end waits to be asked.
        }
        drop(ask);
        Result::Ok(())
    })?;
    other.join().map_err(|_| "the other end panicked")?
}

#[tokio::test(start_paused = true)]
async fn too_long_is_refused() -> Result {
    let net = Net::new(1).await?;
    let path = net.client.path_to(net.server.gid()).service_id(SID).await?;
    let refused = Connection::connect(path).busy_poll(TIME + Duration::from_nanos(1)).await;
    assert!(matches!(refused, Err(ConnectError::Invalid(Invalid { field: "busy poll", .. }))), "{refused:?}");
    net.quiet().await
}
