//! What we send, decoded by tshark, without a mark of its own and with our values: every packet kind as our encoders make
//! it, over IPv4 and IPv6; and captures of whole HCAs, over UDP and on the in-process subnet, and of MADs alone. Without
//! tshark the cases count as ignored; with CI=true they fail.
#![forbid(unsafe_code)]

use std::fs::{self, File};
use std::net::{Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ibcm::sim::Subnet;
use ibcm::{Connection, Gid, Hca, Listener, OpenError, ServiceId, ud};
use ibraw::{EtherDest, EtherType, Group, Link, LinkAddress, NextHeader, RawEtherSocket, RawIpv6Socket};
use ibsoft::{SoftDevice, UdpConfig};
use ibwire::packet::{Bth, TransportPacket};
use libtest_mimic::{Arguments, Failed, Trial};
use pcap_file::pcap::{PcapPacket, PcapWriter};
use tests::decode::samples::{Sample, samples};
use tests::decode::{Decoded, Want, capture, conversation, fields, frame, tshark};

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tshark");
    let missing = Command::new("tshark").arg("--version").output().is_err();
    let left_out = missing && std::env::var_os("CI").is_none_or(|ci| ci != "true");
    if left_out {
        eprintln!("tshark is missing: its cases are left out");
    }
    fs::create_dir_all(&folder).expect("the target directory can be written");
    let mut trials = vec![Trial::test("what_is_wrong_is_noticed", {
        let file = folder.join("wrong.pcap");
        move || wrong_is_noticed(&file)
    })];
    trials.extend(encoded("v4", ["10.77.0.2:49152", "10.77.0.1:4791"], &folder));
    trials.extend(encoded("v6", ["[fd77::2]:49152", "[fd77::1]:4791"], &folder));
    trials.extend(captured("v4", OVER_UDP, folder.join("captured-v4.pcap"), over_ipv4));
    trials.extend(captured("v6", OVER_UDP, folder.join("captured-v6.pcap"), over_ipv6));
    trials.extend(captured("subnet", ON_SUBNET, folder.join("captured-subnet.pcap"), on_subnet));
    trials.extend(captured("link", ON_SUBNET, folder.join("captured-link.pcap"), over_a_link));
    trials.extend(captured("mads", MADS, folder.join("captured-mads.pcap"), mads_on_subnet));
    trials.extend(captured("mads_roce", &MADS[1..], folder.join("captured-mads-roce.pcap"), mads_over_udp));
    let file = folder.join("captured-raw.pcap");
    trials.push(Trial::test("captured_raw_packets_of_a_subnet", move || raw_on_subnet(&file)));
    let file = folder.join("captured-managed.pcap");
    trials.push(Trial::test("captured_management_of_a_subnet", move || management_of_a_subnet(&file)));
    let trials = trials.into_iter().map(|trial| trial.with_ignored_flag(left_out)).collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// One trial per packet that our encoders made. All of a family are one capture, which tshark reads once.
fn encoded(family: &str, addresses: [&str; 2], folder: &Path) -> Vec<Trial> {
    let capture = folder.join(format!("encoded-{family}.pcap"));
    let [source, destination]: [SocketAddr; 2] = addresses.map(|text| text.parse().expect("an address"));
    let samples = samples(source, destination);
    let frames: Vec<Vec<u8>> =
        samples.iter().map(|sample| frame::roce(source, destination, &sample.transport)).collect();
    let decoded: Arc<LazyLock<Result<Vec<Decoded>, String>, _>> = Arc::new(LazyLock::new(move || {
        write(&capture, &frames).map_err(|error| format!("{}: {error}", capture.display()))?;
        tshark(&capture)
    }));
    let trials = samples.into_iter().enumerate().map(|(index, Sample { name, transport, inside })| {
        let decoded = Arc::clone(&decoded);
        Trial::test(format!("encoded_{family}_{name}"), move || {
            let frames = decoded.as_ref().as_ref()?;
            let frame = frames.get(index).ok_or("tshark saw fewer frames")?;
            let view = TransportPacket::parse(&transport).map_err(|error| error.to_string())?;
            let mut wanted = fields::packet(&view);
            wanted.extend(inside);
            none(frame.complaints(&wanted))
        })
    });
    trials.collect()
}

fn write(capture: &Path, frames: &[Vec<u8>]) -> Result<(), Box<dyn std::error::Error>> {
    let mut writer = PcapWriter::new(File::create(capture)?)?;
    for frame in frames {
        writer.write_packet(&PcapPacket::new(Duration::ZERO, frame.len() as u32, frame))?;
    }
    Ok(())
}

/// That a case fails if there is reason: tshark marks a packet without all its headers, and another value is not taken
/// for ours.
fn wrong_is_noticed(file: &Path) -> Result<(), Failed> {
    let [source, destination] =
        ["10.77.0.2:49152", "10.77.0.1:4791"].map(|text| text.parse().expect("an address"));
    let samples = samples(source, destination);
    let req = samples.first().ok_or("no samples")?;
    let datagram = samples.iter().find(|sample| sample.name == "ud_send").ok_or("no datagram")?;
    let whole = frame::roce(source, destination, &req.transport);
    let truncated = frame::roce(source, destination, &datagram.transport[..Bth::LEN]);
    write(file, &[whole, truncated]).map_err(|error| error.to_string())?;
    let [whole, truncated] = &tshark(file)?[..] else { return Err("not two frames".into()) };
    if truncated.complaints(&[]).is_empty() {
        return Err("a datagram without its DETH is no reason to complain".into());
    }
    let other_value = [("infiniband.cm.req.serviceid", Want::Number(1))];
    if whole.complaints(&other_value).is_empty()
        || whole.complaints(&[("no.such.field", Want::Number(1))]).is_empty()
    {
        return Err("another value is no reason to complain".into());
    }
    none(whole.complaints(&req.inside))
}

const SID: ServiceId = ServiceId::new(0x1000_0000_0000_0001);

/// What goes over a wire that loses nothing, in no time.
const OVER_UDP: &[&str] = &[
    "REQ",
    "REJ",
    "REP",
    "RTU",
    "DREQ",
    "DREP",
    "RC_SEND_FIRST",
    "RC_SEND_MIDDLE",
    "RC_SEND_LAST",
    "RC_SEND_LAST_WITH_IMM",
    "RC_SEND_ONLY",
    "RC_SEND_ONLY_WITH_IMM",
    "ACK",
    "RNR_NAK",
    "FATAL_NAK",
];

/// On the subnet packets get lost, and time passes at no cost.
const ON_SUBNET: &[&str] = &[
    "REQ",
    "MRA",
    "REJ",
    "REP",
    "RTU",
    "DREQ",
    "DREP",
    "RC_SEND_FIRST",
    "RC_SEND_MIDDLE",
    "RC_SEND_LAST",
    "RC_SEND_LAST_WITH_IMM",
    "RC_SEND_ONLY",
    "RC_SEND_ONLY_WITH_IMM",
    "ACK",
    "RNR_NAK",
    "SEQUENCE_NAK",
    "FATAL_NAK",
];

/// What a device that writes no packets itself is captured of.
const MADS: &[&str] = &["MRA", "REQ", "REJ", "REP", "RTU", "DREQ", "DREP"];

/// One trial per packet kind: the capture that `converse` makes holds some, and tshark reads each as we do.
fn captured(
    wire: &str,
    kinds: &'static [&'static str],
    file: PathBuf,
    converse: fn(&Path) -> Result<(), String>,
) -> Vec<Trial> {
    type Frames = Vec<(capture::Frame, Decoded)>;
    let frames: Arc<LazyLock<Result<Frames, String>, _>> = Arc::new(LazyLock::new(move || {
        converse(&file)?;
        let (ours, theirs) = (capture::read(&file)?, tshark(&file)?);
        match ours.len() == theirs.len() {
            true => Ok(ours.into_iter().zip(theirs).collect()),
            false => Err(format!("{} frames, tshark saw {}", ours.len(), theirs.len())),
        }
    }));
    let trials = kinds.iter().map(|kind| {
        let frames = Arc::clone(&frames);
        Trial::test(format!("captured_{wire}_{}", kind.to_lowercase()), move || {
            // What never arrived is marked by tshark too.
            let frames = frames.as_ref().as_ref()?.iter().filter(|(ours, _)| !ours.lost);
            let mut found = frames.filter(|(ours, _)| ours.kind == *kind).peekable();
            if found.peek().is_none() {
                return Err("none in the capture".into());
            }
            none(found.flat_map(|(ours, theirs)| theirs.complaints(&ours.wanted)).collect())
        })
    });
    trials.collect()
}

