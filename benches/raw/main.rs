//! Raw sockets over a veth pair between two network namespaces, which the bench makes and removes: each way to receive and
//! to send, next to a small C program of recvmmsg and sendmmsg, and to pnet.
//!
//! Receivers meet a flood of the C program's, which never pauses, and one of a rate that all of them can follow: the CPU time of
//! two receivers can be compared where both get the same. Who sends has nobody at the other end. Each is in one
//! thread, and so on one core: the flood on the first, the measured one on the last. Only root makes namespaces.

mod ours;
mod plain;
mod pnet;

use std::fmt;
use std::time::Duration;

use benches::traffic::Result;
use benches::{Case, Clock, Estimate, Options, Sample, Sampling, Table, side_by_side};
use ibraw::{EtherType, NextHeader};
use plain::Plain;
use rustix::thread::{CpuSet, sched_setaffinity};
use tests::veth::{self, Here, Net, Side, There};

/// What all speak.
const TYPE: EtherType = EtherType::LOCAL_1;
/// Nobody answers to it, and the kernel says nothing of that.
const NEXT: NextHeader = NextHeader::NONE;
/// Bytes of each receiver's queue.
const QUEUE: usize = 4 << 20;
const SIZES: [usize; 2] = [64, 1486];
/// Packets of a sample.
const COUNT: u64 = 200_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Ether,
    Ipv6,
}

impl Kind {
    /// The longest payload of a size that counts what is behind the header of Ethernet.
    fn payload(self, size: usize) -> usize {
        match self {
            Self::Ether => size,
            Self::Ipv6 => size.min(1446), // 40 bytes are the header
        }
    }

    /// Packets a second that all receivers can follow.
    fn pace(self) -> u64 {
        match self {
            Self::Ether => 400_000,
            Self::Ipv6 => 150_000,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ether => "EtherType",
            Self::Ipv6 => "IPv6",
        })
    }
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    /// Receiving what never pauses.
    Flood,
    /// Receiving at the [`pace`](Kind::pace) of the kind.
    Pace,
    Sending,
}

/// Ways to receive or to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    One,
    Into,
    Batch,
    Stream,
    /// Received in batches from a ring.
    Ring,
}

impl Way {
    fn name(self, receives: bool) -> &'static str {
        match (self, receives) {
            (Self::Ring, _) => "ring",
            (Self::One, true) => "recv",
            (Self::Into, true) => "recv_from",
            (Self::Batch, true) => "recv_batch",
            (Self::Stream, true) => "stream",
            (Self::One | Self::Into, false) => "send_to",
            (Self::Batch, false) => "send_batch",
            (Self::Stream, false) => "sink",
        }
    }
}

/// Measures the calling thread.
#[derive(Debug)]
struct Meter(Duration, Duration);

impl Meter {
    fn start() -> Self {
        Self(Clock::Wall.now(), Clock::Cpu.now())
    }

    fn stop(self, count: u64) -> Sample {
        Sample::of(count, Clock::Wall.now() - self.0, Clock::Cpu.now() - self.1)
    }
}

/// The link, the C program, and the core of the flood and that of who is measured.
struct Place {
    net: Net,
    plain: Plain,
    cores: [usize; 2],
}

impl Place {
    /// What the thread does that is at one side, on its core.
    fn at<T: Send>(&self, side: Side, job: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let job = || {
            self.net.enter(side)?;
            let mut core = CpuSet::new();
            core.set(self.cores[1]);
            sched_setaffinity(None, &core)?;
            job()
        };
        std::thread::scope(|scope| scope.spawn(job).join().map_err(|_| "the thread has panicked")?)
    }

    /// While packets come.
    fn flooded<T>(&self, command: &str, kind: Kind, job: impl FnOnce() -> Result<T>) -> Result<T> {
        let mut flood = self.plain.start(&self.net, There, self.cores[0], kind)?;
        flood.ask(command)?;
        job()
    }

