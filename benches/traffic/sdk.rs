//! A connection of the SDK between two software HCAs.

use std::time::Duration;

use ibcm::{Connection, Gid, Hca, Listener, ServiceId};

use super::{Control, End, PING, Result, Task, Waiting};

const SERVICE: ServiceId = ServiceId::new(0x1000_0000_0000_0001);

/// How long a connection looks before it sleeps.
const fn busy_poll(waiting: Waiting) -> Duration {
    match waiting {
        Waiting::Blocking => Duration::ZERO,
        Waiting::Spinning => Duration::from_micros(100),
    }
}

/// One end, whose connection waits in one way. The connection belongs to the HCA, which is held as long.
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
    pub async fn accept(control: &mut Control, device: &str, waiting: Waiting) -> Result<Self> {
        let hca = Hca::open(device).await?;
        let listener = Listener::bind(SERVICE).device(&hca).await?;
        control.say(hca.gid()).await?;
        let connection = listener.accept().await?.accept().busy_poll(busy_poll(waiting)).await?;
        Ok(Self { connection, _hca: hca })
    }

    /// Connects to the other end.
    ///
    /// # Errors
    /// The device's and the network's.
    pub async fn connect(control: &mut Control, device: &str, waiting: Waiting) -> Result<Self> {
        let hca = Hca::open(device).await?;
        let server: Gid = control.hear().await?.ok_or("the other end is gone")?.parse()?;
        let path = hca.path_to(server).service_id(SERVICE).await?;
        let connection = Connection::connect(path).busy_poll(busy_poll(waiting)).await?;
        Ok(Self { connection, _hca: hca })
    }

    async fn send(&self) -> Result {
        Ok(self.connection.send_copy(&[0; PING]).await?)
    }

    async fn receive(&self) -> Result {
        self.connection.recv().await?.ok_or("the other end is gone")?;
        Ok(())
    }
}

/// Ping-pongs only.
impl End for Sdk {
    async fn ask(&mut self, task: Task) -> Result {
        for _ in 0..task.count {
            let sent = self.connection.send_copy(&[0; PING]).post().await?;
            self.receive().await?;
            sent.await?;
        }
        Ok(())
    }

    async fn answer(&mut self, task: Task) -> Result {
        for _ in 0..task.count {
            self.receive().await?;
            self.send().await?;
        }
        Ok(())
    }
}
