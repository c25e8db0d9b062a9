//! One end of a queue pair of the software HCA, by the device contract; the other end is `python/verbs_peer.py`, which says
//! the same with pyverbs on the kernel's rxe0. What both have to know they tell each other over TCP.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, TcpStream};
use std::ops::Range;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use ibdev::qp::{Init, QpSpec, QpType, Rtr, Rts, Transition};
use ibdev::{
    Access, AddressVector, Buf, Completion, CompletionOp, CompletionQueue, Device, GlobalRoute, QueuePair,
    RecvWr, Region, RemoteAddr, SendOp, SendWr, SharedMemory, Status,
};
use ibsoft::{SoftDevice, UdpConfig};
use ibwire::{FlowLabel, Gid, Lid, Mtu, Psn, QKey, Qpn, RKey, Rate, RnrTimer, ServiceLevel, TimeCode};

use crate::Error;

const PORT: u16 = 18_500;
/// Within a packet of 1024 bytes, a whole one, one more, many; each in a place of its own, not aligned.
const LENGTHS: [usize; 8] = [1, 7, 8, 1023, 1024, 1025, 4096, 40_001];
const PLACE: usize = 50_000;
const MEMORY: usize = PLACE * (LENGTHS.len() + 1);
const DONE: &[u8] = b"done";

/// What is done, and who asks for it.
#[derive(Debug, Clone, Copy, Args)]
pub struct Verbs {
    /// The kernel's address.
    to: IpAddr,
    transport: TransportName,
    what: What,
    role: Role,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum TransportName {
    Rc,
    Uc,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum What {
    Send,
    Write,
    WriteImm,
    Read,
    Atomic,
    WrongRkey,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Role {
    Asks,
    Serves,
}

fn place(n: usize, len: usize) -> Range<usize> {
    PLACE * n + 3..PLACE * n + 3 + len
}

/// The bytes that both ends know, without asking.
fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| ((at + seed * 17) % 251) as u8).collect()
}

fn check<T: PartialEq + std::fmt::Debug>(what: &str, found: &T, expected: &T) -> Result<(), Error> {
    if found == expected { Ok(()) } else { Err(format!("{what}: {found:?}, not {expected:?}").into()) }
}

/// The same for what is too long to be printed.
fn check_bytes(what: &str, found: &[u8], expected: &[u8]) -> Result<(), Error> {
    check(&format!("length of {what}"), &found.len(), &expected.len())?;
    match found.iter().zip(expected).position(|(found, expected)| found != expected) {
        None => Ok(()),
        Some(at) => Err(format!("{what}: {} at {at}, not {}", found[at], expected[at]).into()),
    }
}

/// The other end, and the way to talk about it. That blocks, and the software HCA with it: only while nothing is under way.
#[derive(Debug)]
struct Peer {
    lines: BufReader<TcpStream>,
    addr: u64,
    rkey: RKey,
}

impl Peer {
    fn say(&mut self, text: &str) -> Result<(), Error> {
        Ok(writeln!(self.lines.get_mut(), "{text}")?)
    }

    fn hear(&mut self) -> Result<String, Error> {
        let mut line = String::new();
        self.lines.read_line(&mut line)?;
        if line.is_empty() { Err("the peer has gone".into()) } else { Ok(line.trim_end().to_owned()) }
    }

    /// Both ends are ready.
    fn ready(&mut self) -> Result<(), Error> {
        self.say("ready")?;
        check("the peer", &self.hear()?, &"ready".to_owned())
    }

