//! Our side of the guest's cases: a client and a server over the public API, made for network namespace b. Each line it
//! prints begins with a word that the scripts wait for: open, listening, established, received, closed, rejected, lost.
#![forbid(unsafe_code)]
#![allow(unreachable_pub, reason = "a test has no users")]

mod peer {
    pub mod rmpp;
    pub mod verbs;
}

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser};
use ibcm::{
    ConnectError, Connection, Hca, How, Listener, OpCause, OpError, PathError, PrivateData, RejReason,
    Reject, TimeCode,
};
use tokio::task::JoinSet;
use tokio::time::Instant;

type Error = Box<dyn std::error::Error + Send + Sync>;

const DEVICE: &str = "soft:10.77.0.2,fd77::2";

/// Longer than the default: over a bad wire the kernel needs several of its 4.3 s, and ucmatose confirms a disconnect only
/// when it has talked on all of its connections.
const DEADLINE: Duration = Duration::from_secs(60);

#[derive(Debug, Parser)]
enum Act {
    /// Connects and talks on every connection.
    Call {
        #[command(flatten)]
        talk: Talk,
        /// Response timeout code of the REQ: 4.096 us times 2 to the power of it.
        #[arg(long)]
        response_timeout: Option<u8>,
        /// Talks when there is something to read here.
        #[arg(long)]
        wait_for: Option<PathBuf>,
        /// Before it talks, asks for an alternate path to this address, which nobody answers.
        #[arg(long)]
        spare: Option<IpAddr>,
    },
    /// Accepts connections and talks on each.
    Serve {
        #[command(flatten)]
        talk: Talk,
    },
    /// Rejects one request with a text as private data.
    Reject { ip: IpAddr, port: u16, text: String },
    /// Opens the device and serves nothing.
    Idle,
    /// Sends and receives tables of several MADs.
    Rmpp(peer::rmpp::Rmpp),
    /// Brings up a queue pair without a connection manager and uses it.
    Verbs(peer::verbs::Verbs),
}

/// What is said on a connection: messages from one side, then as many from the other.
#[derive(Debug, Clone, Copy, Args)]
struct Talk {
    ip: IpAddr,
    port: u16,
    #[arg(long, default_value_t = 1)]
    connections: usize,
    /// Messages each way on each connection.
    #[arg(long, default_value_t = 0)]
    messages: usize,
    /// Bytes in each message.
    #[arg(long, default_value_t = 0)]
    size: usize,
    /// We send first; else the peer does.
    #[arg(long)]
    first: bool,
    /// The peer sends back what we sent first.
    #[arg(long)]
    echo: bool,
    /// We send nothing at all.
    #[arg(long)]
    silent: bool,
    /// Milliseconds after which we ask whether the peer is there. We wait until we have asked three times.
    #[arg(long)]
    keepalive: Option<u64>,
    /// The peer is the one to disconnect; else we do, and it has to confirm.
    #[arg(long)]
    until_closed: bool,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    let result = match Act::parse() {
        Act::Call { talk, response_timeout, wait_for, spare } => {
            call(talk, response_timeout, wait_for, spare).await
        }
        Act::Serve { talk } => serve(talk).await,
        Act::Reject { ip, port, text } => reject(SocketAddr::new(ip, port), &text).await,
        Act::Idle => idle().await,
        Act::Rmpp(rmpp) => rmpp.run().await,
        Act::Verbs(verbs) => verbs.run().await,
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let mut cause = error.source();
            println!("lost {error}");
            while let Some(error) = cause {
                println!("  because {error}");
                cause = error.source();
            }
            ExitCode::FAILURE
        }
    }
}

async fn call(
    talk: Talk,
    response_timeout: Option<u8>,
    wait_for: Option<PathBuf>,
    spare: Option<IpAddr>,
) -> Result<(), Error> {
    let hca = Hca::open(DEVICE).await?;
    let mut connecting = JoinSet::new();
    for _ in 0..talk.connections {
        let connect = Connection::connect_ip(SocketAddr::new(talk.ip, talk.port));
        let mut connect = connect.device(&hca).deadline(DEADLINE);
        if let Some(code) = response_timeout {
            let code = TimeCode::new(code).ok_or("a time code has 5 bits")?;
            connect = connect.response_timeout(code.duration());
        }
        if let Some(period) = talk.keepalive {
            connect = connect.keepalive(Duration::from_millis(period));
        }
        connecting.spawn(connect);
    }
    let mut connections = Vec::new();
    while let Some(result) = connecting.join_next().await {
        match result? {
            Ok(connection) => connections.push(connection),
            Err(ConnectError::Rejected(no)) => {
                println!("rejected {} {}", no.reason.0, String::from_utf8_lossy(no.private_data.trimmed()));
                return Err("rejected".into());
            }
            Err(other) => return Err(other.into()),
        }
    }
    println!("established {}", connections.len());
    if let Some(file) = wait_for {
        tokio::task::spawn_blocking(|| std::fs::read(file)).await??;
    }
    if let Some(spare) = spare {
        for connection in &connections {
            unanswered(&hca, connection, spare).await?;
        }
    }
    let mut talking = JoinSet::new();
    for connection in connections {
        talking.spawn(talk.on(connection));
    }
    all(talking).await
}

