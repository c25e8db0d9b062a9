//! Speaks the protocol of librdmacm's `rping`, as its server and as its client: pings by RDMA read and write.
//!
//! ```text
//! cargo run --release --example rping -- serve 127.0.0.1 --device soft:127.0.0.1
//! cargo run --release --example rping -- connect 127.0.0.1 --device soft:127.0.0.2 --count 100
//! ```
//!
//! Either end may be Linux's own: `rping -s -a ADDR -v -V`, or `rping -c -a ADDR -C 100 -v -V`. A ping: the client names
//! memory with the data, the server reads it; the client names other memory, the server writes the data there; the
//! client compares. Between the steps the server sends 16 bytes whose content means nothing.
#![forbid(unsafe_code)]

use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};
use examples::chain;
use ibcm::{Access, Connection, Hca, IncomingRequest, Listener, Message, RemoteRegion};

type Result<T = ()> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Pings by RDMA read and write, as rping does.
#[derive(Debug, Clone, Parser)]
struct Args {
    #[command(subcommand)]
    command: Command,
    /// The device: soft, soft:ADDRESS[,ADDRESS..]; without it the default one (IBCM_DEVICE)
    #[arg(long, global = true)]
    device: Option<String>,
    /// Print the data of each ping
    #[arg(long, short, global = true)]
    verbose: bool,
}

#[derive(Debug, Clone, Subcommand)]
enum Command {
    /// Wait for clients: rping -c ADDR
    Serve {
        /// IP address to listen on, with a port if it is not 7174; 0.0.0.0 is any
        #[arg(value_parser = address)]
        address: SocketAddr,
        /// Serve one client after the other instead of ending with the first
        #[arg(long)]
        persistent: bool,
        /// Longest ping that is taken, in bytes
        #[arg(long, default_value_t = 65_536, value_parser = clap::value_parser!(u32).range(MIN..=MAX))]
        size: u32,
    },
    /// Ping a server: rping -s ADDR
    Connect {
        /// The server's IP address, with a port if it is not 7174
        #[arg(value_parser = address)]
        address: SocketAddr,
        /// How many pings
        #[arg(long, short, default_value_t = 10)]
        count: u32,
        /// Length of each in bytes
        #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(MIN..=MAX))]
        size: u32,
        /// How long connecting may take, in seconds
        #[arg(long, default_value_t = 10.0)]
        deadline: f64,
    },
}

/// Room for the number of the ping.
const MIN: i64 = 32;
/// The longest ping of rping.
const MAX: i64 = 65_536;
const PORT: u16 = 7174;

fn address(text: &str) -> std::result::Result<SocketAddr, std::net::AddrParseError> {
    text.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, PORT)).or_else(|_| text.parse())
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Args::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", chain(&*error));
            ExitCode::FAILURE
        }
    }
}

async fn run(args: Args) -> Result {
    let hca = match &args.device {
        Some(device) => Hca::open(device.as_str()).await?,
        None => Hca::open_default().await?,
    };
    let result = tokio::select! {
        result = act(&hca, args) => result,
        _ = tokio::signal::ctrl_c() => Ok(()),
    };
    // So that the other end is told, however it went.
    _ = tokio::time::timeout(Duration::from_secs(5), hca.close()).await;
    result
}

async fn act(hca: &Hca, args: Args) -> Result {
    match args.command {
        Command::Serve { address, persistent, size } => {
            let listener = Listener::bind_ip(address).device(hca).await?;
            println!("listening on {address}");
            loop {
                let request = listener.accept().await?;
                let served = serve(hca, request, size as usize, args.verbose).await;
                match served {
                    Err(error) if persistent => println!("server: {}", chain(&*error)),
                    served if !persistent => {
                        served?;
                        break;
                    }
                    _ => {}
                }
            }
            listener.close().await;
        }
        Command::Connect { address, count, size, deadline } => {
            let deadline = Duration::try_from_secs_f64(deadline)?;
            let conn = Connection::connect_ip(address).device(hca).deadline(deadline).await?;
            ping(hca, &conn, count, size as usize, args.verbose).await?;
            println!("client: {}", conn.disconnect().await);
        }
    }
    Ok(())
}