fn none(complaints: Vec<String>) -> Result<(), Failed> {
    if complaints.is_empty() { Ok(()) } else { Err(complaints.join("\n").into()) }
}

/// Two HCAs on loopback addresses.
fn over_ipv4(file: &Path) -> Result<(), String> {
    over_udp(
        async |file| {
            let server = Hca::open("soft").await?;
            Ok((server, Hca::open("soft").pcap(file).await?))
        },
        file,
    )
}

/// Who uses IPv6's loopback address.
static IPV6_LOOPBACK: Mutex<()> = Mutex::new(());

fn lock(mutex: &Mutex<()>) -> MutexGuard<'_, ()> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// IPv6 has one loopback address: an HCA talks to itself.
fn over_ipv6(file: &Path) -> Result<(), String> {
    let _one_at_a_time = lock(&IPV6_LOOPBACK);
    over_udp(
        async |file| {
            let hca = Hca::open("soft:::1").pcap(file).await?;
            Ok((hca.clone(), hca))
        },
        file,
    )
}

fn over_udp(
    open: impl AsyncFnOnce(&Path) -> Result<(Hca, Hca), OpenError>,
    file: &Path,
) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| error.to_string())?.block_on(async {
        let (server, client) = open(file).await.map_err(|error| chain(&error))?;
        conversation::all_kinds(&server, &client, Duration::ZERO).await.map_err(|error| chain(&*error))
    })
}

