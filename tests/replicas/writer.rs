//! Who writes to the replicas, and counts a write if two of three say that they have it.

use std::time::Duration;

use futures::future::join_all;
use ibcm::sim::Subnet;
use ibcm::{Connection, Gid, Hca};
use tokio::time::timeout;

use super::service::{KEEPALIVE, SID, message};

/// How long a write waits for a replica.
const PATIENCE: Duration = Duration::from_secs(3);

pub struct Writer {
    net: Subnet,
    /// None after a write that nobody acknowledged: it may be gone.
    hca: Option<Hca>,
    replicas: Vec<Replica>,
}

struct Replica {
    number: u8,
    gid: Gid,
    conn: Option<Connection>,
    /// Connections that were made.
    connected: u64,
}

impl Writer {
    pub fn new(net: &Subnet, gids: &[Gid]) -> Self {
        let replica = |(number, gid): (u8, &Gid)| Replica { number, gid: *gid, conn: None, connected: 0 };
        Self { net: net.clone(), hca: None, replicas: (1..).zip(gids).map(replica).collect() }
    }

    /// How many replicas have acknowledged a value. Values go up.
    pub async fn write(&mut self, value: u32) -> usize {
        if self.hca.is_none() {
            self.hca = Hca::open(self.net.device("writer")).await.ok();
        }
        let Some(hca) = &self.hca else { return 0 };
        let told = self.replicas.iter_mut().map(|replica| timeout(PATIENCE, replica.tell(hca, value)));
        let acks = join_all(told).await.into_iter().filter(|told| matches!(told, Ok(Ok(())))).count();
        if acks == 0 {
            self.replicas.iter_mut().for_each(|replica| replica.conn = None);
            self.hca = None;
        }
        acks
    }

    /// Connections that were made in all.
    pub fn connected(&self) -> u64 {
        self.replicas.iter().map(|replica| replica.connected).sum()
    }
}

impl Replica {
    /// Done when it has acknowledged the value. A connection that fails is replaced with the next value; one that is slow
    /// stays, and what it acknowledges later is passed over.
    async fn tell(&mut self, hca: &Hca, value: u32) -> Result<(), ibcm::Error> {
        let conn = match self.conn.take() {
            Some(conn) => conn,
            None => {
                let path = hca.path_to(self.gid).service_id(SID).await?;
                let conn = Connection::connect(path).keepalive(KEEPALIVE).deadline(PATIENCE).await?;
                self.connected += 1;
                conn
            }
        };
        let conn = self.conn.insert(conn);
        let done = Self::exchange(conn, self.number, value).await;
        if done.is_err() {
            self.conn = None;
        }
        done
    }

    async fn exchange(conn: &Connection, number: u8, value: u32) -> Result<(), ibcm::Error> {
        conn.send_copy(&message(value, number)).await?;
        loop {
            let heard = conn.recv().await?.ok_or(ibcm::RecvError::Closed)?;
            let acknowledged = heard.first_chunk().map(|value| u32::from_be_bytes(*value));
            assert!(acknowledged <= Some(value) && heard[4..] == [number], "replica {number} says {heard:?}");
            if acknowledged == Some(value) {
                return Ok(());
            }
        }
    }
}
