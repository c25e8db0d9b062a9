//! A device that is not like the others: slow, forgetful, or without what they have.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use async_trait::async_trait;
use ibdev::qp::{QpSpec, Transition};
use ibdev::{
    Access, AddressHandle, AddressVector, AgentSpec, Buf, CompletionQueue, Device, DeviceAttr, DeviceError,
    DeviceEvent, GidEntry, MadAgent, PortAttr, PostError, ProtectionDomain, QueuePair, RecvWr, Region,
    SendWr, SharedMemory, SharedReceiveQueue,
};
use ibwire::{Gid, Lid, PKey, Qpn};

/// Another device with other attributes, whose slow calls take 10 ms, whose allocations and attachments to groups fail as often
/// as they are told to, and whose queue pairs do not tell when they have heard their peers, nor of first packets if so told.
#[derive(Debug, Clone)]
pub struct Odd(Arc<Parts>);

#[derive(Debug)]
struct Parts {
    device: Arc<dyn Device>,
    attr: DeviceAttr,
    /// What comes of the next allocations; they succeed when none is left.
    outcomes: Mutex<VecDeque<Result<(), DeviceError>>>,
    /// Attachments that will fail.
    refused: Mutex<u32>,
    /// Where queue pairs are attached.
    attached: Mutex<Vec<(Gid, Lid)>>,
    /// First packets are not told of.
    quiet: AtomicBool,
    /// Events of its own, and whom to wake for them.
    events: Mutex<(VecDeque<DeviceEvent>, Option<Waker>)>,
    /// Receives that were posted to queue pairs.
    receives: AtomicUsize,
}

impl Odd {
    pub fn new(device: impl Device + 'static, change: impl FnOnce(&mut DeviceAttr)) -> Self {
        let mut attr = device.attr().clone();
        change(&mut attr);
        Self(Arc::new(Parts {
            device: Arc::new(device),
            attr,
            outcomes: Mutex::default(),
            refused: Mutex::default(),
            attached: Mutex::default(),
            quiet: AtomicBool::new(false),
            events: Mutex::default(),
            receives: AtomicUsize::new(0),
        }))
    }

    pub fn as_device(&self) -> Arc<dyn Device> {
        Arc::new(self.clone())
    }

    /// The next allocation fails.
    pub fn fail_next(&self) {
        self.0.outcomes.lock().expect("no panic").push_back(Err(DeviceError::Unsupported { what: "memory" }));
    }

    /// The next attachments to groups fail.
    pub fn refuse_groups(&self, count: u32) {
        *self.0.refused.lock().expect("no panic") = count;
    }

    /// First packets are not told of from here on.
    pub fn tell_no_first_packets(&self) {
        self.0.quiet.store(true, Ordering::Relaxed);
    }

    /// The device reports this.
    pub fn report(&self, event: DeviceEvent) {
        let waker = {
            let mut events = self.0.events.lock().expect("no panic");
            events.0.push_back(event);
            events.1.take()
        };
        waker.into_iter().for_each(Waker::wake);
    }

    /// How many receives were posted to queue pairs so far.
    pub fn receives(&self) -> usize {
        self.0.receives.load(Ordering::Relaxed)
    }

    /// The groups that queue pairs are attached to.
    pub fn attached(&self) -> Vec<(Gid, Lid)> {
        self.0.attached.lock().expect("no panic").clone()
    }
}

async fn slow() {
    tokio::time::sleep(Duration::from_millis(10)).await;
}

#[derive(Debug)]
struct OddDomain(Arc<dyn ProtectionDomain>, Odd);

#[async_trait]
impl Device for Odd {
    fn attr(&self) -> &DeviceAttr {
        &self.0.attr
    }

    fn port(&self, port: u8) -> Result<PortAttr, DeviceError> {
        self.0.device.port(port)
    }

    fn gids(&self, port: u8) -> Result<Vec<GidEntry>, DeviceError> {
        self.0.device.gids(port)
    }

    fn pkeys(&self, port: u8) -> Result<Vec<PKey>, DeviceError> {
        self.0.device.pkeys(port)
    }

