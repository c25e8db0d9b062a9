//! An echo service: what comes is sent back.
//!
//! ```text
//! cargo run --release --example echo                        both ends in this process, on two software HCAs
//! cargo run --release --example echo -- serve               one end: waits for the other
//! cargo run --release --example echo -- connect 127.0.0.1   the other end
//! ```
//!
//! Between two hosts give each its device: `--device soft:10.0.0.1`. With `--ip` the ends find each other by IP
//! address and port, as programs of librdmacm do (`ucmatose`, `rping`), so either end may be one of those.
#![forbid(unsafe_code)]

use std::error::Error;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};
use examples::chain;
use examples::cm_trace::{self, CmTrace};
use ibcm::{Connection, Gid, Hca, IncomingRequest, Listener, Recv, ServiceId};

type Result<T = ()> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Sends messages to an echo service and checks what comes back. Without a command both ends run in this
/// process.
#[derive(Debug, Clone, Parser)]
struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// The device: soft, soft:ADDRESS[,ADDRESS..]; without it the default one (IBCM_DEVICE)
    #[arg(long, global = true)]
    device: Option<String>,
    /// How many messages to send
    #[arg(long, global = true, default_value_t = 5)]
    count: u32,
    /// Length of each message in bytes
    #[arg(long, global = true, default_value_t = 64)]
    size: usize,
    /// Find each other by IP address and this TCP port space port instead of a service ID
    #[arg(long, global = true, value_name = "PORT", num_args = 0..=1, default_missing_value = "7174")]
    ip: Option<u16>,
    /// The service ID
    #[arg(long, global = true, value_parser = service_id, default_value = "0x1000000000000001")]
    service: ServiceId,
    /// How long connecting may take, in seconds
    #[arg(long, global = true, default_value_t = 10.0)]
    deadline: f64,
    /// Write all packets of the (client's) software HCA to this file, for Wireshark
    #[arg(long, global = true, value_name = "FILE")]
    pcap: Option<PathBuf>,
}

#[derive(Debug, Clone, Subcommand)]
enum Command {
    /// Wait for clients and send back what they send
    Serve {
        /// End when the first client has disconnected
        #[arg(long)]
        once: bool,
    },
    /// Connect to a service
    Connect {
        /// The server's GID; on RoCE its IP address
        address: Gid,
    },
}

fn service_id(text: &str) -> std::result::Result<ServiceId, std::num::ParseIntError> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    }
    .map(ServiceId::new)
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let trace = cm_trace::start();
    let result = match args.command {
        None => both(&args, &trace).await,
        Some(Command::Serve { once }) => serve(&args, &trace, once).await,
        Some(Command::Connect { address }) => connect(&args, &trace, address).await,
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", chain(&*error));
            ExitCode::FAILURE
        }
    }
}

impl Args {
    async fn open(&self, device: Option<&str>) -> Result<Hca> {
        let open = match device.or(self.device.as_deref()) {
            Some(device) => Hca::open(device),
            None => Hca::open_default(),
        };
        Ok(match &self.pcap {
            Some(file) => open.pcap(file).await?,
            None => open.await?,
        })
    }

    /// Room for what the other end sends.
    fn recv(&self) -> Recv {
        Recv::buffers(16, self.size.max(4096))
    }

    async fn listen(&self, hca: &Hca) -> Result<Listener> {
        Ok(match self.ip {
            Some(port) => Listener::bind_ip(([0, 0, 0, 0], port)).device(hca).await?,
            None => Listener::bind(self.service).device(hca).await?,
        })
    }

    async fn dial(&self, hca: &Hca, server: Gid) -> Result<Connection> {
        let deadline = Duration::try_from_secs_f64(self.deadline)?;
        Ok(match self.ip {
            Some(port) => {
                let address = SocketAddr::new(server.to_ip(), port);
                Connection::connect_ip(address).device(hca).recv(self.recv()).deadline(deadline).await?
            }
            None => {
                let path = hca.path_to(server).service_id(self.service).await?;
                Connection::connect(path).recv(self.recv()).deadline(deadline).await?
            }
        })
    }

    fn service(&self) -> String {
        match self.ip {
            Some(port) => format!("port {port}"),
            None => format!("service {}", self.service),
        }
    }
}

/// Both ends in this process.
async fn both(args: &Args, trace: &CmTrace) -> Result {
    let client = args.open(Some(args.device.as_deref().unwrap_or("soft"))).await?;
    let server = match &args.device {
        Some(_) => client.clone(), // one device serves both ends
        None => Hca::open("soft").await?,
    };
    let ends = match args.device {
        Some(_) => vec![(&client, "both ends")],
        None => vec![(&server, "server"), (&client, "client")],
    };
    for (hca, name) in ends {
        trace.name(hca.name(), name);
        trace.name(hca.gid(), name);
        println!("{name}: {} with GID {}", hca.name(), hca.gid());
    }
    let listener = args.listen(&server).await?;
    println!("the server listens on {}, the client connects", args.service());
    let recv = args.recv();
    let serving = tokio::spawn(async move { answer(listener.accept().await?, recv, "server").await });
    exchange(args, &client, server.gid()).await?;
    serving.await??;
    idle(&[&client, &server]).await;
    summary(&client);
    pcap_note(args);
    Ok(())
}