/// Length of what names memory, and of the server's answers.
const ADVERT: usize = 16;

/// Address, key and length, each big-endian.
fn advert(region: RemoteRegion) -> [u8; ADVERT] {
    let mut bytes = [0; ADVERT];
    bytes[..8].copy_from_slice(&region.addr().to_be_bytes());
    bytes[8..12].copy_from_slice(&region.rkey().0.to_be_bytes());
    bytes[12..].copy_from_slice(&(region.len() as u32).to_be_bytes());
    bytes
}

fn parse(message: &Message) -> Result<RemoteRegion> {
    let wrong = || format!("{} bytes that name memory, not {ADVERT}", message.len());
    let bytes: [u8; ADVERT] = message[..].try_into().map_err(|_| wrong())?;
    let [a, b, c, d, e, f, g, h, key @ .., l0, l1, l2, l3] = bytes;
    let addr = u64::from_be_bytes([a, b, c, d, e, f, g, h]);
    Ok(RemoteRegion::new(addr, u32::from_be_bytes(key), u32::from_be_bytes([l0, l1, l2, l3]) as usize))
}

/// The data of ping `n`, as rping makes it: text, then letters that begin one further each time, then a zero.
fn pattern(n: u32, size: usize) -> Vec<u8> {
    let mut data = format!("rdma-ping-{n}: ").into_bytes();
    let letters = (b'A'..=b'z').cycle().skip(n as usize % usize::from(b'z' - b'A' + 1));
    data.extend(letters.take(size - data.len()));
    data[size - 1] = 0;
    data
}

fn text(data: &[u8]) -> String {
    String::from_utf8_lossy(data.strip_suffix(&[0]).unwrap_or(data)).into_owned()
}

/// Serves one client until it leaves.
async fn serve(hca: &Hca, request: IncomingRequest, longest: usize, verbose: bool) -> Result {
    let (conn, mut data) = (request.accept().await?, hca.alloc(longest).await?);
    let mut pings = 0;
    while let Some(source) = conn.recv().await? {
        data = conn.read(data, parse(&source)?).await?;
        drop(source);
        if verbose {
            println!("server: ping data: {}", text(&data));
        }
        if data[..] != pattern(pings, data.len().max(MIN as usize)) {
            return Err(format!("ping {pings} is not what rping sends: {}", text(&data)).into());
        }
        conn.send_copy(&[0; ADVERT]).await?; // go ahead
        let sink = conn.recv().await?.ok_or("the client left between read and write")?;
        data = conn.write(data, parse(&sink)?).await?;
        conn.send_copy(&[0; ADVERT]).await?; // it is there
        pings += 1;
    }
    println!("server: {pings} pings of {}, {}", conn.peer().gid.to_ip(), conn.closed().await);
    Ok(())
}

/// Pings, and compares what comes back.
async fn ping(hca: &Hca, conn: &Connection, count: u32, size: usize, verbose: bool) -> Result {
    let source = hca.expose(size, Access::REMOTE_READ).await?;
    let sink = hca.expose(size, Access::REMOTE_WRITE).await?;
    let (mut back, mut times) = (vec![0; size], Vec::new());
    for n in 0..count {
        let data = pattern(n, size);
        source.copy_from(0, &data)?;
        sink.copy_from(0, &vec![0; size])?;
        let started = Instant::now();
        for region in [&source, &sink] {
            conn.send_copy(&advert(region.remote())).await?;
            conn.recv().await?.ok_or("the server left before it was done")?;
        }
        times.push(started.elapsed());
        sink.copy_to(0, &mut back)?;
        if back != data {
            return Err(format!("ping {n}: what came back differs: {}", text(&back)).into());
        }
        if verbose {
            println!("client: ping data: {}", text(&back));
        }
    }
    times.sort_unstable();
    if let Some(median) = times.get(times.len() / 2) {
        println!(
            "client: {count} pings of {size} bytes verified, {:.3} ms in the middle",
            median.as_secs_f64() * 1e3
        );
    }
    Ok(())
}
