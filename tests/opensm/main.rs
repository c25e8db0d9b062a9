//! Our SA client against OpenSM on a subnet of ibsim, field by field what saquery prints. Without the programs the cases
//! count as ignored; with CI=true they fail.
#![forbid(unsafe_code)]

mod crosscheck;
mod groups;
mod nets;
mod paths;
mod records;
mod sidr;

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::StreamExt;
use ibcm::handshake::{self, LocalQp};
use ibcm::{Hca, Listener};
use ibdev::{Device, DeviceError, PortAttr, PortState};
use ibsa::record::{InformInfoRecord, NodeRecord, SmInfoRecord, Template};
use ibsa::{Client, Config, Notice, QueryError, SaStatus, Trap};

use ibsoft::IbsimDevice;
use ibwire::{Gid, Lid, Qpn, ServiceId};
use libtest_mimic::{Arguments, Failed, Trial};
use tests::ibsim::{self, Fabric};

/// How long the subnet may take to come up.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long a case with a subnet of its own may take.
const LIMIT: Duration = Duration::from_secs(60);

/// Where the package of ibsim has its examples.
const EXAMPLES: &str = "/usr/share/doc/ibsim-utils/net-examples";

type Outcome = Result<(), Failed>;

/// The subnet that all queries share.
static FABRIC: OnceLock<Result<Fabric, String>> = OnceLock::new();

fn fabric() -> Result<&'static Fabric, Failed> {
    let start = || {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("opensm");
        Fabric::start(&folder).map_err(|error| error.to_string())
    };
    Ok(FABRIC.get_or_init(start).as_ref()?)
}

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let missing = ibsim::missing();
    let left_out = !missing.is_empty() && std::env::var_os("CI").is_none_or(|ci| ci != "true");
    if left_out {
        eprintln!("cases with OpenSM are left out, programs are missing: {}", missing.join(" "));
    }
    let trials = [
        case("the_sa_says_what_it_can_do", says_what_it_can_do),
        case("nodes_are_what_saquery_prints", records::nodes),
        case("ports_are_what_saquery_prints", records::ports),
        case("switches_are_what_saquery_prints", records::switches),
        case("tables_of_ports_are_what_saquery_prints", records::tables),
        case("the_manager_is_what_saquery_prints", records::manager),
        case("groups_are_seen_by_a_second_client", groups::groups),
        case("services_are_seen_by_a_second_client", groups::services),
        case("a_table_that_was_cut_is_incomplete", incomplete),
        case("errors_have_their_names", errors),
        case("paths_are_what_saquery_prints", paths::one),
        case("paths_between_several_ports_are_what_saquery_prints", paths::between_several),
        alone("cm_handshake_by_a_path_of_the_sa", handshake),
        alone("sidr_by_a_path_of_the_sa", sidr::sidr),
        alone("the_sm_goes_and_comes_again", restart),
        alone("a_real_notice_when_a_link_goes_down", notices),
        both(Net::Shipped("net"), "Switch2", 0),
        both(Net::Shipped("net.1"), "Hca2", 0),
        both(Net::Shipped("net.2sw2path"), "Hca2", 0),
        both(Net::Shipped("net.2sw2path4hca"), "Hca2", 1),
        both(Net::Shipped("net.2sw2path4hca2port"), "Hca2", 0),
        both(Net::Made("fat_tree", nets::fat_tree), "Hca2", 0),
        both(Net::Made("fat_tree", nets::fat_tree), "Hca2", 1),
        both(Net::Made("ring", nets::ring), "Hca2", 0),
        both(Net::Made("ring", nets::ring), "Hca2", 2),
    ];
    let names: Vec<String> = trials.iter().map(|trial| trial.name().to_owned()).collect();
    let all = Trial::test("every_file_that_ibsim_ships_is_a_case", move || each_file_is_a_case(&names));
    let trials = trials.into_iter().chain([all]).map(|trial| trial.with_ignored_flag(left_out)).collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    // What is static is never dropped.
    if let Some(Ok(fabric)) = FABRIC.get() {
        fabric.end();
    }
    conclusion.exit_code()
}

