//! A replica: it stores what it is told, and says so.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ibcm::sim::Subnet;
use ibcm::{Connection, Hca, Listener, ServiceId};
use tokio::task::JoinSet;

pub const SID: ServiceId = ServiceId::new(0x1000_0000_0000_0001);
/// How often both ends look whether the other one is there.
pub const KEEPALIVE: Duration = Duration::from_secs(1);

/// The register of a replica, which outlives its HCA as a disk does.
#[derive(Debug, Clone, Default)]
pub struct Register(Arc<Mutex<Contents>>);

#[derive(Debug, Default)]
struct Contents {
    values: BTreeSet<u32>,
    /// What should not have been heard.
    wrong: Vec<String>,
}

impl Register {
    fn with<R>(&self, f: impl FnOnce(&mut Contents) -> R) -> R {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn has(&self, value: u32) -> bool {
        self.with(|contents| contents.values.contains(&value))
    }

    pub fn wrong(&self) -> Vec<String> {
        self.with(|contents| contents.wrong.clone())
    }
}

/// How a value travels: of another length each time, some of them several packets long, every byte told by the value and whom
/// it is for.
pub fn message(value: u32, replica: u8) -> Vec<u8> {
    let len = (value as usize * 977 + usize::from(replica) * 331) % 3000;
    let filler = (0..len).map(|at| (at as u32 ^ value ^ u32::from(replica)) as u8);
    value.to_be_bytes().into_iter().chain([replica]).chain(filler).collect()
}

/// Serves on the HCA of that name as long as it is there, and again on the one that takes its place.
pub async fn replica(net: Subnet, name: &'static str, number: u8, register: Register) {
    loop {
        _ = serve(&net, name, number, &register).await; // the HCA is gone
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn serve(net: &Subnet, name: &str, number: u8, register: &Register) -> Result<(), ibcm::Error> {
    let hca = Hca::open(net.device(name)).await?;
    let listener = Listener::bind(SID).device(&hca).await?;
    let mut serving = JoinSet::new();
    loop {
        let request = listener.accept().await?;
        let register = register.clone();
        serving.spawn(async move {
            let conn = request.accept().keepalive(KEEPALIVE).await?;
            store(&conn, number, &register).await
        });
        while serving.try_join_next().is_some() {} // who came before and is gone
    }
}

/// Stores what comes over a connection, then acknowledges it.
async fn store(conn: &Connection, number: u8, register: &Register) -> Result<(), ibcm::Error> {
    let mut last = None;
    while let Some(heard) = conn.recv().await? {
        let value = heard.first_chunk().map(|value| u32::from_be_bytes(*value));
        register.with(|contents| match value {
            Some(value) if last < Some(value) && heard[..] == message(value, number) => {
                contents.values.insert(value);
            }
            _ => contents
                .wrong
                .push(format!("replica {number} hears {value:?} after {last:?}: {:?}", &heard[..])),
        });
        last = value;
        conn.send_copy(&heard[..5]).await?;
    }
    Ok(())
}