    fn at(&self, at: usize) -> RemoteAddr {
        RemoteAddr { addr: self.addr + at as u64, rkey: self.rkey }
    }
}

#[derive(Debug)]
struct End {
    device: SoftDevice,
    cq: Arc<dyn CompletionQueue>,
    qp: Arc<dyn QueuePair>,
    /// What the peer sees.
    memory: Region,
    peer: Peer,
}

impl Verbs {
    /// Says its part, and that all was right.
    pub async fn run(self) -> Result<(), Error> {
        let mut end = End::connect(self).await?;
        match self.role {
            Role::Asks => end.asks(self.what).await?,
            Role::Serves => end.serves(self.what).await?,
        }
        println!("right");
        Ok(())
    }
}

impl End {
    async fn connect(Verbs { to, transport, .. }: Verbs) -> Result<Self, Error> {
        let tcp = TcpStream::connect((to, PORT))?;
        tcp.set_nodelay(true)?;
        let gid = Gid::from_ip(tcp.local_addr()?.ip());
        let device = SoftDevice::bind(UdpConfig::new([tcp.local_addr()?.ip()]))?;
        let cq = device.create_cq(64).await?;
        let kind = match transport {
            TransportName::Rc => QpType::Rc,
            TransportName::Uc => QpType::Uc,
        };
        let domain = device.domain();
        let qp = domain.create_qp(QpSpec::new(kind, &cq, 32, 32)).await?;
        let memory = domain.register(SharedMemory::zeroed(MEMORY), Access::all()).await?;
        memory.copy_from(0, &pattern(1, MEMORY))?;

        let mut peer = Peer { lines: BufReader::new(tcp), addr: 0, rkey: RKey(0) };
        let (psn, ours) = (Psn::truncate(0xff_fffe), memory.remote());
        peer.say(&format!("{} {} {} {}", qp.qpn().get(), psn.get(), ours.addr(), ours.rkey().0))?;
        let numbers = peer.hear()?.split(' ').map(str::parse).collect::<Result<Vec<u64>, _>>()?;
        let [qpn, peer_psn, addr, rkey] = numbers[..] else { return Err("not four numbers".into()) };
        (peer.addr, peer.rkey) = (addr, RKey(rkey as u32));

        let sgid_index = device.gids(1)?.iter().find(|entry| entry.gid == gid).ok_or("no such GID")?.index;
        let grh = GlobalRoute {
            dgid: Gid::from_ip(to),
            sgid_index,
            flow_label: FlowLabel::default(),
            hop_limit: 64,
            traffic_class: 0,
        };
        let av = AddressVector {
            port: 1,
            dlid: Lid::NONE,
            sl: ServiceLevel::default(),
            path_bits: 0,
            rate: Rate::PORT_CURRENT,
            grh: Some(grh),
        };
        let init = Init { port: 1, pkey_index: 0, access: Access::all(), qkey: QKey::default() };
        let rtr = Rtr {
            av,
            path_mtu: Mtu::B1024,
            dest_qpn: Qpn::truncate(qpn as u32),
            rq_psn: Psn::truncate(peer_psn as u32),
            max_dest_rd_atomic: 2,
            min_rnr_timer: RnrTimer::truncate(12),
        };
        let rts = Rts {
            sq_psn: psn,
            timeout: TimeCode::truncate(16),
            retry_count: 7,
            rnr_retry: 7,
            max_rd_atomic: 2,
            alternate: None,
        };
        for transition in [Transition::Init(init), Transition::Rtr(rtr), Transition::Rts(rts)] {
            qp.modify(transition).await?;
        }
        Ok(Self { device, cq, qp, memory, peer })
    }

    async fn buf(&self, bytes: &[u8]) -> Result<Buf, Error> {
        let mut buf = self.device.domain().alloc(1, PLACE).await?.remove(0);
        buf.clear();
        buf.put_slice(bytes);
        Ok(buf)
    }

    async fn completion(&self) -> Completion {
        let mut out = Vec::new();
        while self.cq.poll(&mut out, 1) == 0 {
            poll_fn(|cx| self.cq.poll_notified(cx)).await;
        }
        out.remove(0)
    }

    async fn start(&self, op: SendOp, bytes: &[u8]) -> Result<Completion, Error> {
        let wr = SendWr::new(0, op, self.buf(bytes).await?);
        self.qp.post_send(&mut VecDeque::from([wr]))?;
        Ok(self.completion().await)
    }

    async fn carry_out(&self, op: SendOp, bytes: &[u8]) -> Result<Completion, Error> {
        let done = self.start(op, bytes).await?;
        check(&format!("status of {} bytes", bytes.len()), &done.status, &Status::SUCCESS)?;
        Ok(done)
    }