/// How long a LAP is waited for: 1.07 s for the peer to answer, and two life times of a packet.
const LAP_WAIT: Duration = Duration::from_micros(1_610_612);

/// How far apart the looks at the clock are that tell whether this thread was late.
const LOOK: Duration = Duration::from_millis(10);

/// A LAP that is sent as often as the REQ allowed, each time for 1.6 s, and never answered. The peer is not asked again.
async fn unanswered(hca: &Hca, connection: &Connection, spare: IpAddr) -> Result<(), Error> {
    let spare = hca.path_to(spare.into()).await?;
    match lateness_of(connection.load_alternate_path(&spare)).await {
        (Err(PathError::Unanswered { sent, waited, busy: false }), late) => {
            let (least, most) = (LAP_WAIT * sent.into(), (LAP_WAIT + 3 * LOOK) * u32::from(sent) + late);
            if sent < 2 || waited < least || waited > most {
                return Err(format!("{sent} LAPs in {waited:?}, the machine was late by {late:?}").into());
            }
            println!("unanswered {sent}");
        }
        (other, _) => return Err(format!("a LAP to the kernel: {other:?}").into()),
    }
    match connection.load_alternate_path(&spare).await {
        Err(PathError::PeerUnable) => Ok(()),
        other => Err(format!("a second LAP: {other:?}").into()),
    }
}

/// What comes of `wait`, and how late the machine has let this thread be meanwhile. Whatever a timer of this thread was late by,
/// if more than two looks, is in it: there is always a look that was late as well.
async fn lateness_of<T>(wait: impl Future<Output = T>) -> (T, Duration) {
    let (mut wait, mut late) = (pin!(wait), Duration::ZERO);
    loop {
        let look = Instant::now() + LOOK;
        let result = tokio::select! {
            result = &mut wait => Some(result),
            () = tokio::time::sleep_until(look) => None,
        };
        late += Some(look.elapsed()).filter(|late| *late > LOOK).unwrap_or_default();
        if let Some(result) = result {
            return (result, late);
        }
    }
}

async fn serve(talk: Talk) -> Result<(), Error> {
    let hca = Hca::open(DEVICE).await?;
    let listener = Listener::bind_ip(SocketAddr::new(talk.ip, talk.port)).device(&hca).await?;
    println!("listening");
    let mut talking = JoinSet::new();
    for _ in 0..talk.connections {
        let request = listener.accept().await?;
        talking.spawn(async move {
            let mut accept = request.accept().deadline(DEADLINE);
            if let Some(period) = talk.keepalive {
                accept = accept.keepalive(Duration::from_millis(period));
            }
            let connection = accept.await?;
            println!("established");
            talk.on(connection).await
        });
    }
    all(talking).await
}

async fn all(mut talking: JoinSet<Result<How, Error>>) -> Result<(), Error> {
    while let Some(closed) = talking.join_next().await {
        println!("closed: {}", closed??);
    }
    Ok(())
}

impl Talk {
    async fn on(self, connection: Connection) -> Result<How, Error> {
        let message: Vec<u8> = (0..self.size).map(|at| at as u8).collect();
        if self.first && !self.silent {
            self.send(&connection, &message).await?;
        }
        for _ in 0..self.messages {
            let answer = connection.recv().await?.ok_or("closed before its messages")?;
            if answer.len() != message.len() || self.echo && answer[..] != message[..] {
                return Err(format!("a message of {} bytes: {:?}", answer.len(), &answer[..]).into());
            }
        }
        println!("received {}", self.messages);
        if self.keepalive.is_some() {
            while connection.stats().keepalives_sent < 3 {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            println!("kept alive");
        }
        if !self.first && !self.silent {
            match self.send(&connection, &message).await {
                // Its acknowledgement got lost, then the peer disconnected. Whether it had all, its own status tells.
                Err(OpError { cause: OpCause::Closed, .. }) if self.until_closed => {
                    println!("unacknowledged");
                }
                other => other?,
            }
        }
        if self.until_closed {
            return match connection.recv().await? {
                None => Ok(How::ByPeer),
                Some(_) => Err("more messages than agreed".into()),
            };
        }
        // Linux answers a DREQ only when its program disconnects, too, and every DREQ that is lost costs 4.3 s.
        match connection.disconnect().deadline(Duration::from_secs(60)).await.how {
            How::Confirmed => Ok(How::Confirmed),
            other => Err(format!("disconnected: {other}").into()),
        }
    }

    async fn send(&self, connection: &Connection, message: &[u8]) -> Result<(), OpError> {
        for _ in 0..self.messages {
            connection.send_copy(message).await?;
        }
        Ok(())
    }
}

async fn reject(address: SocketAddr, text: &str) -> Result<(), Error> {
    let hca = Hca::open(DEVICE).await?;
    let listener = Listener::bind_ip(address).device(&hca).await?;
    println!("listening");
    let request = listener.accept().await?;
    request.reject(Reject::new(RejReason::CONSUMER).private_data(PrivateData::new(text.as_bytes())?));
    hca.close().await;
    Ok(())
}

async fn idle() -> Result<(), Error> {
    let _hca = Hca::open(DEVICE).await?;
    println!("open");
    std::future::pending().await
}
