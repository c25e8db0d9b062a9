//! The subnet administrator: queries for paths, nodes, groups, services.
//!
//! [`Hca::sa`](crate::Hca::sa) and [`Port::sa`](crate::Port::sa) give a [`Client`]. On RoCE there is no SA, and every request fails at
//! once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use ibdev::DeviceEvent;
use ibwire::Gid;
use rand::RngExt;

use crate::error::QueryError;
use crate::path::PathSource;
use crate::shared::Shared;
use crate::sync::lock;

pub use ibsa::record::*;
pub use ibsa::{
    Answer, CacheConfig, Client, Config, Effort, FoundPath, Group, Incomplete, Join, Membership, Notice,
    Notices, PathQuery, QueryError as SaError, Register, Registration, Request, SaStatus, Stats, Table, Trap,
};

/// The clients of an HCA, one for each port that was asked for.
#[derive(Debug, Default)]
pub(crate) struct Clients(Mutex<BTreeMap<u8, Client>>);

impl Clients {
    /// The client of a port.
    pub(crate) fn of(&self, shared: &Shared, port: u8) -> Client {
        let mut clients = lock(&self.0);
        if let Some(client) = clients.get(&port) {
            return client.clone();
        }
        let mut engine = shared.engine();
        let Ok(device) = engine.device() else { return Client::closed(port) };
        let client = Client::new(device, port, Config::default(), engine.draw_seed());
        drop(engine);
        clients.insert(port, client.clone());
        client
    }

    /// Tells the clients what the device reported.
    pub(crate) fn device_event(&self, event: DeviceEvent) {
        let clients: Vec<_> = lock(&self.0).values().cloned().collect();
        clients.iter().for_each(|client| client.device_event(event));
    }

    /// All of them, to be ended, so that they let the device go.
    pub(crate) fn take(&self) -> Vec<Client> {
        std::mem::take(&mut *lock(&self.0)).into_values().collect()
    }
}

/// Asks the SA of a port for a path.
pub(crate) async fn path(
    shared: &Arc<Shared>,
    port: u8,
    sgid: Option<Gid>,
    dgid: Gid,
    constrain: impl FnOnce(PathQuery) -> PathQuery,
) -> Result<(PathRecord, PathSource), QueryError> {
    let query = constrain(shared.sa.of(shared, port).path(dgid));
    let query = match sgid {
        Some(sgid) => query.sgid(sgid),
        None => query,
    };
    let found = query.await;
    let found = found.map(|path| match path.source() {
        ibsa::PathSource::Cache { age } => (*path, PathSource::Cache { age }),
        _ => (*path, PathSource::Sa),
    });
    found.map_err(|error| failed(error, dgid))
}

/// What the SA's answer means for who wants to go there.
pub(crate) fn failed(error: SaError, dgid: Gid) -> QueryError {
    match error {
        SaError::Status(SaStatus::NO_RECORDS) => QueryError::NoPath { dgid },
        SaError::Device(error) => QueryError::Device(error),
        SaError::Closed => QueryError::Closed,
        error => QueryError::Sa(Box::new(error)),
    }
}

impl crate::shared::Engine {
    fn draw_seed(&mut self) -> [u8; 32] {
        self.rng_mut().random()
    }
}
