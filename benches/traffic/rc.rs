//! A reliable connection of the software HCA, by the device contract: no connection manager, no layer above.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::net::IpAddr;
use std::sync::Arc;

use ibdev::qp::{Init, QpSpec, QpType, Rtr, Rts, Transition};
use ibdev::{
    Access, AddressVector, Buf, Completion, CompletionQueue, Device, GlobalRoute, QueuePair, RecvWr, Region,
    RemoteAddr, SendOp, SendWr, SharedMemory,
};
use ibsoft::{SoftDevice, UdpConfig};
use ibwire::{Gid, Mtu, Psn, QKey, Qpn, RKey, RnrTimer, TimeCode};

use super::control::words;
use super::{Control, DEPTH, End, MESSAGE, PING, Result, Task, Waiting, Work};

/// Twice as many receives are posted as sends: a message that is acknowledged may come before its receive is posted again.
const RECEIVES: usize = 2 * DEPTH;

/// How often a spinning end looks before other tasks of its thread get their turn.
const LOOKS: u32 = 64;

/// One end: a device with a connected queue pair.
#[derive(Debug)]
pub struct Rc {
    cq: Arc<dyn CompletionQueue>,
    qp: Arc<dyn QueuePair>,
    /// What the other end writes to and reads from.
    _memory: Region,
    remote: RemoteAddr,
    /// For sends, writes and reads.
    free: Vec<Buf>,
    work: VecDeque<SendWr>,
    completions: Vec<Completion>,
    /// Messages that have come and belong to the next task: an acknowledgement may come behind them.
    early: u64,
    device: SoftDevice,
}

impl Rc {
    /// A device on `address`, or on a free one of loopback, connected with that of the other end, which does the same.
    ///
    /// # Errors
    /// The device's and the network's.
    pub async fn open(control: &mut Control, address: Option<IpAddr>, mtu: Mtu) -> Result<Self> {
        let device = SoftDevice::bind(UdpConfig::new(address))?;
        let domain = device.domain();
        let cq = device.create_cq((DEPTH + RECEIVES) as u32).await?;
        let qp = domain.create_qp(QpSpec::new(QpType::Rc, &cq, DEPTH as u32, RECEIVES as u32)).await?;
        let memory = domain.register(SharedMemory::zeroed(DEPTH * MESSAGE), Access::all()).await?;
        let buffers = domain.alloc(RECEIVES, MESSAGE).await?;
        let free = domain.alloc(DEPTH, MESSAGE).await?;

        let (gid, region) = (device.gids(1)?[0].gid, memory.remote());
        let theirs =
            control.swap(format!("{} {} {}", qp.qpn().get(), region.addr(), region.rkey().0)).await?;
        let [qpn, addr, rkey] = words::<u64, 3>(&theirs)?;
        let dgid: Gid = control.swap(gid).await?.parse()?;

        let init = Init { port: 1, pkey_index: 0, access: Access::all(), qkey: QKey::default() };
        let rtr = Rtr {
            av: address_vector(&device, dgid)?,
            path_mtu: mtu,
            dest_qpn: Qpn::truncate(qpn as u32),
            rq_psn: Psn::default(),
            max_dest_rd_atomic: DEPTH as u8,
            min_rnr_timer: RnrTimer::truncate(1),
        };
        let rts = Rts {
            sq_psn: Psn::default(),
            timeout: TimeCode::truncate(17),
            retry_count: 7,
            rnr_retry: 7,
            max_rd_atomic: DEPTH as u8,
            alternate: None,
        };
        for transition in [Transition::Init(init), Transition::Rtr(rtr), Transition::Rts(rts)] {
            qp.modify(transition).await?;
        }
        let mut work = buffers.into_iter().map(|buf| RecvWr::new(0, buf)).collect();
        qp.post_recv(&mut work)?;
        control.swap("ready").await?;
        let remote = RemoteAddr { addr, rkey: RKey(rkey as u32) };
        Ok(Self {
            cq,
            qp,
            _memory: memory,
            remote,
            free,
            work: VecDeque::new(),
            completions: Vec::new(),
            early: 0,
            device,
        })
    }

