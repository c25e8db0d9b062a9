//! Connections between the HCAs of a subnet, a message each way on each, and their end; each case in a process of its own.

use std::time::Instant;

use benches::{Options, Table, resident_bytes};
use futures::future::{join_all, try_join_all};
use futures::{StreamExt, TryStreamExt, stream};
use ibcm::{Connection, Gid, Hca, Listener, Recv, ServiceId, SharedRecv};

use crate::net::{Shape, counter, hca_name};
use crate::{Result, alone, runtime};

const SID: ServiceId = ServiceId::new(0x1000_0000_0000_0001);
/// Connects of an HCA under way at once.
const IN_FLIGHT: usize = 16;
/// Receives of an HCA, for all its connections, and their bytes.
const RECEIVES: usize = 256;
const LEN: usize = 64;

/// Who connects to whom: each HCA to so many behind it, so that no pair has two.
#[derive(Debug, Clone, Copy)]
enum Pattern {
    All,
    Next(usize),
}

impl Pattern {
    fn peers(self, hca: usize, hcas: usize) -> Vec<usize> {
        match self {
            Self::All => (hca + 1..hcas).collect(),
            Self::Next(count) => (1..=count).map(|step| (hca + step) % hcas).collect(),
        }
    }
}

/// A shape, whether it has a manager, and who connects to whom.
type Case = (Shape, bool, Pattern);

const QUICK: [Case; 1] = [(Shape::SMALL, true, Pattern::All)];
const CASES: [Case; 4] = [
    (Shape::HUNDRED, false, Pattern::All),
    (Shape::HUNDRED, true, Pattern::All),
    (Shape::THOUSAND, false, Pattern::Next(10)),
    (Shape::THOUSAND, true, Pattern::Next(10)),
];

fn name((shape, managed, pattern): Case) -> String {
    let pattern = match pattern {
        Pattern::All => "all pairs".into(),
        Pattern::Next(count) => format!("each to {count}"),
    };
    format!("{}, {pattern}{}", shape.name(), if managed { ", managed" } else { "" })
}

pub(crate) fn run(options: &Options) -> Result {
    let cases: &[Case] = if options.quick { &QUICK } else { &CASES };
    let mut table = Table::new([
        "connections, a message each way",
        "connections",
        "s",
        "s of its time",
        "MADs",
        "packets",
        "connections/s",
        "KiB each",
    ]);
    for name in cases.iter().map(|case| name(*case)).filter(|name| options.selects(name)) {
        table.row(alone::row::<8>(&name)?);
    }
    println!("{table}");
    Ok(())
}

/// The case of this name, if it is one of these, in this process.
pub(crate) fn case(wanted: &str) -> Result<bool> {
    let Some(case) = QUICK.into_iter().chain(CASES).find(|case| name(*case) == wanted) else {
        return Ok(false);
    };
    alone::say(&connected(case)?);
    Ok(true)
}

fn connected((shape, managed, pattern): Case) -> Result<[String; 8]> {
    runtime()?.block_on(async {
        let build = shape.build();
        let net = if managed { build.managed().await? } else { build.await? };
        let hcas = (0..shape.hcas).map(|hca| Hca::open(net.device(&hca_name(hca))).into_future());
        let hcas = try_join_all(hcas).await?;
        let receives = try_join_all(hcas.iter().map(|hca| hca.shared_recv(RECEIVES, LEN))).await?;
        let mut serving = Vec::new();
        for (hca, receives) in hcas.iter().zip(&receives) {
            let listener = Listener::bind(SID).device(hca).backlog(1024).await?;
            serving.push(tokio::spawn(serve(listener, receives.clone())));
        }
        let gids: Vec<Gid> = hcas.iter().map(Hca::gid).collect();
        let (sent, memory) =
            (counter(&net, "sent"), resident_bytes().ok_or("this system does not tell what is resident")?);
        let (real, its) = (Instant::now(), tokio::time::Instant::now());
        let conns = hcas.iter().zip(&receives).enumerate().map(|(at, (hca, receives))| {
            let peers: Vec<Gid> = pattern.peers(at, hcas.len()).into_iter().map(|peer| gids[peer]).collect();
            let connect = move |peer| connect(hca, receives, peer);
            stream::iter(peers).map(connect).buffer_unordered(IN_FLIGHT).try_collect::<Vec<_>>()
        });
        let conns: Vec<Vec<Connection>> = try_join_all(conns).await?;
        let (real, its) = (real.elapsed().as_secs_f64(), its.elapsed().as_secs_f64());
        let memory = resident_bytes().unwrap_or(0).saturating_sub(memory);
        let count = conns.iter().map(Vec::len).sum::<usize>();
        let packets = counter(&net, "sent") - sent;
        let mads: u64 = hcas.iter().map(|hca| hca.stats().get("mads_sent").unwrap_or(0)).sum();
        join_all(conns.iter().flatten().map(Connection::disconnect)).await;
        drop((conns, receives));
        serving.into_iter().for_each(|task| task.abort());
        net.quiet().await?;
        Ok([
            name((shape, managed, pattern)),
            count.to_string(),
            format!("{real:.2}"),
            format!("{its:.3}"),
            mads.to_string(),
            packets.to_string(),
            format!("{:.0}", count as f64 / real),
            format!("{:.1}", memory as f64 / 1024.0 / count as f64),
        ])
    })
}

/// A connection that has carried a message each way.
async fn connect(
    hca: &Hca,
    receives: &SharedRecv,
    peer: Gid,
) -> std::result::Result<Connection, ibcm::Error> {
    let path = hca.path_to(peer).service_id(SID).await?;
    let conn = Connection::connect(path).recv(Recv::shared(receives)).await?;
    conn.send_copy(b"hello").await?;
    conn.recv().await?.ok_or(ibcm::RecvError::Closed)?;
    Ok(conn)
}

/// Accepts, and sends back what comes.
async fn serve(listener: Listener, receives: SharedRecv) {
    while let Ok(request) = listener.accept().await {
        let accept = request.accept().recv(Recv::shared(&receives));
        tokio::spawn(async move {
            let conn = accept.await?;
            while let Some(message) = conn.recv().await? {
                conn.send_copy(&message).await?;
            }
            Ok::<_, ibcm::Error>(())
        });
    }
}