/// The serving end.
async fn serve(args: &Args, trace: &CmTrace, once: bool) -> Result {
    let hca = args.open(None).await?;
    trace.name(hca.name(), "server");
    let listener = args.listen(&hca).await?;
    println!("{} listens on {}", hca.name(), args.service());
    for port in hca.ports() {
        println!("connect to {} (port {}); Ctrl-C ends", port.gid().to_ip(), port.number());
    }
    let mut ctrl_c = std::pin::pin!(tokio::signal::ctrl_c());
    loop {
        let request = tokio::select! {
            request = listener.accept() => request?,
            _ = &mut ctrl_c => break,
        };
        let (peer, recv) = (request.peer(), args.recv());
        let task = tokio::spawn(async move {
            if let Err(error) = answer(request, recv, "server").await {
                println!("server: {}: {}", peer.gid.to_ip(), chain(&error));
            }
        });
        if once {
            task.await?;
            break;
        }
    }
    listener.close().await;
    _ = tokio::time::timeout(Duration::from_secs(5), hca.close()).await;
    summary(&hca);
    pcap_note(args);
    Ok(())
}

/// The connecting end.
async fn connect(args: &Args, trace: &CmTrace, server: Gid) -> Result {
    let hca = args.open(None).await?;
    trace.name(hca.name(), "client");
    println!("{} connects to {} at {}", hca.name(), args.service(), server.to_ip());
    let result = exchange(args, &hca, server).await;
    idle(&[&hca]).await;
    summary(&hca);
    pcap_note(args);
    result
}

/// Sends back what comes, until the client disconnects.
async fn answer(request: IncomingRequest, recv: Recv, name: &str) -> std::result::Result<(), ibcm::Error> {
    let peer = request.peer();
    let conn = request.accept().recv(recv).await?;
    let mut messages = 0u64;
    while let Some(message) = conn.recv().await? {
        conn.send(message.into_buf()).await?;
        messages += 1;
    }
    let peer = peer.gid.to_ip();
    println!("{name}: {messages} messages echoed to {peer}, {}", conn.closed().await);
    Ok(())
}

/// So many exchanges are printed one by one.
const SHOWN: u32 = 10;

/// Sends the messages and checks that they come back.
async fn exchange(args: &Args, hca: &Hca, server: Gid) -> Result {
    let start = Instant::now();
    let conn = args.dial(hca, server).await?;
    println!("client: connected to {} in {:.3} ms", server.to_ip(), ms(start.elapsed()));
    let mut times = Vec::new();
    for n in 1..=args.count {
        let text = format!("message {n} ");
        let message: Vec<u8> = text.bytes().cycle().take(args.size).collect();
        let sent = Instant::now();
        conn.send_copy(&message).await?;
        let echo = conn.recv().await?.ok_or("the server disconnected before the echo")?;
        times.push(sent.elapsed());
        if echo[..] != message[..] {
            return Err(format!("message {n}: what came back differs").into());
        }
        if n <= SHOWN {
            println!(
                "client: message {n}, {} bytes, came back after {:.3} ms",
                args.size,
                ms(sent.elapsed())
            );
        }
    }
    if args.count > SHOWN {
        println!("client: and {} more", args.count - SHOWN);
    }
    let report = conn.disconnect().private_data(b"bye").await;
    times.sort_unstable();
    if let (Some(min), Some(max)) = (times.first(), times.last()) {
        let median = times[times.len() / 2];
        println!(
            "client: {} messages of {} bytes, round trip {:.3} ms at least, {:.3} ms in the middle, {:.3} ms at most",
            times.len(),
            args.size,
            ms(*min),
            ms(median),
            ms(*max)
        );
    }
    println!("client: {report}");
    Ok(())
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Waits for the end of TimeWait, so that the summary shows the whole life of the connection. A peer that is
/// gone without a word is not waited for that long.
async fn idle(hcas: &[&Hca]) {
    for hca in hcas {
        _ = tokio::time::timeout(Duration::from_secs(5), hca.wait_idle()).await;
    }
}

/// What the HCA counted.
fn summary(hca: &Hca) {
    println!("counters of {}:", hca.name());
    for (name, value) in hca.stats().named().filter(|(_, value)| *value > 0) {
        println!("  {name:<24} {value}");
    }
}

fn pcap_note(args: &Args) {
    if let Some(file) = &args.pcap {
        println!("all packets are in {}", file.display());
    }
}
