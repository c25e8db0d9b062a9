//! A connection of the SDK between two software HCAs.

use futures::FutureExt;
use ibcm::{Connection, Gid, Hca, Listener, ServiceId};

use super::{Control, End, PING, Result, Task, Waiting};

const SERVICE: ServiceId = ServiceId::new(0x1000_0000_0000_0001);

/// One end. The connection belongs to the HCA, which is held as long.
#[derive(Debug)]
pub struct Sdk {
    connection: Connection,
    _hca: Hca,
}

impl Sdk {
    /// Waits for the other end's connection, on the device that is named as in `IBCM_DEVICE`.
    ///
    /// # Errors
    /// The device's and the network's.
    pub async fn accept(control: &mut Control, device: &str) -> Result<Self> {
        let hca = Hca::open(device).await?;
        let listener = Listener::bind(SERVICE).device(&hca).await?;
        control.say(hca.gid()).await?;
        let connection = listener.accept().await?.accept().await?;
        Ok(Self { connection, _hca: hca })
    }

    /// Connects to the other end.
    ///
    /// # Errors
    /// The device's and the network's.
    pub async fn connect(control: &mut Control, device: &str) -> Result<Self> {
        let hca = Hca::open(device).await?;
        let server: Gid = control.hear().await?.ok_or("the other end is gone")?.parse()?;
        let path = hca.path_to(server).service_id(SERVICE).await?;
        Ok(Self { connection: Connection::connect(path).await?, _hca: hca })
    }

    async fn send(&self) -> Result {
        Ok(self.connection.send_copy(&[0; PING]).await?)
    }

    async fn receive(&self, waiting: Waiting) -> Result {
        let message = match waiting {
            Waiting::Blocking => self.connection.recv().await,
            Waiting::Spinning => loop {
                if let Some(message) = self.connection.recv().now_or_never() {
                    break message;
                }
                tokio::task::yield_now().await;
            },
        };
        message?.ok_or("the other end is gone")?;
        Ok(())
    }
}

/// Ping-pongs only.
impl End for Sdk {
    async fn ask(&mut self, task: Task) -> Result {
        for _ in 0..task.count {
            let sent = self.connection.send_copy(&[0; PING]).post().await?;
            self.receive(task.waiting).await?;
            sent.await?;
        }
        Ok(())
    }

    async fn answer(&mut self, task: Task) -> Result {
        for _ in 0..task.count {
            self.receive(task.waiting).await?;
            self.send().await?;
        }
        Ok(())
    }
}
