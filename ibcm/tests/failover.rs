//! Alternate paths: what one cable carries goes on by another one.

mod common;
#[path = "../../ibsoft/tests/common/loopback.rs"]
mod loopback;

use std::net::IpAddr;
use std::time::Duration;

use common::{Result, SID};
use futures::StreamExt;
use ibcm::handshake::{self, LocalQp};
use ibcm::qp::Transition;
use ibcm::sim::Subnet;
use ibcm::{
    ApStatus, ConnectError, Connection, ConnectionEvent, DeviceSpec, FailoverAccepted, Hca, HcaEvent, How,
    Listener, Path, PathError,
};
use ibsoft::{SoftDevice, UdpConfig};
use ibwire::TimeCode;
use loopback::Loopback;

/// Two HCAs of two ports each: the first ports see each other, and so do the second.
struct Rails {
    net: Subnet,
    client: Hca,
    server: Hca,
}

impl Rails {
    async fn new(seed: u64) -> Result<Self> {
        let net = Subnet::rails(2, ["client", "server"]).seed(seed).await?;
        let (client, server) =
            (Hca::open(net.device("client")).await?, Hca::open(net.device("server")).await?);
        Ok(Self { net, client, server })
    }
}

/// From our port to the peer's port with the same number.
async fn path(from: &Hca, to: &Hca, port: usize) -> Result<Path> {
    Ok(from.ports()[port - 1].path_to(to.ports()[port - 1].gid()).await?)
}

/// A connection by the first ports.
async fn connect(
    client: &Hca,
    server: &Hca,
    alternate: Option<&Path>,
    takes: bool,
) -> Result<(Connection, Connection)> {
    let listener = Listener::bind(SID).device(server).await?;
    let primary = path(client, server, 1).await?.with_service(SID);
    let mut connect = Connection::connect(primary).retry_count(1);
    if let Some(alternate) = alternate {
        connect = connect.alternate_path(alternate);
    }
    let accept = async { Ok::<_, ibcm::Error>(listener.accept().await?.accept().failover(takes).await?) };
    Ok(tokio::try_join!(async { Ok(connect.await?) }, accept)?)
}

/// One message each way: from then on both queue pairs are ready to migrate.
async fn ping_pong(a: &Connection, b: &Connection) -> Result {
    for (from, to) in [(a, b), (b, a)] {
        from.send_copy(b"ping").await?;
        assert_eq!(&to.recv().await?.ok_or("closed")?[..], b"ping");
    }
    Ok(())
}

/// The next event that tells of a migration.
async fn migrated(conn: &Connection) -> Result<u8> {
    let mut events = conn.events();
    let mut last = None;
    while last.is_none() {
        if let ConnectionEvent::Migrated { port, .. } = events.next().await.ok_or("the connection ended")? {
            last = Some(port);
        }
    }
    Ok(last.unwrap_or(0))
}

