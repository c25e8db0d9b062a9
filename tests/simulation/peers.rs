//! Programs that ask for each other, at random moments on a bad network: whoever meets is one connection, and nobody waits
//! longer than it wanted to.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use futures::future::join_all;
use ibcm::sim::Subnet;
use ibcm::{CommId, ConnectError, Connection, Hca, IncomingRequest, Listener, RejReason, Role, ServiceId};
use rand::rngs::ChaCha8Rng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::time::{Instant, sleep, timeout};

use super::plan::GiveUp;
use super::world::{Error, SLACK, text, unless};

const HOSTS: [&str; 2] = ["one", "other"];
const SERVICES: [ServiceId; 2] =
    [ServiceId::new(0x1000_0000_0000_0003), ServiceId::new(0x1000_0000_0000_0004)];

/// One call of `connect_peer`.
#[derive(Debug)]
struct Call {
    at: Duration,
    from: usize,
    to: usize,
    service: ServiceId,
    deadline: Duration,
    gives_up: Option<GiveUp>,
    /// How long its connection lives.
    lives: Duration,
    end: End,
}

#[derive(Debug, Clone, Copy)]
enum End {
    Disconnect,
    Drop,
    /// Waits for the peer, for some time.
    Wait,
}

/// What somebody else does who listens for one of the services.
#[derive(Debug, Clone, Copy)]
enum Listens {
    Accept,
    Reject,
    Drop,
    Ignore,
}

/// What became of calls.
#[derive(Debug, Default, Clone, Copy)]
pub struct Outcomes {
    pub met: u32,
    pub listener: u32,
    pub gave_up: u32,
    pub unreachable: u32,
    pub rejected: u32,
}

/// A connection as one side knows it.
#[derive(Debug)]
struct Made {
    host: usize,
    role: Role,
    local: Option<ibcm::Qpn>,
    remote: ibcm::Qpn,
    remote_id: CommId,
    /// Which call the peer says that it is.
    peer: Option<usize>,
}

fn draw(rng: &mut ChaCha8Rng) -> Vec<Call> {
    let ms = Duration::from_millis;
    let calls = 2 * rng.random_range(1..=4);
    let mut all = Vec::new();
    for n in 0..calls {
        let from = n % 2;
        let mostly_short = if rng.random_bool(0.7) { 200 } else { 6_000 };
        all.push(Call {
            at: ms(rng.random_range(0..mostly_short)),
            from,
            // Now and then both are on one HCA.
            to: if rng.random_bool(0.9) { 1 - from } else { from },
            service: SERVICES[usize::from(rng.random_bool(0.2))],
            deadline: ms(rng.random_range(200..20_000)),
            gives_up: rng.random_bool(0.2).then(|| match rng.random_bool(0.5) {
                true => GiveUp::After(ms(rng.random_range(0..3_000))),
                false => GiveUp::AtPoll(rng.random_range(0..12)),
            }),
            lives: ms(rng.random_range(0..3_000)),
            end: [End::Disconnect, End::Drop, End::Wait][rng.random_range(0..3)],
        });
    }
    all
}

/// Runs one seed. The error tells what it was about.
pub fn simulate(seed: u64) -> Result<Outcomes, String> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build().expect("a runtime of this thread");
    let run = AssertUnwindSafe(|| runtime.block_on(run(seed)));
    let result = catch_unwind(run).unwrap_or_else(|payload| Err(text(&*payload).into()));
    result.map_err(|error| {
        let calls = draw(&mut ChaCha8Rng::seed_from_u64(seed));
        format!("seed {seed} fails: {error}\n{calls:#?}")
    })
}

