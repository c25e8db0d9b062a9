//! The driver between an HCA of two ports and agents that take what the test lets them.
#![cfg(feature = "soft")]

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use ibdev::ReceivedMad;
use ibsoft::sim::Subnet;
use ibwire::{Gid, Mtu, PKey, PathRecord, Qpn, ServiceId};
use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;

use super::*;
use crate::hca::Hca;
use crate::port::first_gid;
use crate::proto::{Config, ConnHandle, Connect, Endpoint, LocalCa, Path, State};
use crate::sync::lock;
use crate::ud;

/// What is between a test and an agent.
#[derive(Debug, Default)]
struct Wire {
    /// Room in the send window.
    room: AtomicUsize,
    gone: std::sync::atomic::AtomicBool,
    sent: Mutex<Vec<OutgoingMad>>,
}

#[derive(Debug)]
struct Agent(Arc<Wire>);

impl MadAgent for Agent {
    fn send(&self, batch: &mut VecDeque<OutgoingMad>) -> Result<(), DeviceError> {
        if self.0.gone.load(Ordering::Relaxed) {
            return Err(DeviceError::Gone);
        }
        let taken = batch.len().min(self.0.room.load(Ordering::Relaxed));
        self.0.room.fetch_sub(taken, Ordering::Relaxed);
        lock(&self.0.sent).extend(batch.drain(..taken));
        Ok(())
    }

    fn poll_ready(&self, _cx: &mut Context<'_>) -> Poll<Result<(), DeviceError>> {
        match self.0.room.load(Ordering::Relaxed) {
            0 => Poll::Pending,
            _ => Poll::Ready(Ok(())),
        }
    }

    fn poll_recv(
        &self,
        _cx: &mut Context<'_>,
        _out: &mut Vec<ReceivedMad>,
        _max: usize,
    ) -> Poll<Result<(), DeviceError>> {
        Poll::Pending
    }
}

/// An HCA of two ports whose agents are the test's.
struct Rig {
    _net: Subnet,
    shared: Arc<Shared>,
    driver: Driver,
    wires: [Arc<Wire>; 2],
    ports: Vec<LocalPort>,
    next_qpn: u32,
}

impl Rig {
    async fn new() -> Self {
        let net = Subnet::rails(2, ["here"]).await.unwrap();
        let device: Arc<dyn Device> = Arc::new(net.device("here"));
        let ports: Vec<_> = futures::future::try_join_all((1..=2).map(|port| device.read_port(port)))
            .await
            .unwrap()
            .into_iter()
            .map(local_port)
            .collect();
        let endpoint = Endpoint::new(Config::default(), LocalCa::new(device.attr(), ports.clone()), [1; 32]);
        let runtime = tokio::runtime::Handle::current();
        let shared =
            Shared::new(endpoint, Arc::clone(&device), None, runtime, ChaCha8Rng::from_seed([1; 32]));
        let wires = [(); 2].map(|()| Arc::<Wire>::default());
        let agent =
            |(port, wire): (u8, &Arc<Wire>)| (port, Box::new(Agent(Arc::clone(wire))) as Box<dyn MadAgent>);
        let agents = (1..).zip(&wires).map(agent).collect();
        let driver = Driver::new(Arc::clone(&shared), device, agents, None);
        Self { _net: net, shared, driver, wires, ports, next_qpn: 0x100 }
    }

    /// Asks for a connection by this port.
    fn connect(&mut self, port: u8) -> ConnHandle {
        let record = PathRecord {
            sgid: first_gid(&self.ports[usize::from(port) - 1]),
            dgid: Gid([0xfd; 16]),
            hop_limit: 64,
            pkey: PKey::DEFAULT,
            mtu: Mtu::B256,
            ..PathRecord::default()
        };
        self.next_qpn += 1;
        let connect = Connect::new(Path { port, record }, ServiceId::new(1), Qpn::truncate(self.next_qpn));
        self.shared.command(|engine| engine.endpoint.connect(now(), connect)).unwrap()
    }

    /// Lets the driver do what it can.
    fn run(&mut self) {
        assert!(self.poll().is_pending());
    }

    /// Polls it and, if it lets other commands come first, once more.
    fn poll(&mut self) -> Poll<()> {
        let (mut driver, mut cx) =
            (Pin::new(&mut self.driver), Context::from_waker(std::task::Waker::noop()));
        match driver.as_mut().poll(&mut cx) {
            Poll::Pending if driver.yielded => driver.as_mut().poll(&mut cx),
            done => done,
        }
    }

    fn sent(&self, port: u8) -> usize {
        lock(&self.wires[usize::from(port) - 1].sent).len()
    }

    fn give_room(&self, port: u8, room: usize) {
        self.wires[usize::from(port) - 1].room.store(room, Ordering::Relaxed);
    }
}