#[tokio::test(start_paused = true)]
async fn data_flows_on_while_a_port_goes_down_and_the_old_path_is_loaded_again() -> Result {
    let Rails { net, client, server } = Rails::new(1).await?;
    let spare = path(&client, &server, 2).await?;
    let (a, b) = connect(&client, &server, Some(&spare), true).await?;
    for conn in [&a, &b] {
        assert_eq!(conn.failover(), Some(FailoverAccepted::ACCEPTED));
    }
    let served = tokio::spawn(async move {
        let mut count = 0u32;
        while let Some(message) = b.recv().await? {
            assert_eq!(message[..], count.to_be_bytes());
            count += 1;
            b.send(message.into_buf()).await?;
        }
        Ok::<_, ibcm::Error>((count, b))
    });
    for n in 0..300u32 {
        match n {
            100 => net.port_down("server", 1),
            200 => {
                // The first path works again and is the spare one now; then the second fails.
                net.port_up("server", 1);
                let old = path(&client, &server, 1).await?;
                a.load_alternate_path(&old).await?;
            }
            210 => net.port_down("client", 2),
            _ => {}
        }
        a.send_copy(&n.to_be_bytes()).await?;
        assert_eq!(a.recv().await?.ok_or("closed")?[..], n.to_be_bytes());
    }
    let ports: Vec<_> = a
        .events()
        .take(3)
        .map(|event| match event {
            ConnectionEvent::Migrated { port, primary } => Some((port, primary.dgid)),
            ConnectionEvent::AlternateLoaded => None,
            other => panic!("{other:?}"),
        })
        .collect()
        .await;
    let gid = |port: usize| server.ports()[port - 1].gid();
    assert_eq!(ports, [Some((2, gid(2))), None, Some((1, gid(1)))]);
    // The DREQ goes by the path that works.
    let how = a.disconnect().await;
    assert_eq!(how.how, How::Confirmed);
    let (count, _b) = served.await??;
    assert_eq!(count, 300);
    tokio::join!(client.close(), server.close());
    net.quiet().await?;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn what_a_peer_declines_is_no_error() -> Result {
    let Rails { net: _net, client, server } = Rails::new(2).await?;
    let spare = path(&client, &server, 2).await?;
    let (a, b) = connect(&client, &server, Some(&spare), false).await?;
    assert_eq!(
        (a.failover(), b.failover()),
        (Some(FailoverAccepted::REJECTED), Some(FailoverAccepted::REJECTED))
    );
    ping_pong(&a, &b).await?;
    let refused = a.load_alternate_path(&spare).await;
    assert!(matches!(refused, Err(PathError::Refused { status: ApStatus::UNSUPPORTED, .. })), "{refused:?}");
    assert!(matches!(a.load_alternate_path(&spare).await, Err(PathError::PeerUnable)));
    ping_pong(&a, &b).await
}

#[tokio::test(start_paused = true)]
async fn what_this_side_cannot_have_is_refused_before_anything_is_sent() -> Result {
    let Rails { net: _net, client, server } = Rails::new(3).await?;
    let primary = path(&client, &server, 1).await?;
    let other = path(&server, &client, 2).await?;
    for alternate in [&primary, &other] {
        let refused = Connection::connect(primary.with_service(SID)).alternate_path(alternate).await;
        assert!(matches!(refused, Err(ConnectError::Invalid(_))), "{refused:?}");
    }
    assert_eq!(client.stats().cm.mads_sent, 0);
    let (a, b) = connect(&client, &server, None, true).await?;
    assert_eq!((a.failover(), b.failover()), (None, None));
    assert!(matches!(a.load_alternate_path(&primary).await, Err(PathError::Invalid(_))));
    let back = path(&server, &client, 2).await?;
    assert!(matches!(b.load_alternate_path(&back).await, Err(PathError::PassiveSide)));
    a.load_alternate_path(&path(&client, &server, 2).await?).await?;
    assert!(matches!(a.load_alternate_path(&path(&client, &server, 2).await?).await, Err(PathError::Loaded)));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn cm_t74_a_peer_that_is_gone_does_not_answer() -> Result {
    let Rails { net, client, server } = Rails::new(4).await?;
    let spare = path(&client, &server, 2).await?;
    let (a, _b) = connect(&client, &server, None, true).await?;
    // Idle, the connection notices nothing; the LAP is lost each time.
    net.port_down("server", 1);
    let lost = a.load_alternate_path(&spare).await;
    let Err(PathError::Unanswered { sent, busy: false, .. }) = lost else { panic!("{lost:?}") };
    assert!(sent > 1);
    net.port_up("server", 1);
    assert!(matches!(a.load_alternate_path(&spare).await, Err(PathError::PeerUnable)));
    ping_pong(&a, &_b).await
}

/// A dropped future changes nothing: the path is loaded all the same.
#[tokio::test(start_paused = true)]
async fn a_load_that_nobody_waits_for() -> Result {
    let Rails { net, client, server } = Rails::new(5).await?;
    let spare = path(&client, &server, 2).await?;
    let (a, b) = connect(&client, &server, None, true).await?;
    let waited = tokio::time::timeout(Duration::ZERO, a.load_alternate_path(&spare)).await;
    assert!(waited.is_err());
    for conn in [&a, &b] {
        assert_eq!(conn.events().next().await, Some(ConnectionEvent::AlternateLoaded));
    }
    ping_pong(&a, &b).await?;
    net.port_down("client", 1);
    ping_pong(&a, &b).await?;
    assert_eq!((migrated(&a).await?, migrated(&b).await?), (2, 2));
    Ok(())
}

/// A port that comes up counts once its HCA has told so.
#[tokio::test(start_paused = true)]
async fn a_path_of_a_port_that_has_just_come_up() -> Result {
    let Rails { net, client, server } = Rails::new(7).await?;
    let (first, spare) = (path(&client, &server, 1).await?, path(&client, &server, 2).await?);
    let (a, b) = connect(&client, &server, Some(&spare), true).await?;
    let mut events = client.events();
    ping_pong(&a, &b).await?;
    net.port_down("client", 1);
    ping_pong(&a, &b).await?;
    net.port_up("client", 1);
    let early = a.load_alternate_path(&first).await;
    assert!(matches!(early, Err(PathError::PortDown { port: 1 })), "{early:?}");
    let came_up = async { while events.next().await != Some(HcaEvent::PortUp { port: 1 }) {} };
    tokio::time::timeout(Duration::from_secs(1), came_up).await?;
    a.load_alternate_path(&first).await?;
    ping_pong(&a, &b).await
}

/// Queue pairs of the program's own: it loads the paths, and may say that they migrated.
#[tokio::test(start_paused = true)]
async fn sessions_load_paths_into_queue_pairs_of_their_own() -> Result {
    let Rails { net: _net, client, server } = Rails::new(6).await?;
    let listener = Listener::bind(SID).device(&server).await?;
    let passive = {
        let server = server.clone();
        async move {
            let qp = server.verbs().create_rc_qp().await?;
            let offer = listener.accept().await?.prepare(LocalQp::rc(qp.qpn()))?;
            let attrs = offer.attrs();
            qp.modify(attrs.init).await?;
            qp.modify(attrs.rtr).await?;
            qp.modify(attrs.rts).await?;
            Ok::<_, ibcm::Error>((offer.reply().await?, qp))
        }
    };
    let active = async {
        let spare = path(&client, &server, 2).await.map_err(|_| ibcm::Error::Closed)?;
        let primary = path(&client, &server, 1).await.map_err(|_| ibcm::Error::Closed)?.with_service(SID);
        let qp = client.verbs().create_rc_qp().await?;
        qp.modify(primary.qp_init()?).await?;
        let reply = handshake::connect(primary, LocalQp::rc(qp.qpn())).alternate_path(&spare).await?;
        assert!(reply.attrs().rts.alternate.is_some());
        qp.modify(reply.attrs().rtr).await?;
        qp.modify(reply.attrs().rts).await?;
        Ok((reply.ready().await?, qp))
    };
    let ((b, b_qp), (a, a_qp)) = tokio::try_join!(passive, active)?;
    assert_eq!(
        (a.failover(), b.failover()),
        (Some(FailoverAccepted::ACCEPTED), Some(FailoverAccepted::ACCEPTED))
    );

    // The programs say that their queue pairs have migrated; the old path is refused, then loaded.
    b.migrated()?;
    let reload = async { Ok::<_, ibcm::Error>(a.migrated_and_reload().await) };
    let refuse = async {
        let request = b.path_request().await.ok_or(ibcm::Error::Closed)?;
        assert_eq!((request.attr().av.port, request.record().dgid), (1, client.ports()[0].gid()));
        request.reject(ApStatus::REJECTED);
        Ok(())
    };
    let (refused, ()) = tokio::try_join!(reload, refuse)?;
    assert!(matches!(refused, Err(PathError::Refused { status: ApStatus::REJECTED, .. })), "{refused:?}");
    assert!(matches!(a.migrated(), Err(PathError::NotLoaded)));
    let old = path(&client, &server, 1).await?;
    let load = async { Ok::<_, ibcm::Error>(a.load_alternate_path(&old).await?) };
    let accept = async {
        let request = b.path_request().await.ok_or(ibcm::Error::Closed)?;
        let attr = *request.attr();
        request.accept()?;
        Ok(attr)
    };
    let (ours, theirs) = tokio::try_join!(load, accept)?;
    assert_eq!((ours.av.port, theirs.av.port), (1, 1));
    // These queue pairs never migrated: what is armed there cannot be replaced.
    assert!(
        a_qp.modify(Transition::Migrate).await.is_err() && b_qp.modify(Transition::Migrate).await.is_err()
    );
    a.finish().await;
    b.finish().await;
    Ok(())
}

/// Addresses of two HCAs of two ports each.
fn address(lo: Loopback, host: u8, port: u8) -> IpAddr {
    lo.address(16 * port + host).into()
}

/// Over UDP a port goes down while messages go to and fro; then the old path is loaded again, and the other port goes down.
#[tokio::test]
async fn hca_t50_data_flows_on_over_udp_while_a_port_goes_down() -> Result {
    let lo = Loopback::claim();
    let bind = |host| {
        let ports = [1, 2].map(|port| vec![address(lo, host, port)]);
        SoftDevice::bind(UdpConfig::with_ports(ports.to_vec()))
    };
    let devices = [bind(1)?, bind(2)?];
    let (client, server) = (Hca::open(devices[0].clone()).await?, Hca::open(devices[1].clone()).await?);
    // As short as it gets: a path that times out costs two ack timeouts.
    let short = async |port| -> Result<Path> {
        let mut record = *path(&client, &server, port).await?.record();
        record.packet_life_time = TimeCode::truncate(12).into();
        Ok(Path::from_record(&client.ports()[port - 1], record))
    };
    let (first, spare) = (short(1).await?, short(2).await?);
    let listener = Listener::bind(SID).device(&server).await?;
    let echo = tokio::spawn(async move {
        let conn = listener.accept().await?.accept().await?;
        let mut count = 0u32;
        while let Some(message) = conn.recv().await? {
            assert_eq!(message[..], count.to_be_bytes());
            count += 1;
            conn.send(message.into_buf()).await?;
        }
        Ok::<_, ibcm::Error>(count)
    });
    let connect = Connection::connect(first.with_service(SID)).alternate_path(&spare).retry_count(1);
    let conn = connect.await?;
    let rounds = async {
        for n in 0..300u32 {
            match n {
                100 => devices[1].set_port_up(1, false)?,
                200 => {
                    assert_eq!(migrated(&conn).await?, 2);
                    devices[1].set_port_up(1, true)?;
                    conn.load_alternate_path(&first).await?;
                }
                210 => devices[0].set_port_up(2, false)?,
                _ => {}
            }
            conn.send_copy(&n.to_be_bytes()).await?;
            assert_eq!(conn.recv().await?.ok_or("closed")?[..], n.to_be_bytes());
        }
        Result::Ok(())
    };
    tokio::time::timeout(Duration::from_secs(60), rounds).await??;
    assert_eq!(conn.disconnect().await.how, How::Confirmed);
    assert_eq!(echo.await??, 300);
    Ok(())
}

/// Over UDP, with two addresses each.
#[tokio::test]
async fn two_ports_over_udp() -> Result {
    let lo = Loopback::claim();
    let open = |host| Hca::open(DeviceSpec::soft_ports([1, 2].map(|port| vec![address(lo, host, port)])));
    let (client, server) = (open(1).await?, open(2).await?);
    let spare = path(&client, &server, 2).await?;
    let (a, b) = connect(&client, &server, Some(&spare), true).await?;
    assert_eq!(a.failover(), Some(FailoverAccepted::ACCEPTED));
    ping_pong(&a, &b).await?;
    assert!(matches!(a.load_alternate_path(&spare).await, Err(PathError::Loaded)));
    a.disconnect().await;
    Ok(())
}