    fn open_agent(&self, spec: AgentSpec) -> Result<Box<dyn MadAgent>, DeviceError> {
        self.0.device.open_agent(spec)
    }

    fn poll_event(&self, cx: &mut Context<'_>) -> Poll<DeviceEvent> {
        {
            let mut events = self.0.events.lock().expect("no panic");
            if let Some(event) = events.0.pop_front() {
                return Poll::Ready(event);
            }
            events.1 = Some(cx.waker().clone());
        }
        loop {
            match self.0.device.poll_event(cx) {
                Poll::Ready(DeviceEvent::CommEstablished(_)) if self.0.quiet.load(Ordering::Relaxed) => {}
                event => return event,
            }
        }
    }

    async fn create_cq(&self, capacity: u32) -> Result<Arc<dyn CompletionQueue>, DeviceError> {
        slow().await;
        self.0.device.create_cq(capacity).await
    }

    fn domain(&self) -> Arc<dyn ProtectionDomain> {
        Arc::new(OddDomain(self.0.device.domain(), self.clone()))
    }

    async fn create_domain(&self) -> Result<Arc<dyn ProtectionDomain>, DeviceError> {
        slow().await;
        Ok(Arc::new(OddDomain(self.0.device.create_domain().await?, self.clone())))
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.0.device.counters()
    }

    fn as_any(&self) -> &dyn Any {
        self.0.device.as_any()
    }
}

#[derive(Debug)]
struct OddQp(Arc<dyn QueuePair>, Odd);

#[async_trait]
impl QueuePair for OddQp {
    fn qpn(&self) -> Qpn {
        self.0.qpn()
    }

    async fn modify(&self, transition: Transition) -> Result<(), DeviceError> {
        slow().await;
        self.0.modify(transition).await
    }

    async fn attach(&self, mgid: Gid, mlid: Lid) -> Result<(), DeviceError> {
        slow().await;
        {
            let mut refused = self.1.0.refused.lock().expect("no panic");
            if *refused > 0 {
                *refused -= 1;
                return Err(DeviceError::Unsupported { what: "one more group" });
            }
        }
        self.0.attach(mgid, mlid).await?;
        self.1.0.attached.lock().expect("no panic").push((mgid, mlid));
        Ok(())
    }

    async fn detach(&self, mgid: Gid, mlid: Lid) -> Result<(), DeviceError> {
        slow().await;
        self.1.0.attached.lock().expect("no panic").retain(|group| *group != (mgid, mlid));
        self.0.detach(mgid, mlid).await
    }

    fn post_send(&self, work: &mut VecDeque<SendWr>) -> Result<(), PostError> {
        self.0.post_send(work)
    }

    fn post_recv(&self, work: &mut VecDeque<RecvWr>) -> Result<(), PostError> {
        let before = work.len();
        let result = self.0.post_recv(work);
        self.1.0.receives.fetch_add(before - work.len(), Ordering::Relaxed);
        result
    }
}

#[async_trait]
impl ProtectionDomain for OddDomain {
    async fn create_qp(&self, spec: QpSpec) -> Result<Arc<dyn QueuePair>, DeviceError> {
        slow().await;
        Ok(Arc::new(OddQp(self.0.create_qp(spec).await?, self.1.clone())))
    }

    async fn create_srq(&self, wr: u32, sge: u32) -> Result<Arc<dyn SharedReceiveQueue>, DeviceError> {
        slow().await;
        self.0.create_srq(wr, sge).await
    }

    async fn create_ah(&self, av: AddressVector) -> Result<Arc<dyn AddressHandle>, DeviceError> {
        slow().await;
        self.0.create_ah(av).await
    }

    async fn alloc(&self, count: usize, len: usize) -> Result<Vec<Buf>, DeviceError> {
        slow().await;
        let outcome = self.1.0.outcomes.lock().expect("no panic").pop_front();
        outcome.unwrap_or(Ok(()))?;
        self.0.alloc(count, len).await
    }

    async fn register(&self, memory: SharedMemory, access: Access) -> Result<Region, DeviceError> {
        slow().await;
        self.0.register(memory, access).await
    }

    fn as_any(&self) -> &dyn Any {
        self.0.as_any()
    }
}