/// Two HCAs on a wire that loses packets, while the clock stands still.
fn on_subnet(file: &Path) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    runtime.map_err(|error| error.to_string())?.block_on(async {
        let net = Subnet::star(["server", "client"]).seed(1).await.map_err(|error| chain(&error))?;
        net.faults().loss(0.1);
        let server = Hca::open(net.device("server")).await.map_err(|error| chain(&error))?;
        let client = Hca::open(net.device("client")).await.map_err(|error| chain(&error))?;
        let talk = conversation::all_kinds(&server, &client, Duration::from_secs(10));
        talk.await.map_err(|error| chain(&*error))?;
        net.write_pcap(file).map_err(|error| chain(&error))
    })
}

/// One of the links between two switches, as it loses packets.
fn over_a_link(file: &Path) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    runtime.map_err(|error| error.to_string())?.block_on(async {
        let net = Subnet::builder().switch("left").switch("right").link("left/9", "right");
        let net = net.hca("server").link("server", "left").hca("client").link("client", "right");
        let net = net.timed().seed(1).await.map_err(|error| chain(&error))?;
        net.faults().loss(0.1);
        let server = Hca::open(net.device("server")).await.map_err(|error| chain(&error))?;
        let client = Hca::open(net.device("client")).await.map_err(|error| chain(&error))?;
        let talk = conversation::all_kinds(&server, &client, Duration::from_secs(10));
        talk.await.map_err(|error| chain(&*error))?;
        net.write_pcap_of_link("left/9", file).map_err(|error| chain(&error))
    })
}

/// One HCA whose device does not capture.
fn mads_on_subnet(file: &Path) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    runtime.map_err(|error| error.to_string())?.block_on(async {
        let net = Subnet::star(["server", "client"]).seed(2).await.map_err(|error| chain(&error))?;
        let server = Hca::open(net.device("server")).await.map_err(|error| chain(&error))?;
        let client = Hca::open(net.device("client")).pcap(file).await.map_err(|error| chain(&error))?;
        let talk = conversation::all_kinds(&server, &client, Duration::from_secs(10));
        talk.await.map_err(|error| chain(&*error))
    })
}

/// The same with global routes, as over RoCE; nothing makes the server send an MRA. Where a packet is not IPv4, tshark does
/// not take the GIDs in its REQ for IPv4 addresses.
fn mads_over_udp(file: &Path) -> Result<(), String> {
    let _one_at_a_time = lock(&IPV6_LOOPBACK);
    over_udp(
        async |file| {
            let config = UdpConfig::new([Ipv6Addr::LOCALHOST.into()]);
            let device = SoftDevice::bind(config).expect("nobody else has IPv6's loopback address");
            let hca = Hca::open(device).pcap(file).await?;
            Ok((hca.clone(), hca))
        },
        file,
    )
}

