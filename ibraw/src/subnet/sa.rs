//! Clients of the SA, one for each port that has asked it. They live where the subnet does, whoever asked first.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use ibdev::DeviceEvent;
use ibsa::{Client, Config, QueryError};
use ibsoft::{Followed, SoftDevice};
use tokio::sync::{OnceCell, oneshot};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{SubnetPort, not_asked};
use crate::RawError;

/// For the SA a port is in a group once, so all sockets of the process must join by the same client.
static CLIENTS: Mutex<Vec<Weak<Sa>>> = Mutex::new(Vec::new());

/// A client, and what it runs by.
#[derive(Debug)]
pub(super) struct Sa {
    device: SoftDevice,
    client: Client,
    /// Once it does.
    runs: OnceCell<DropGuard>,
}

/// The client of a port, which lives as long as a link does that has asked for it.
pub(super) async fn client(port: &SubnetPort) -> Result<Client, RawError> {
    let sa = of(port)?;
    sa.runs.get_or_try_init(|| sa.run()).await?;
    Ok(sa.client.clone())
}

fn of(port: &SubnetPort) -> Result<Arc<Sa>, RawError> {
    let mut own = port.sa.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(sa) = &*own {
        return Ok(sa.clone());
    }
    let mut clients = CLIENTS.lock().unwrap_or_else(PoisonError::into_inner);
    clients.retain(|sa| sa.strong_count() > 0);
    let is_of_port = |sa: &Arc<Sa>| sa.device.is_same(&port.device) && sa.client.port() == port.port;
    let sa = match clients.iter().filter_map(Weak::upgrade).find(is_of_port) {
        Some(sa) => sa,
        None => {
            let sa = Arc::new(Sa::new(port)?);
            clients.push(Arc::downgrade(&sa));
            sa
        }
    };
    Ok(own.insert(sa).clone())
}

impl Sa {
    fn new(port: &SubnetPort) -> Result<Self, RawError> {
        let device = port.device.clone();
        let seed = device.draw_seed().ok_or(RawError::Unsupported("a group by an SA"))?;
        let client = Client::new(Arc::new(device.clone()), port.port, Config::default(), seed);
        Ok(Self { device, client, runs: OnceCell::new() })
    }

    /// Opens the client, and tells it of events of the device until what is returned is dropped.
    async fn run(&self) -> Result<DropGuard, RawError> {
        let (mut events, client) = (self.device.follow_events(), self.client.clone());
        let (opened, opening) = oneshot::channel();
        let told = async move {
            let result = client.open().await;
            let is_refused = result.is_err();
            _ = opened.send(result); // who does not wait for it has ended this, too
            if is_refused {
                return;
            }
            while let Some(followed) = events.next().await {
                client.device_event(match followed {
                    Followed::Event(event) => event,
                    // Whatever was missed: groups are joined again, which harms nothing.
                    Followed::Missed(_) => DeviceEvent::ClientReregister(client.port()),
                });
            }
        };
        let end = CancellationToken::new();
        let ends = end.clone();
        self.device.spawn(async move { _ = ends.run_until_cancelled(told).await });
        let end = end.drop_guard();
        let result = opening.await.unwrap_or(Err(QueryError::Closed));
        result.map_err(|error| not_asked(error, RawError::LinkGone))?;
        Ok(end)
    }
}