    async fn asks(&mut self, what: What) -> Result<(), Error> {
        self.peer.ready()?;
        for (n, len) in LENGTHS.into_iter().enumerate() {
            let data = pattern(n + 2, len);
            let (at, imm) = (place(n, len), Some(1000 + n as u32));
            match what {
                What::Send => {
                    self.carry_out(SendOp::Send { imm: imm.filter(|_| n % 2 == 1) }, &data).await?;
                }
                What::Write => {
                    self.carry_out(SendOp::Write { to: self.peer.at(at.start), imm: None }, &data).await?;
                }
                What::WriteImm => {
                    self.carry_out(SendOp::Write { to: self.peer.at(at.start), imm }, &data).await?;
                }
                What::Read => {
                    let done = self.carry_out(SendOp::Read { from: self.peer.at(at.start) }, &data).await?;
                    check_bytes("read", &done.sg[0], &pattern(1, MEMORY)[at])?;
                }
                What::Atomic | What::WrongRkey => {}
            }
        }
        if what == What::Atomic {
            let at = self.peer.at(8);
            for (op, before) in [
                (SendOp::FetchAdd { at, add: 5 }, 0x1000),
                (SendOp::CompareSwap { at, compare: 0x1005, swap: 0x1122_3344_5566_7788 }, 0x1005),
                (SendOp::CompareSwap { at, compare: 1, swap: 2 }, 0x1122_3344_5566_7788_u64),
                (SendOp::FetchAdd { at, add: u64::MAX }, 0x1122_3344_5566_7788),
            ] {
                let done = self.carry_out(op, &[0; 8]).await?;
                check_bytes("value before", &done.sg[0], &before.to_ne_bytes())?;
            }
        }
        if what == What::WrongRkey {
            let to = RemoteAddr { rkey: RKey(self.peer.rkey.0 ^ 0x0101_0101), ..self.peer.at(0) };
            let done = self.start(SendOp::Write { to, imm: None }, &[1; 8]).await?;
            check("status", &done.status, &Status::REM_ACCESS_ERR)?;
            self.peer.say("refused")?;
        } else {
            self.carry_out(SendOp::Send { imm: None }, DONE).await?;
        }
        check("the peer", &self.peer.hear()?, &"right".to_owned())
    }

    async fn serves(&mut self, what: What) -> Result<(), Error> {
        if what == What::Atomic {
            self.memory.copy_from(8, &0x1000_u64.to_ne_bytes())?;
        }
        let buffers = self.device.domain().alloc(LENGTHS.len() + 1, PLACE).await?;
        let mut work = (0..).zip(buffers).map(|(id, buf)| RecvWr::new(id, buf)).collect();
        self.qp.post_recv(&mut work)?;
        self.peer.ready()?;
        let mut expected = pattern(1, MEMORY);
        if what == What::WrongRkey {
            check("status", &self.completion().await.status, &Status::WR_FLUSH_ERR)?;
            check("the peer", &self.peer.hear()?, &"refused".to_owned())?;
        } else {
            let mut next = 0;
            for (n, len) in LENGTHS.into_iter().enumerate() {
                let imm = Some(1000 + n as u32);
                match what {
                    What::Send => {
                        let imm = imm.filter(|_| n % 2 == 1);
                        let got = self.received(&mut next, CompletionOp::Recv, len, imm).await?;
                        check_bytes("message", &got.sg[0], &pattern(n + 2, len))?;
                    }
                    What::WriteImm => {
                        self.received(&mut next, CompletionOp::RecvWrite, len, imm).await?;
                    }
                    _ => {}
                }
                if matches!(what, What::Write | What::WriteImm) {
                    expected[place(n, len)].copy_from_slice(&pattern(n + 2, len));
                }
            }
            let got = self.received(&mut next, CompletionOp::Recv, DONE.len(), None).await?;
            check_bytes("message", &got.sg[0], DONE)?;
        }
        if what == What::Atomic {
            expected[8..16].copy_from_slice(&0x1122_3344_5566_7787_u64.to_ne_bytes());
        }
        let mut found = vec![0; MEMORY];
        self.memory.copy_to(0, &mut found)?;
        check_bytes("memory", &found, &expected)?;
        self.peer.say("right")
    }

    async fn received(
        &self,
        next: &mut u64,
        op: CompletionOp,
        len: usize,
        imm: Option<u32>,
    ) -> Result<Completion, Error> {
        let got = self.completion().await;
        check("status", &got.status, &Status::SUCCESS)?;
        check("receive", &(got.id, got.op, got.len as usize, got.imm), &(*next, op, len, imm))?;
        *next += 1;
        Ok(got)
    }
}