/// Raw packets of both kinds between two sockets on a subnet. tshark calls the last word of LNH 1 by its IPv6 names.
fn raw_on_subnet(file: &Path) -> Result<(), Failed> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    let talk = async {
        let net = Subnet::star(["ann", "bob"]).await?;
        let (ann, bob): (Link, Link) = (net.device("ann").into(), net.device("bob").into());
        let (ether, ipv6) = (
            RawEtherSocket::bind(&ann, [EtherType::LOCAL_1]).await?,
            RawIpv6Socket::bind(&ann, [NextHeader::UDP]).await?,
        );
        let listener = RawIpv6Socket::bind(&bob, [NextHeader::UDP]).await?;
        let group = Group::ipv6("ff02::1")?;
        let _held = listener.join(&group).await?;
        let station = LinkAddress::new(bob.address().as_bytes()).ok_or("an address")?;
        ether.send_to(b"hello", &EtherDest { ether_type: EtherType::LOCAL_1, to: station }).await?;
        let udp = [0x04, 0xd2, 0x16, 0x2e, 0, 13, 0x12, 0x34, b'a', b'b', b'c', b'd', b'e'];
        ipv6.send_to(&udp, &group.ipv6_dest(NextHeader::UDP).ok_or("a group")?).await?;
        assert_eq!(listener.recv().await?.data[..], udp);
        net.write_pcap(file)?;
        Ok::<_, Box<dyn std::error::Error>>(())
    };
    runtime.map_err(|error| error.to_string())?.block_on(talk).map_err(|error| chain(&*error))?;
    let frames = tshark(file)?;
    let [ether, ipv6] = &frames[..] else { return Err(format!("{} frames", frames.len()).into()) };
    let number = |name, value| (name, Want::Number(value));
    let mut complaints = ether.complaints(&[
        number("infiniband.lrh.lnh", 0),
        number("infiniband.lrh.pktlen", 5),
        number("infiniband.lrh.slid", 2),
        number("infiniband.lrh.dlid", 3),
        number("infiniband.rwh.etype", 0x88b5),
    ]);
    complaints.extend(ipv6.complaints(&[
        number("infiniband.lrh.lnh", 1),
        number("infiniband.lrh.pktlen", 16),
        number("infiniband.lrh.dlid", 0xc000),
        number("ipv6.plen", 13),
        number("ipv6.nxt", 17),
        number("ipv6.hlim", 1),
        number("udp.srcport", 1234),
        number("udp.dstport", 5678),
        number("udp.length", 13),
    ]));
    none(complaints)
}

