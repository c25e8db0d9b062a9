//! Linux's rdma_rxe through libibverbs and umad, in the guest: two devices of its kernel with a switch between them, in real
//! time. The devices stay from case to case, so after each there must be nothing left of it in the kernel.

use std::fs;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use futures::future::LocalBoxFuture;
use ibcm_sys::LinuxDevice;
use ibdev::{Device, PortState};
use tokio::runtime::Runtime;

use super::bench::{Bench, Feature, Fixture, Hands};
use super::differs::{self, Difference};

#[derive(Debug)]
pub struct Rxe;

/// As tests/guest/cases/conformance.sh sets them up.
const A: &str = "rxe_a";
const B: &str = "rxe_b";
const NETDEV_OF_B: &str = "veth_b";
/// The switch's end of the cable of `b`.
const CABLE_OF_B: &str = "port_b";

/// How long what was dropped may take to go.
const SETTLING: Duration = Duration::from_secs(20);

impl Fixture for Rxe {
    fn name(&self) -> &'static str {
        "rxe"
    }

    /// One port; devices that belong to the kernel; no events of queue pairs (spec/softhca.md 5.1).
    fn lacks(&self) -> &'static [Feature] {
        &[Feature::TwoPorts, Feature::PathMigration, Feature::Raw, Feature::Close, Feature::QpEvents]
    }

    fn differs(&self) -> &'static [(Difference, &'static str)] {
        differs::RXE
    }

    fn in_guest(&self) -> bool {
        true
    }

    fn runtime(&self) -> Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
    }

    /// Some make and drop thousands of objects, on an emulated processor.
    fn limit(&self) -> Duration {
        Duration::from_secs(150)
    }

    fn open(&self) -> LocalBoxFuture<'_, Bench> {
        Box::pin(async {
            run("ip", &["link", "set", CABLE_OF_B, "up"]);
            AT_FIRST.get_or_init(left);
            let (a, b) = (device(A).await, device(B).await);
            while b.port(1).expect("its port").state != PortState::Active {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            Bench { a, b, hands: Box::new(Cables), differs: self.differs() }
        })
    }

    fn nothing_left(&self) -> Result<(), String> {
        let began = Instant::now();
        if let Some(mut removing) = REMOVING.lock().unwrap().take() {
            while removing.try_wait().expect("a child").is_none() {
                if began.elapsed() > SETTLING {
                    removing.kill().expect("a child");
                    return Err(format!("{B} is still open somewhere"));
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            add_b();
        }
        loop {
            let (at_first, now) = (AT_FIRST.get_or_init(left), left());
            if now == *at_first {
                return Ok(());
            }
            if began.elapsed() > SETTLING {
                return Err(format!(
                    "left in the kernel:\n{now}before the first case there was:\n{at_first}"
                ));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn add_b() {
    run("rdma", &["link", "add", B, "type", "rxe", "netdev", NETDEV_OF_B]);
}

async fn device(name: &str) -> Arc<dyn Device> {
    LinuxDevice::open(name).await.unwrap_or_else(|error| panic!("{name}: {error:?}"))
}

/// What takes `b` away.
static REMOVING: Mutex<Option<Child>> = Mutex::new(None);

/// What the kernel has of devices and their users, before the first case opened one.
static AT_FIRST: OnceLock<String> = OnceLock::new();

/// Objects of both devices, and who has their files open.
fn left() -> String {
    let objects = run("rdma", &["resource", "show"]);
    let counts = objects.lines().filter_map(|line| line.split_once(": ")).map(|(_, counts)| counts);
    let users = ["ib_umad", "ib_uverbs"].map(|module| {
        let count = fs::read_to_string(format!("/sys/module/{module}/refcnt")).expect("its module");
        format!("{module} {}", count.trim())
    });
    let mut lines: Vec<_> = counts.map(str::to_owned).chain(users).collect();
    lines.sort_unstable();
    lines.iter().map(|line| format!("{line}\n")).collect()
}

fn run(program: &str, arguments: &[&str]) -> String {
    let output =
        Command::new(program).args(arguments).output().unwrap_or_else(|error| panic!("{program}: {error}"));
    let [out, error] =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(output.status.success(), "{program} {arguments:?}: {error}");
    out
}

#[derive(Debug)]
struct Cables;

impl Hands for Cables {
    fn set_ports_of_b(&self, up: bool) {
        run("ip", &["link", "set", CABLE_OF_B, if up { "up" } else { "down" }]);
    }

    /// The program returns when the kernel has taken the device away, which is when nobody has it open any more.
    fn remove_b(&self) {
        let removing = Command::new("rdma").args(["link", "delete", B]).spawn().expect("rdma");
        *REMOVING.lock().unwrap() = Some(removing);
    }

    fn open_a(&self) -> LocalBoxFuture<'_, Arc<dyn Device>> {
        Box::pin(device(A))
    }

    fn nothing_left(&self) -> LocalBoxFuture<'_, ()> {
        Box::pin(async {
            let at_first = AT_FIRST.get().expect("taken before the devices were opened");
            while left() != *at_first {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
    }
}