async fn run(seed: u64) -> Result<Outcomes, Error> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let calls = draw(&mut rng);
    let net = Subnet::star(HOSTS).seed(seed).await?;
    net.faults()
        .loss(rng.random_range(0.0..=0.2))
        .duplicate(rng.random_range(0.0..=0.1))
        .reorder(rng.random_range(0.0..=0.3))
        .delay(Duration::from_micros(2)..=Duration::from_millis(rng.random_range(1..=30)));
    let hcas = [Hca::open(net.device(HOSTS[0])).await?, Hca::open(net.device(HOSTS[1])).await?];
    let listens = rng.random_bool(0.2).then(|| {
        let how = [Listens::Accept, Listens::Reject, Listens::Drop, Listens::Ignore];
        how[rng.random_range(0..how.len())]
    });
    let serving = match listens {
        Some(how) => {
            let listener = Listener::bind(SERVICES[0]).device(&hcas[1]).await?;
            Some(tokio::spawn(serve(listener, how)))
        }
        None => None,
    };

    let mut outcomes = Outcomes::default();
    let all = join_all(calls.iter().enumerate().map(|(n, call)| live(&hcas, n, call))).await;
    let mut made = Vec::new();
    for came_to in all {
        match came_to? {
            Ok(conn) => made.push(Some(conn)),
            Err(Some(error)) => {
                match error {
                    ConnectError::Unreachable { .. } => outcomes.unreachable += 1,
                    ConnectError::Rejected(_) | ConnectError::Disconnected => outcomes.rejected += 1,
                    other => return Err(other.into()),
                }
                made.push(None);
            }
            Err(None) => {
                outcomes.gave_up += 1;
                made.push(None);
            }
        }
    }
    judge(&calls, &made, listens.is_some(), &mut outcomes);
    if let Some(serving) = serving {
        serving.abort();
    }
    net.quiet().await?;
    Ok(outcomes)
}

/// One that listens for a service although peers ask each other for it.
async fn serve(listener: Listener, how: Listens) {
    while let Ok(request) = listener.accept().await {
        tokio::spawn(answer(request, how));
    }
}

async fn answer(request: IncomingRequest, how: Listens) {
    match how {
        Listens::Accept => {
            if let Ok(conn) = request.accept().await {
                conn.closed().await;
            }
        }
        Listens::Reject => request.reject(RejReason::CONSUMER),
        Listens::Drop => drop(request),
        Listens::Ignore => request.ignore(),
    }
}

/// One program: it asks, says who it is, and leaves.
async fn live(
    hcas: &[Hca; 2],
    number: usize,
    call: &Call,
) -> Result<Result<Made, Option<ConnectError>>, Error> {
    sleep(call.at).await;
    let path = hcas[call.from].path_to(hcas[call.to].gid()).service_id(call.service).await?;
    let connect = Connection::connect_peer(path).private_data(&[number as u8]).deadline(call.deadline);
    let began = Instant::now();
    let ended = unless(call.gives_up, connect).await;
    let took = began.elapsed();
    assert!(took <= call.deadline + SLACK, "call {number} took {took:?}");
    let conn = match ended {
        Some(Ok(conn)) => conn,
        Some(Err(error)) => return Ok(Err(Some(error))),
        None => return Ok(Err(None)),
    };
    let mut made = Made {
        host: call.from,
        role: conn.role(),
        local: conn.local_qpn(),
        remote: conn.peer().qpn,
        remote_id: conn.peer().comm_id,
        peer: None,
    };
    // It may have ended already.
    conn.send_copy(&[number as u8]).await.ok();
    if let Ok(Ok(Some(message))) = timeout(Duration::from_secs(2), conn.recv()).await {
        assert_eq!(message[0], conn.private_data()[0], "two words of one peer");
        made.peer = Some(usize::from(message[0]));
    }
    sleep(call.lives).await;
    match call.end {
        End::Disconnect => drop(conn.disconnect().await),
        End::Drop => drop(conn),
        End::Wait => drop(timeout(Duration::from_secs(30), conn.closed()).await),
    }
    Ok(Ok(made))
}

/// Who met is one connection.
fn judge(calls: &[Call], made: &[Option<Made>], listens: bool, outcomes: &mut Outcomes) {
    for (n, one) in made.iter().enumerate().filter_map(|(n, one)| Some((n, one.as_ref()?))) {
        let Some(peer) = one.peer else {
            // A listener says nothing, nor does one who has left.
            outcomes.listener += u32::from(listens);
            continue;
        };
        assert_eq!((calls[peer].from, calls[peer].to), (calls[n].to, calls[n].from), "{n} has met {peer}");
        assert_eq!(calls[peer].service, calls[n].service, "{n} has met {peer}");
        assert_ne!(peer, n, "a program has met itself");
        let other = made[peer].as_ref().expect("who says who it is has been connected");
        outcomes.met += 1;
        assert_eq!((one.local, Some(one.remote)), (Some(other.remote), other.local), "{n} has met {peer}");
        assert_ne!(one.role, other.role, "{n} has met {peer}");
        assert_ne!(one.remote_id, other.remote_id, "{n} has met {peer}");
        assert!(other.peer.is_none_or(|back| back == n), "{n} has met {peer}, that {:?}", other.peer);
        assert_eq!(other.host, calls[n].to);
    }
}