/// A link between two switches while a manager sweeps and is asked for a path, which a connection takes, and makes a group
/// that is used.
fn management_of_a_subnet(file: &Path) -> Result<(), Failed> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    let talk = async {
        let net = Subnet::builder().seed(1).switch("left").switch("right").link("left/9", "right/9");
        let net = net.hca("ann").link("ann", "left").hca("bob").link("bob", "right").managed().await?;
        // The first sweep came before there was time. Now a switch is as new.
        net.remove_switch("right");
        tokio::time::sleep(Duration::from_secs(30)).await;
        net.put_switch_back("right");
        tokio::time::sleep(Duration::from_secs(30)).await;
        let (ann, bob) = (Hca::open(net.device("ann")).await?, Hca::open(net.device("bob")).await?);
        let path = bob.sa().path(ann.gid()).await?;
        let listener = Listener::bind(SID).device(&ann).await?;
        let dialled = bob.path_to(ann.gid()).service_id(SID).await?;
        let accept = async { Ok::<_, ibcm::Error>(listener.accept().await?.accept().await?) };
        let (here, there) = tokio::try_join!(async { Ok(Connection::connect(dialled).await?) }, accept)?;
        here.send_copy(b"to you").await?;
        assert_eq!(there.recv().await?.ok_or("closed")?[..], b"to you"[..]);
        here.disconnect().await;
        let (near, far) = (ud::Socket::open(&bob).await?, ud::Socket::open(&ann).await?);
        let mgid: Gid = "ff15:a01b::7".parse()?;
        far.join(mgid).await?;
        let group = near.join(mgid).await?;
        tokio::time::sleep(Duration::from_secs(1)).await;
        near.send_copy(&group, b"to all").await?;
        assert_eq!(far.recv().await?[..], b"to all"[..]);
        net.write_pcap_of_link("left/9", file)?;
        Ok::<_, Box<dyn std::error::Error>>(*path.record())
    };
    let path = runtime.map_err(|error| error.to_string())?.block_on(talk).map_err(|error| chain(&*error))?;
    let frames = tshark(file)?;
    let mut complaints: Vec<String> = frames.iter().flat_map(|frame| frame.complaints(&[])).collect();
    let number = |name, value: u64| (name, Want::Number(value));
    let gid = |name, gid: Gid| (name, Want::Text(Ipv6Addr::from(gid.0).to_string()));
    let mgid: Gid = "ff15:a01b::7".parse().map_err(|_| "a GID")?;
    let (bob, sm) = (u64::from(path.slid.0), 1);
    // Class, method, attribute, and what the last packet of that kind says: first what the manager reads and writes at the
    // switch behind the link, then what bob asks its SA.
    let (directed, sa, answer) = (0x81, 0x03, 0x81);
    let wanted = [
        ((directed, answer, 0x12), vec![number("infiniband.switchinfo.linearfdbtop", bob)]),
        (
            (directed, 0x02, 0x15),
            vec![number("infiniband.portinfo.portstate", 4), number("infiniband.portinfo.mastersmlid", sm)],
        ),
        (
            (sa, answer, 0x35),
            vec![
                number("infiniband.lrh.slid", sm),
                number("infiniband.lrh.dlid", bob),
                number("infiniband.pathrecord.slid", bob),
                number("infiniband.pathrecord.dlid", path.dlid.0.into()),
                gid("infiniband.pathrecord.sgid", path.sgid),
                gid("infiniband.pathrecord.dgid", path.dgid),
                number("infiniband.pathrecord.p_key", path.pkey.0.into()),
                number("infiniband.pathrecord.mtu", path.mtu.0.into()),
                number("infiniband.pathrecord.rate", path.rate.0.into()),
                number("infiniband.pathrecord.packetlifetime", path.packet_life_time.get().into()),
            ],
        ),
        (
            (sa, answer, 0x38),
            vec![
                gid("infiniband.mcmemberrecord.mgid", mgid),
                gid("infiniband.mcmemberrecord.portgid", path.sgid),
                number("infiniband.mcmemberrecord.mlid", 0xc000),
                number("infiniband.mcmemberrecord.q_key", ud::DEFAULT_QKEY.0.into()),
                number("infiniband.mcmemberrecord.joinstate", 1),
            ],
        ),
        (
            (0x07, 0x03, 0x10),
            vec![
                number("infiniband.cm.req.serviceid", SID.get()),
                number("infiniband.cm.req.prim_locallid", bob),
                number("infiniband.cm.req.prim_remotelid", path.dlid.0.into()),
            ],
        ),
    ];
    let last = |class: u64, method: u64, attribute: u64| {
        let fields = [
            number("infiniband.mad.mgmtclass", class),
            number("infiniband.mad.method", method),
            number("infiniband.mad.attributeid", attribute),
        ];
        let found = frames.iter().rfind(|frame| frame.complaints(&fields).is_empty());
        found.ok_or_else(|| {
            format!("no MAD of class {class:#x}, method {method:#x}, attribute {attribute:#x}")
        })
    };
    for ((class, method, attribute), fields) in wanted {
        complaints.extend(last(class, method, attribute)?.complaints(&fields));
    }
    // The tables that the manager writes: LIDs 1 to 4 are the two switches, ann and bob; the group's packets go both ways.
    let tables = [
        (
            0x19,
            "infiniband.linearforwardingtable.port",
            &["0xff", "0x09", "0x00", "0x09", "0x01", "0xff"][..],
        ),
        (0x1b, "infiniband.multicastforwardingtable.portmask", &["0x0202", "0x0000"]),
    ];
    for (attribute, field, entries) in tables {
        let seen = last(directed, 0x02, attribute)?.values(field);
        if !seen.starts_with(&entries.iter().map(ToString::to_string).collect::<Vec<_>>()) {
            complaints.push(format!("{field} is {seen:?}"));
        }
    }
    let is_message = |frame: &&Decoded| frame.complaints(&[number("infiniband.bth.opcode", 4)]).is_empty();
    let message = frames.iter().find(is_message).ok_or("no message of a reliable connection")?;
    complaints.extend(message.complaints(&[
        number("infiniband.lrh.slid", bob),
        number("infiniband.lrh.dlid", path.dlid.0.into()),
        ("data.data", Want::Bytes(b"to you\0\0".to_vec())),
    ]));
    let datagram = frames.last().ok_or("no frames")?;
    complaints.extend(datagram.complaints(&[
        number("infiniband.lrh.lnh", 3),
        number("infiniband.lrh.slid", bob),
        number("infiniband.lrh.dlid", 0xc000),
        gid("infiniband.grh.sgid", path.sgid),
        gid("infiniband.grh.dgid", mgid),
        number("infiniband.bth.destqp", 0xff_ffff),
        number("infiniband.deth.q_key", ud::DEFAULT_QKEY.0.into()),
        ("data.data", Want::Bytes(b"to all\0\0".to_vec())),
    ]));
    none(complaints)
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