    /// What the device has counted that should not happen on a good wire.
    pub fn trouble(&self) -> Vec<(&'static str, u64)> {
        let bad = |name: &str| {
            name.contains("drop_") || name.contains("nak") || ["timeouts", "retransmitted"].contains(&name)
        };
        self.device.counters().into_iter().filter(|(name, count)| bad(name) && *count > 0).collect()
    }

    /// Waits until there are completions, and counts those of sends and those of receives. Buffers are put to use again.
    async fn wait(&mut self, waiting: Waiting) -> Result<(u64, u64)> {
        let mut looks = 0;
        while self.cq.poll(&mut self.completions, DEPTH + RECEIVES) == 0 {
            match waiting {
                Waiting::Blocking => poll_fn(|cx| self.cq.poll_notified(cx)).await,
                Waiting::Spinning => {
                    while !self.cq.look() {
                        looks += 1;
                        if looks % LOOKS == 0 {
                            tokio::task::yield_now().await;
                        }
                    }
                }
            }
        }
        let (mut sent, mut received) = (0, 0);
        let mut receives = VecDeque::new();
        for completion in self.completions.drain(..) {
            if !completion.status.is_ok() {
                return Err(format!("{:?}: {}", completion.op, completion.status).into());
            }
            if completion.op.is_recv() {
                received += 1;
                receives.extend(completion.sg.into_iter().map(|buf| RecvWr::new(0, buf)));
            } else {
                sent += 1;
                self.free.extend(completion.sg);
            }
        }
        if received > 0 {
            self.qp.post_recv(&mut receives)?;
        }
        Ok((sent, received))
    }

    fn post(&mut self, op: SendOp, len: usize) -> Result {
        let mut buf = self.free.pop().ok_or("no buffer is free")?;
        buf.set_filled(len);
        self.work.push_back(SendWr::new(0, op, buf));
        Ok(self.qp.post_send(&mut self.work)?)
    }

    /// The end that is `first` sends without having received.
    async fn ping_pong(&mut self, task: Task, first: bool) -> Result {
        let (mut sent, mut acknowledged, mut received) = (0, 0, std::mem::take(&mut self.early));
        while acknowledged < task.count || received < task.count {
            if sent < task.count && sent < received + u64::from(first) {
                self.post(SendOp::Send { imm: None }, PING)?;
                sent += 1;
            }
            let (sends, receives) = self.wait(task.waiting).await?;
            acknowledged += sends;
            received += receives;
        }
        self.early = received - task.count;
        Ok(())
    }

    async fn stream(&mut self, task: Task) -> Result {
        let (mut started, mut completed) = (0, 0);
        while completed < task.count {
            while started < task.count && started < completed + DEPTH as u64 {
                let place = started % DEPTH as u64 * MESSAGE as u64;
                let at = RemoteAddr { addr: self.remote.addr + place, ..self.remote };
                let op = match task.work {
                    Work::Write => SendOp::Write { to: at, imm: None },
                    Work::Read => SendOp::Read { from: at },
                    Work::Send | Work::PingPong => SendOp::Send { imm: None },
                };
                self.post(op, MESSAGE)?;
                started += 1;
            }
            completed += self.wait(task.waiting).await?.0;
        }
        Ok(())
    }
}

impl End for Rc {
    async fn ask(&mut self, task: Task) -> Result {
        match task.work {
            Work::PingPong => self.ping_pong(task, true).await,
            _ => self.stream(task).await,
        }
    }

    async fn answer(&mut self, task: Task) -> Result {
        match task.work {
            Work::PingPong => self.ping_pong(task, false).await,
            // The device does it all.
            Work::Write | Work::Read => Ok(()),
            Work::Send => {
                let mut received = std::mem::take(&mut self.early);
                while received < task.count {
                    received += self.wait(task.waiting).await?.1;
                }
                self.early = received - task.count;
                Ok(())
            }
        }
    }
}

fn address_vector(device: &SoftDevice, dgid: Gid) -> Result<AddressVector> {
    let path = device.resolve(1, dgid).ok_or("no way to the other end")?;
    Ok(AddressVector {
        port: 1,
        dlid: path.dlid,
        sl: path.sl,
        path_bits: 0,
        rate: path.rate,
        grh: Some(GlobalRoute {
            dgid,
            sgid_index: 0,
            flow_label: path.flow_label,
            hop_limit: path.hop_limit,
            traffic_class: path.traffic_class,
        }),
    })
}