    fn case<'a>(
        &'a self,
        (what, kind, bytes): (What, Kind, usize),
        who: &str,
        run: impl Fn(u64) -> Result<Sample> + 'a,
    ) -> Case<'a> {
        let payload = kind.payload(bytes);
        let run = move |count| match what {
            What::Flood => self.flooded(&format!("flood {payload}"), kind, || run(count)),
            What::Pace => self.flooded(&format!("pace {payload} {}", kind.pace()), kind, || run(count)),
            What::Sending => run(count),
        };
        let name = format!("{kind}, {bytes}, {who}");
        Case::measured(name, move |count| run(count).expect("the link is up"))
    }

    fn cases(&self, of: (What, Kind, usize)) -> Vec<Case<'_>> {
        let (what, kind, bytes) = of;
        let receives = what != What::Sending;
        let payload = kind.payload(bytes);
        let plain = |who, command: String| {
            self.case(of, who, move |count| {
                let mut plain = self.plain.start(&self.net, Here, self.cores[1], kind)?;
                plain.measure(&format!("{command} {count}"))
            })
        };
        let mut cases = match receives {
            true => vec![plain("C", "recv".into()), plain("C with addresses", "recv_from".into())],
            false => vec![plain("C", format!("send {payload}"))],
        };
        if kind == Kind::Ether {
            cases.push(self.case(of, "pnet", move |count| match receives {
                true => self.at(Here, || pnet::receive(Here, count)),
                false => self.at(Here, || pnet::send(Here, payload, count)),
            }));
        }
        let ways: &[_] = match receives {
            true if kind == Kind::Ether => &[Way::One, Way::Into, Way::Batch, Way::Stream, Way::Ring],
            true => &[Way::One, Way::Into, Way::Batch, Way::Stream],
            false => &[Way::One, Way::Batch, Way::Stream],
        };
        cases.extend(ways.iter().map(|&way| {
            self.case(of, way.name(receives), move |count| match receives {
                true => self.at(Here, || ours::receive(Here, kind, way, count)),
                false => self.at(Here, || ours::send(Here, kind, way, payload, count)),
            })
        }));
        cases
    }
}

fn main() -> Result {
    let options = Options::start("raw: packets a second and CPU time of each over a veth pair");
    if let Some(reason) = veth::hindrance(&[("cc", "--version"), ("taskset", "-V")]) {
        if std::env::var_os("CI").is_some_and(|ci| ci == "true") {
            return Err(reason.into());
        }
        println!("left out: {reason}");
        return Ok(());
    }
    let last = std::thread::available_parallelism()?.get() - 1;
    let place = Place { net: Net::new()?, plain: Plain::compile()?, cores: [0, last] };
    let count = if options.quick { COUNT / 100 } else { COUNT };
    let sampling = Sampling::new(&options, Clock::Wall, Duration::ZERO, 9);
    let sampling = Sampling { count: sampling.count.or(Some(count)), ..sampling };
    let measured = [("receiving", What::Flood), ("at a rate", What::Pace), ("sending", What::Sending)];
    for (title, what) in measured {
        let mut cases = Vec::new();
        for kind in [Kind::Ether, Kind::Ipv6] {
            for bytes in SIZES {
                cases.extend(place.cases((what, kind, bytes)));
            }
        }
        cases.retain(|case| options.selects(case.name()));
        println!("{}", table(title, &side_by_side(sampling, cases)));
    }
    Ok(())
}

fn table(title: &str, cases: &[Estimate]) -> Table {
    let mut table =
        Table::new([title, "packets/s", "quartiles", "of C", "of pnet", "CPU ns each", "of C", "of pnet"]);
    for case in cases {
        let (of, _) = case.name.rsplit_once(", ").unwrap_or_default();
        let beside = |other: &str| cases.iter().find(|case| case.name == format!("{of}, {other}"));
        let ratio = |other, value: fn(&Estimate) -> f64| {
            beside(other).map(|other| format!("{:.2}", value(case) / value(other))).unwrap_or_default()
        };
        let rate = |ns: f64| format!("{:.0}", 1e9 / ns);
        table.row([
            case.name.clone(),
            rate(case.median),
            format!("{} .. {}", rate(case.quartiles.1), rate(case.quartiles.0)),
            ratio("C", Estimate::per_second),
            ratio("pnet", Estimate::per_second),
            format!("{:.0}", case.cpu),
            ratio("C", |case| case.cpu),
            ratio("pnet", |case| case.cpu),
        ]);
    }
    table
}