#[tokio::test(start_paused = true)]
async fn a_port_whose_window_is_full_holds_up_no_other() {
    let mut rig = Rig::new().await;
    rig.give_room(2, 10_000);
    for (port, count) in [(1, 1000), (2, 500)] {
        for _ in 0..count {
            rig.connect(port);
        }
    }
    rig.run();
    assert_eq!((rig.sent(1), rig.sent(2)), (0, 500));
    assert_eq!(rig.driver.ports[0].queue.len(), TRANSMIT_QUEUE);

    // Nothing is lost: with room for all of them they go out, each by its port.
    rig.give_room(1, 300);
    rig.run();
    assert_eq!(rig.sent(1), 300);
    rig.give_room(1, 10_000);
    rig.run();
    assert_eq!((rig.sent(1), rig.sent(2)), (1000, 500));
    for (port, wire) in (1..).zip(&rig.wires) {
        assert!(lock(&wire.sent).iter().all(|mad| mad.to.av.port == port));
    }
    assert_eq!(rig.shared.engine().endpoint.stats().mads_sent, 1500);
}

/// The connection is found by the queue pair's number, which no other can have before TimeWait is over.
#[tokio::test(start_paused = true)]
async fn a_queue_pair_finds_its_connection() {
    let mut rig = Rig::new().await;
    let conns = [1, 2].map(|port| rig.connect(port));
    let mut engine = rig.shared.engine();
    let path = Path { port: 1, record: PathRecord::default() };
    let [first, second] = conns.map(|conn| engine.new_slot(conn, ServiceId::new(1), &path, None));
    drop(engine);
    let found = |qpn| rig.shared.slot_of_qp(Qpn::truncate(qpn));
    assert!(found(0x101).is_some_and(|slot| Arc::ptr_eq(&slot, &first)));
    assert!(found(0x102).is_some_and(|slot| Arc::ptr_eq(&slot, &second)));
    assert!(found(0x103).is_none());
}

#[tokio::test(start_paused = true)]
async fn what_a_device_does_not_send_any_more_is_counted() {
    let mut rig = Rig::new().await;
    for _ in 0..1000 {
        rig.connect(1);
    }
    rig.run();
    rig.wires[0].gone.store(true, Ordering::Relaxed);
    let conn = rig.connect(1);
    _ = rig.poll();
    assert_eq!(rig.shared.counters.mads_unsent.load(Ordering::Relaxed), TRANSMIT_QUEUE as u64);
    let engine = rig.shared.engine();
    assert_eq!((engine.phase, engine.endpoint.state(conn)), (Phase::Gone, None));
    assert_eq!(engine.endpoint.count(State::ReqSent), 0);
}

/// Nor is it sent later: the engine sends again what it wants answered.
#[tokio::test(start_paused = true)]
async fn a_port_that_is_down_sends_nothing() {
    let mut rig = Rig::new().await;
    rig.give_room(1, 10);
    rig.connect(1);
    let port = rig.ports[0].clone();
    rig.shared.engine().endpoint.update_port(LocalPort { active: false, ..port.clone() });
    rig.run();
    assert_eq!((rig.sent(1), rig.shared.counters.mads_unsent.load(Ordering::Relaxed)), (0, 1));
    rig.shared.engine().endpoint.update_port(port);
    rig.run();
    assert_eq!(rig.sent(1), 0);
    rig.connect(1);
    rig.run();
    assert_eq!(rig.sent(1), 1);
}

/// An HCA that closes first sends what waits for a port's window, such as its last DREPs.
#[tokio::test(start_paused = true)]
async fn what_waits_for_the_window_goes_out_before_the_end() {
    let mut rig = Rig::new().await;
    rig.connect(1);
    rig.run();
    rig.shared.engine().phase = Phase::Closing;
    rig.run();
    rig.give_room(1, 1);
    assert!(rig.poll().is_ready());
    assert_eq!(rig.sent(1), 1);
}

/// Of a datagram socket nothing else tells: receives that are posted do not complete then.
#[tokio::test(start_paused = true)]
async fn a_socket_whose_queue_pair_fails_by_itself_says_so() {
    let rig = Rig::new().await;
    let hca = Hca::from_shared(Arc::clone(&rig.shared));
    let (one, other) = (ud::Socket::open(&hca).await.unwrap(), ud::Socket::open(&hca).await.unwrap());
    rig.driver.qp_error(one.qpn(), Status::LOC_QP_OP_ERR);
    let second = std::time::Duration::from_secs(1);
    let ended = tokio::time::timeout(second, one.recv()).await.expect("it has ended");
    assert!(matches!(ended, Err(RecvError::Broken(Status::LOC_QP_OP_ERR))), "{ended:?}");
    assert!(tokio::time::timeout(second, other.recv()).await.is_err(), "it goes on");
}