/// A case with a client at node B.
fn case<F>(name: &str, body: impl Fn(Client, &'static Fabric) -> F + Send + 'static) -> Trial
where
    F: Future<Output = Outcome>,
{
    Trial::test(name, move || {
        let fabric = fabric()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let client = client(fabric, "B").await?;
            body(client, fabric).await
        })
    })
}

/// A case with a subnet of its own.
fn alone<F>(name: &str, body: impl Fn(Fabric) -> F + Send + 'static) -> Trial
where
    F: Future<Output = Outcome>,
{
    Trial::test(name, move || {
        let fabric = Fabric::start(&Path::new(env!("CARGO_TARGET_TMPDIR")).join("opensm"))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async { tokio::time::timeout(LIMIT, body(fabric)).await? })
    })
}

/// A subnet of ibsim's.
#[derive(Clone, Copy)]
enum Net {
    /// A file of its package.
    Shipped(&'static str),
    /// One of ours.
    Made(&'static str, fn() -> String),
}

/// A subnet under our manager and under OpenSM, asked from a node.
fn both(net: Net, from: &'static str, lmc: u8) -> Trial {
    let (Net::Shipped(name) | Net::Made(name, _)) = net;
    Trial::test(format!("our_manager_and_opensm_say_the_same_of_{name}_with_lmc_{lmc}"), move || {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("opensm");
        let file = match net {
            Net::Shipped(name) => Path::new(EXAMPLES).join(name),
            Net::Made(name, text) => {
                let file = folder.join(format!("{name}-{lmc}.net"));
                fs::create_dir_all(&folder)?;
                fs::write(&file, text())?;
                file
            }
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let same = crosscheck::same(&folder, &file, from, lmc);
        runtime.block_on(async { tokio::time::timeout(LIMIT, same).await? })
    })
}

/// Whoever packs another subnet with ibsim gets a case for it.
fn each_file_is_a_case(cases: &[String]) -> Outcome {
    for file in fs::read_dir(EXAMPLES)? {
        let name = file?.file_name().to_string_lossy().into_owned();
        let case = format!("_of_{name}_with_lmc_");
        if name != "examples.README" && !cases.iter().any(|known| known.contains(&case)) {
            return Err(format!("{name} of {EXAMPLES} is no case").into());
        }
    }
    Ok(())
}

async fn client(fabric: &Fabric, node: &str) -> Result<Client, Failed> {
    let device = tokio::time::timeout(PATIENCE, attached(fabric, node)).await??;
    Ok(Client::new(device, 1, Config::default(), [5; 32]))
}

/// The node once it is free and its port active.
async fn attached(fabric: &Fabric, node: &str) -> Result<Arc<dyn Device>, DeviceError> {
    let mut tick = tokio::time::interval(Duration::from_millis(10));
    let device = loop {
        tick.tick().await;
        match IbsimDevice::attach_to(fabric.base(), node) {
            // One program at a time serves a node; the one before may be going just now.
            Err(DeviceError::InUse { .. }) => {}
            attached => break attached?,
        }
    };
    // A switch's own port is active from the start.
    while !matches!(device.port(1)?, PortAttr { state: PortState::Active, sm_lid: Lid(1..), .. }) {
        tick.tick().await;
    }
    Ok(Arc::new(device))
}

async fn says_what_it_can_do(sa: Client, _: &Fabric) -> Outcome {
    let info = sa.class_port_info().await?;
    assert_eq!((info.base_version, info.class_version), (1, 2));
    assert_eq!(info.capability_mask & 0x2602, 0x2602);
    Ok(())
}

async fn incomplete(sa: Client, _: &Fabric) -> Outcome {
    let table = sa.table(Template::<NodeRecord>::new()).await?;
    assert!(!table.is_complete());
    assert_eq!(table.len(), 1, "whole records of 112 bytes in 200");
    Ok(())
}

async fn errors(sa: Client, _: &Fabric) -> Outcome {
    let error = sa.get(Template::<NodeRecord>::new()).await.expect_err("no such record");
    assert!(matches!(error, QueryError::Status(SaStatus::TOO_MANY_RECORDS)), "{error}");
    let error = sa.get(Template::<NodeRecord>::new().lid(0x4000u16)).await.expect_err("no such record");
    assert!(matches!(error, QueryError::Status(SaStatus::NO_RECORDS)), "{error}");
    Ok(())
}

/// Messages between two nodes, along a path that the SA gave: there are no queue pairs, so both sides make up a number.
async fn handshake(fabric: Fabric) -> Outcome {
    const SERVICE: ServiceId = ServiceId::new(0x1000_0000_0000_0077);
    let server = Hca::open(attached(&fabric, "D").await?).await?;
    let client = Hca::open(attached(&fabric, "B").await?).await?;
    let listener = Listener::bind(SERVICE).device(&server).await?;
    let path = client.path_to(server.gid()).service_id(SERVICE).await?;
    assert!(path.record().dlid != Lid::NONE && path.record().slid != path.record().dlid);
    assert_eq!((path.record().sgid, path.record().dgid), (client.gid(), server.gid()));
    let passive = tokio::spawn(async move {
        let request = listener.accept().await?;
        assert_eq!(request.private_data()[..5], *b"hello");
        let offer = request.prepare(LocalQp::rc(Qpn::truncate(0x1234)))?;
        let session = offer.reply().await?;
        let closed = session.closed().await;
        session.finish().await;
        Ok::<_, ibcm::Error>(closed.to_string())
    });
    let reply = handshake::connect(path, LocalQp::rc(Qpn::truncate(0x4321))).private_data(b"hello").await?;
    assert_eq!(reply.attrs().rtr.dest_qpn, Qpn::truncate(0x1234));
    let session = reply.ready().await?;
    session.disconnect().await;
    let closed = tokio::time::timeout(PATIENCE, passive).await???;
    assert_eq!(closed, "disconnected by the peer");
    Ok(())
}

async fn restart(fabric: Fabric) -> Outcome {
    let sa = client(&fabric, "B").await?;
    let manager = sa.get(Template::<SmInfoRecord>::new()).await?;
    let node = sa.get(Template::<NodeRecord>::new().lid(manager.lid)).await?;
    let to = Gid::link_local(node.node_info.port_guid);
    sa.path(to).await?;
    groups::again(&sa, &fabric, async || {
        fabric.stop_opensm();
        silence(&sa, to).await?;
        fabric.start_opensm()?;
        // The query that is still under way is answered by the new one.
        let found = sa.path(to).uncached().timeout(PATIENCE).await?;
        assert_eq!(found.dgid, to);
        Ok(())
    })
    .await
}

/// Nobody answers, but for the cache.
async fn silence(sa: &Client, to: Gid) -> Outcome {
    let silent = sa.path(to).uncached().timeout(Duration::from_millis(300)).await;
    assert!(matches!(silent, Err(QueryError::Late(_))), "{silent:?}");
    assert_eq!(sa.path(to).await?.dgid, to, "the cache has it");
    Ok(())
}

async fn notices(mut fabric: Fabric) -> Outcome {
    let sa = client(&fabric, "B").await?;
    let lost = sa.get(Template::<NodeRecord>::new().node_description("C")).await?;
    let gid = Gid::link_local(lost.node_info.port_guid);
    let one = sa.subscribe([Trap::GROUP_CREATED]).await?;
    records::subscription(&sa, &fabric).await?;
    drop(one);
    let held = || sa.get(Template::<InformInfoRecord>::new());
    while held().await.is_ok() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut notices = sa.subscribe([Trap::GID_OUT, Trap::GID_IN]).await?;
    fabric.console("Unlink \"C\"[1]")?;
    assert_eq!(notices.next().await, Some(Notice::GidOut(gid)));
    fabric.console("Relink \"C\"[1]")?;
    assert_eq!(notices.next().await, Some(Notice::GidIn(gid)));
    let two = held().await;
    assert!(matches!(two, Err(QueryError::Status(SaStatus::TOO_MANY_RECORDS))), "{two:?}");
    drop(notices);
    // Given up in the background: in a moment the SA holds none.
    while !matches!(held().await, Err(QueryError::Status(SaStatus::NO_RECORDS))) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}
