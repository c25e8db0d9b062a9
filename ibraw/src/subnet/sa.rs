//! Clients of the SA, one for each port that has joined a group by it.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use ibdev::DeviceEvent;
use ibsa::{Client, Config};
use ibsoft::SoftDevice;
use tokio::sync::broadcast::error::RecvError;
use tokio_util::task::AbortOnDropHandle;

use super::SubnetPort;
use crate::RawError;

/// For the SA a port is in a group once, so all sockets of the process must join by the same client.
static CLIENTS: Mutex<Vec<Weak<Sa>>> = Mutex::new(Vec::new());

/// A client, and what tells it of events of the device.
#[derive(Debug)]
pub(super) struct Sa {
    device: SoftDevice,
    client: Client,
    _news: AbortOnDropHandle<()>,
}

/// The client of a port, which lives as long as a link does that has asked for it.
pub(super) fn client(port: &SubnetPort) -> Result<Client, RawError> {
    let mut own = port.sa.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(sa) = &*own {
        return Ok(sa.client.clone());
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
    Ok(own.insert(sa).client.clone())
}

impl Sa {
    fn new(port: &SubnetPort) -> Result<Self, RawError> {
        let (device, number) = (port.device.clone(), port.port);
        let seed = device.draw_seed().ok_or(RawError::Unsupported("a group by an SA"))?;
        let client = Client::new(Arc::new(device.clone()), number, Config::default(), seed);
        let (mut events, told) = (device.follow_events(), client.clone());
        let news = async move {
            loop {
                match events.recv().await {
                    Ok(event) => told.device_event(event),
                    // Whatever was missed: groups are joined again, which harms nothing.
                    Err(RecvError::Lagged(_)) => told.device_event(DeviceEvent::ClientReregister(number)),
                    Err(RecvError::Closed) => return,
                }
            }
        };
        Ok(Self { device, client, _news: AbortOnDropHandle::new(tokio::spawn(news)) })
    }
}
