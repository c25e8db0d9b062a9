//! The client next to a program over libibumad, both asking OpenSM for a path through ibsim.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use benches::{Case, Clock, Options, Sampling, side_by_side};
use futures::StreamExt;
use ibcm::Hca;
use ibcm::sa::{Client, PathRecord, Record, Template};
use ibdev::{Device, PortState};
use ibsa::mad::SaHeader;
use ibsoft::IbsimDevice;
use ibwire::mad::{MAD_LEN, MadHeader, Method, MgmtClass};
use ibwire::{Gid, Lid, TransactionId};
use tests::children::{Bound, bound};
use tests::ibsim::{self, Fabric};
use tokio::runtime::Builder;

use crate::Result;

/// The name of the program's cases.
const UMAD: &str = "libibumad";
/// Queries under way at once.
const IN_FLIGHT: [u64; 2] = [1, 16];
/// How long the subnet may take to come up.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn run(options: &Options) -> Result {
    let mut missing = ibsim::missing();
    missing.extend(program().is_err().then_some("cc with libibumad"));
    if !missing.is_empty() {
        if std::env::var_os("CI").is_some_and(|ci| ci == "true") {
            return Err(format!("missing: {}", missing.join(" ")).into());
        }
        println!("queries to OpenSM are left out, missing here: {}", missing.join(" "));
        return Ok(());
    }
    let fabric = Fabric::start(&Path::new(env!("CARGO_TARGET_TMPDIR")).join("opensm"))?;
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let ends = runtime.block_on(async { tokio::time::timeout(PATIENCE, ends(&fabric)).await? })?;
    let (runtime, umad) = (&runtime, RefCell::new(Umad::start(&fabric, &ends)?));
    let cases = IN_FLIGHT.iter().flat_map(|&in_flight| {
        let (ends, umad) = (&ends, &umad);
        [
            Case::new(format!("{UMAD}, {in_flight} in flight"), move |count| {
                umad.borrow_mut().run(in_flight, count);
            }),
            Case::new(format!("SDK, {in_flight} in flight"), move |count| {
                runtime.block_on(ends.run(in_flight, count));
            }),
        ]
    });
    let cases: Vec<_> = cases.filter(|case| options.selects(case.name())).collect();
    if cases.is_empty() {
        return Ok(());
    }
    let sampling = Sampling::new(options, Clock::Wall, Duration::from_millis(500), 11);
    let mut estimates = side_by_side(sampling, cases);
    // What this process took is not what that one did.
    for case in estimates.iter_mut().filter(|case| case.name.starts_with(UMAD)) {
        let times = &umad.borrow().cpu;
        case.cpu = IN_FLIGHT
            .iter()
            .find(|in_flight| case.name.ends_with(&format!(" {in_flight} in flight")))
            .and_then(|in_flight| times.get(in_flight))
            .map_or(f64::NAN, |(us, count)| *us as f64 * 1e3 / *count as f64);
    }
    print!("{}", crate::queries("OpenSM through ibsim", &estimates));
    println!("the SDK sent {} queries again", ends.sa.stats().repeated);
    Ok(())
}

/// Who asks at node B, and what the program at node D is told.
struct Ends {
    _hca: Hca,
    sa: Client,
    sm: Lid,
    b: Gid,
    d: Gid,
}

async fn ends(fabric: &Fabric) -> Result<Ends> {
    let (there, sm) = attached(fabric, "D").await?;
    let d = there.gid();
    there.close().await;
    let (hca, _) = attached(fabric, "B").await?;
    Ok(Ends { sa: hca.sa(), b: hca.gid(), _hca: hca, sm, d })
}

/// The node once its port is active, and the LID of the SA.
async fn attached(fabric: &Fabric, node: &str) -> Result<(Hca, Lid)> {
    loop {
        let device = IbsimDevice::attach_to(fabric.base(), node)?;
        let port = device.port(1)?;
        if port.state == PortState::Active {
            return Ok((Hca::open(Arc::new(device) as Arc<dyn Device>).await?, port.sm_lid));
        }
        drop(device);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The path from one to the other.
fn wanted(from: Gid, to: Gid) -> Template<PathRecord> {
    Template::<PathRecord>::new().sgid(from).dgid(to).reversible(true)
}

impl Ends {
    async fn run(&self, in_flight: u64, count: u64) {
        let queries = (0..count).map(|_| self.sa.get(wanted(self.b, self.d)));
        let mut queries = futures::stream::iter(queries).buffer_unordered(in_flight as usize);
        while let Some(answer) = queries.next().await {
            answer.expect("OpenSM knows the path");
        }
    }

    /// The program's query.
    fn mad(&self) -> [u8; MAD_LEN] {
        let (record, component_mask) = wanted(self.d, self.b).checked().expect("values in their ranges");
        let class = MgmtClass::SA;
        let attribute = PathRecord::ATTRIBUTE;
        let mad = MadHeader::new(class, SaHeader::CLASS_VERSION, Method::GET, attribute, TransactionId(0));
        let header = SaHeader { component_mask, ..SaHeader::new(mad) };
        let mut bytes = [0; MAD_LEN];
        bytes[..SaHeader::LEN].copy_from_slice(&header.to_bytes());
        record.write_to(&mut bytes[SaHeader::LEN..][..PathRecord::LEN]);
        bytes
    }
}

/// The program over libibumad, built by the C compiler of the system.
fn program() -> Result<PathBuf> {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("umad");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("sa/umad.c");
    let output =
        Command::new("cc").args(["-O2", "-Wall", "-o"]).arg(&program).arg(source).arg("-libumad").output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    Ok(program)
}

/// That program at node D.
struct Umad {
    _program: Bound,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    /// Microseconds on the CPU and queries, by those under way.
    cpu: BTreeMap<u64, (u64, u64)>,
}

impl Umad {
    fn start(fabric: &Fabric, ends: &Ends) -> Result<Self> {
        let mad: String = ends.mad().iter().map(|byte| format!("{byte:02x}")).collect();
        let program = program()?;
        let mut command = fabric.command(&program, "D");
        let mut command = bound(command.arg(ends.sm.0.to_string()).arg(mad));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut program = Bound::start(command)?;
        let orders = program.child.stdin.take().ok_or("no input")?;
        let answers = BufReader::new(program.child.stdout.take().ok_or("no output")?);
        Ok(Self { _program: program, orders, answers, cpu: BTreeMap::new() })
    }

    /// It gives up by itself if OpenSM does not answer.
    fn run(&mut self, in_flight: u64, count: u64) {
        writeln!(self.orders, "{count} {in_flight}").expect("a program that runs");
        let mut answer = String::new();
        self.answers.read_line(&mut answer).expect("a program that runs");
        let us: u64 = answer.trim().parse().expect("a program that gets its answers");
        let (all_us, queries) = self.cpu.entry(in_flight).or_default();
        *all_us += us;
        *queries += count;
    }
}
