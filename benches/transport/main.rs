//! How fast the data path of the software HCA is, next to plain UDP that does the same: 64 bytes to and fro, streams of
//! 64 KiB messages. Both ends are on loopback, each in a thread of its own.

use std::cell::RefCell;
use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr};
use std::thread;
use std::time::Duration;

use benches::traffic::{Asker, Control, End, MESSAGE, Rc, Result, Sdk, Task, Udp, Waiting, Work, serve};
use benches::{Case, Clock, Estimate, Options, Sampling, Table, side_by_side};
use ibwire::Mtu;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};

const MTUS: [(u32, Mtu); 2] = [(1024, Mtu::B1024), (4096, Mtu::B4096)];

fn main() -> std::result::Result<(), Box<dyn Error + Send + Sync>> {
    let options = Options::start("transport: messages over loopback, each end in a thread of its own");
    let sampling = Sampling::new(&options, Clock::Wall, Duration::from_millis(250), 15);
    let runtime = one_thread()?;
    let sdk = |waiting| {
        pair(
            &runtime,
            async move |control: &mut Control| Sdk::accept(control, "soft", waiting).await,
            async move |control: &mut Control| Sdk::connect(control, "soft", waiting).await,
        )
    };
    let sdks = [sdk(Waiting::Blocking)?, sdk(Waiting::Spinning)?];
    let (mut rcs, mut udps) = (Vec::new(), Vec::new());
    for (_, mtu) in MTUS {
        let open = async move |control: &mut Control| Rc::open(control, None, mtu).await;
        rcs.push(pair(&runtime, open, open)?);
        let open = async move |control: &mut Control| Udp::open(control, None, mtu).await;
        udps.push(pair(&runtime, open, open)?);
    }

    let mut cases = Vec::new();
    for (waiting, sdk) in [Waiting::Blocking, Waiting::Spinning].into_iter().zip(&sdks) {
        let name = |what: &str| format!("{what}, {waiting}");
        cases.push(case(&runtime, name("UDP"), &udps[0], Work::PingPong, waiting));
        cases.push(case(&runtime, name("RC"), &rcs[0], Work::PingPong, waiting));
        cases.push(case(&runtime, name("SDK"), sdk, Work::PingPong, waiting));
    }
    for ((bytes, _), (rc, udp)) in MTUS.into_iter().zip(rcs.iter().zip(&udps)) {
        let name = |what: &str| format!("{what}, {bytes}");
        cases.push(case(&runtime, name("UDP"), udp, Work::Send, Waiting::Blocking));
        for work in [Work::Write, Work::Read, Work::Send] {
            cases.push(case(&runtime, name(&format!("RC {work}")), rc, work, Waiting::Blocking));
        }
    }
    cases.retain(|case| options.selects(case.name()));
    let estimates = side_by_side(sampling, cases);
    let (pings, streams): (Vec<_>, Vec<_>) = estimates.iter().partition(|case| case.name.ends_with("ing"));
    print!("{}\n{}", pings_table(&pings), streams_table(&streams));
    for (rc, (bytes, _)) in rcs.iter().zip(MTUS) {
        println!("\nmishaps at MTU {bytes}: {:?}", rc.borrow().end().trouble());
    }
    Ok(())
}

fn one_thread() -> std::io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

/// Two ends that know each other; the one that answers is in a thread of its own, which runs as long as the process.
fn pair<E: End>(
    runtime: &Runtime,
    answering: impl AsyncFnOnce(&mut Control) -> Result<E> + Send + 'static,
    asking: impl AsyncFnOnce(&mut Control) -> Result<E>,
) -> Result<RefCell<Asker<E>>> {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    listener.set_nonblocking(true)?;
    let address: SocketAddr = listener.local_addr()?;
    let answer = async move || {
        let mut control = Control::accept(&TcpListener::from_std(listener)?).await?;
        let end = answering(&mut control).await?;
        serve(control, end).await
    };
    thread::spawn(move || {
        let runtime = one_thread().expect("a runtime");
        runtime.block_on(answer()).expect("the end that answers");
    });
    runtime.block_on(async {
        let mut control = Control::connect(address).await?;
        let end = asking(&mut control).await?;
        Ok(RefCell::new(Asker::new(control, end)))
    })
}

fn case<'a, E: End>(
    runtime: &'a Runtime,
    name: String,
    asker: &'a RefCell<Asker<E>>,
    work: Work,
    waiting: Waiting,
) -> Case<'a> {
    Case::new(name, move |count| {
        let task = Task { work, waiting, count };
        runtime.block_on(asker.borrow_mut().run(task)).expect("loopback");
    })
}

/// `value` of a case as a multiple of that of plain UDP.
fn of_udp(case: &Estimate, cases: &[&Estimate], value: fn(&Estimate) -> f64) -> String {
    let (_, variant) = case.name.split_once(',').unwrap_or_default();
    let udp = cases.iter().find(|other| other.name == format!("UDP,{variant}"));
    udp.map(|udp| format!("{:.2}", value(case) / value(udp))).unwrap_or_default()
}

fn pings_table(cases: &[&Estimate]) -> Table {
    let mut table = Table::new(["64 bytes", "half RTT us", "quartiles", "of UDP", "CPU us", "of UDP"]);
    for case in cases {
        let half = |ns: f64| format!("{:.1}", ns / 2e3);
        table.row([
            case.name.clone(),
            half(case.median),
            format!("{} .. {}", half(case.quartiles.0), half(case.quartiles.1)),
            of_udp(case, cases, |case| case.median),
            half(case.cpu),
            of_udp(case, cases, |case| case.cpu),
        ]);
    }
    table
}

fn streams_table(cases: &[&Estimate]) -> Table {
    let mut table = Table::new(["64 KiB, MTU", "MB/s", "quartiles", "of UDP", "CPU s/GB", "of UDP"]);
    for case in cases {
        let rate = |ns: f64| format!("{:.0}", MESSAGE as f64 / ns * 1e3);
        table.row([
            case.name.clone(),
            rate(case.median),
            format!("{} .. {}", rate(case.quartiles.1), rate(case.quartiles.0)),
            of_udp(case, cases, |case| 1.0 / case.median),
            format!("{:.2}", case.cpu / MESSAGE as f64),
            of_udp(case, cases, |case| case.cpu),
        ]);
    }
    table
}
