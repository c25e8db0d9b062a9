//! The SDK: two software HCAs, each on its own loopback address.

use std::io;

use ibcm::{Connection, Hca, Listener, ServiceId, ServicePath};

use super::concurrently;
use super::ends::Ends;

const SERVICE: ServiceId = ServiceId::new(0x1000_0000_0000_0001);

/// A client and a server that accepts whoever comes.
#[derive(Debug)]
pub(crate) struct Pair {
    client: Hca,
    server: Hca,
    path: ServicePath,
}

impl Pair {
    pub(crate) fn open(ends: &Ends) -> Result<Self, Box<ibcm::Error>> {
        let server = ends.on_server(async {
            let server = Hca::open("soft").await?;
            let listener = Listener::bind(SERVICE).device(&server).backlog(2048).await?;
            tokio::spawn(accept(listener));
            Ok::<_, ibcm::Error>(server)
        })?;
        let pair = ends.client.block_on(async {
            let client = Hca::open("soft").await?;
            let path = client.path_to(server.gid()).service_id(SERVICE).await?;
            Ok::<_, ibcm::Error>(Self { client, server, path })
        });
        Ok(pair?)
    }

    pub(crate) async fn run(&self, in_flight: u64, count: u64) {
        let path = self.path.clone();
        concurrently(in_flight, count, move || connect(path.clone())).await;
    }

    /// Closes both ends. Returns what went wrong meanwhile, as counted.
    pub(crate) fn close(&self, ends: &Ends) -> String {
        let names = [
            "established",
            "resent",
            "handshake_timeouts",
            "disconnect_timeouts",
            "stale",
            "refused_requests",
        ];
        let [client, server] = [&self.client, &self.server].map(|hca| {
            let stats = hca.stats();
            let count = |name| format!("{name} {}", stats.get(name).unwrap_or(0));
            names.map(count).join(", ")
        });
        for hca in [&self.client, &self.server] {
            ends.client.block_on(hca.close());
        }
        format!("SDK client: {client}\nSDK server: {server}")
    }
}

async fn connect(path: ServicePath) -> io::Result<()> {
    let conn = Connection::connect(path).await.map_err(ibcm::Error::from)?;
    conn.disconnect().await;
    Ok(())
}

async fn accept(listener: Listener) {
    while let Ok(request) = listener.accept().await {
        tokio::spawn(async move {
            // A request that its peer has withdrawn is the peer's affair.
            if let Ok(conn) = request.accept().await {
                while let Ok(Some(_)) = conn.recv().await {}
            }
        });
    }
}
