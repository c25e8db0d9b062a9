//! A queue pair of rdma-sys, connected step by step by this CM alone: no rdma_cm, neither the kernel's nor librdmacm.
//!
//! ```text
//! cargo run -p ibcm-sys --features verbs --example rdma_sys_qp -- rxe0                serves
//! cargo run -p ibcm-sys --features verbs --example rdma_sys_qp -- rxe0 10.77.0.2      connects
//! ```
//!
//! The other end is a second one of these, or `own_qp` of the examples. The CM has the device for itself, so the kernel's
//! ib_cm must not be loaded. The client sends a message, the server sends it back, the client disconnects.

use std::error::Error;
use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::ptr::{null_mut, slice_from_raw_parts};
use std::sync::Arc;

use ibcm::handshake::{self, LocalQp};
use ibcm::qp::{QpType, Transition};
use ibcm::{Gid, Hca, Listener, Qpn, ServiceId};
use ibcm_sys::rdma_sys as sys;
use ibcm_sys::{LinuxDevice, ibv};
use ibdev::Device;

const SID: ServiceId = ServiceId::new(0x1000_0000_0000_0008);
const MESSAGE: usize = 64;

type Result<T = ()> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

#[tokio::main]
async fn main() -> Result {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let name = args.first().ok_or("usage: rdma_sys_qp DEVICE [GID]")?;
    let device: Arc<dyn Device> = LinuxDevice::open(name).await?;
    let hca = Hca::open(device).await?;
    let qp = RdmaSysQp::create(name)?;
    tell_of_events(&qp, &hca);
    match args.get(1) {
        None => serve(&hca, qp).await,
        Some(gid) => connect(&hca, gid.parse()?, qp).await,
    }
}

async fn serve(hca: &Hca, mut qp: RdmaSysQp) -> Result {
    let listener = Listener::bind(SID).device(hca).await?;
    println!("listening at {}", hca.gid());
    let offer = listener.accept().await?.prepare(LocalQp::rc(qp.qpn()))?;
    let attrs = offer.attrs();
    qp.modify(attrs.init)?;
    qp.modify(attrs.rtr)?;
    qp.post_recv()?; // receives first, then the REP
    let session = offer.reply().await?; // REP out, RTU in
    qp.modify(attrs.rts)?;
    println!("server: {} is connected to {} of {}", qp.qpn(), session.peer().qpn, session.peer());
    qp.completion().await?;
    qp.post_send()?; // the same memory
    qp.completion().await?;
    println!("server: {}", session.closed().await);
    session.finish().await; // from here on the QP number may be used again
    Ok(())
}

async fn connect(hca: &Hca, peer: Gid, mut qp: RdmaSysQp) -> Result {
    let path = hca.path_to(peer).service_id(SID).await?;
    qp.modify(path.qp_init()?)?;
    let reply = handshake::connect(path, LocalQp::rc(qp.qpn())).await?; // REQ out, REP in
    qp.modify(reply.attrs().rtr)?;
    qp.modify(reply.attrs().rts)?;
    let session = reply.ready().await?; // RTU out
    qp.fill(8);
    qp.post_send()?;
    qp.completion().await?;
    qp.fill(0);
    qp.post_recv()?; // a message that comes before is asked for again
    qp.completion().await?;
    println!("client: {MESSAGE} bytes came back: {:?}..", &qp.memory[..8]);
    println!("client: {}", session.disconnect().await); // DREQ, DREP
    session.finish().await; // TimeWait
    Ok(())
}

/// A queue pair as a program of rdma-sys has it: this is where your own library stands. It carries one message at a time.
struct RdmaSysQp {
    context: *mut sys::ibv_context,
    pd: *mut sys::ibv_pd,
    cq: *mut sys::ibv_cq,
    mr: *mut sys::ibv_mr,
    qp: *mut sys::ibv_qp,
    memory: Box<[u8]>,
}

// SAFETY: objects of libibverbs may be used from any thread.
unsafe impl Send for RdmaSysQp {}
// SAFETY: as above.
unsafe impl Sync for RdmaSysQp {}

impl RdmaSysQp {
    /// Creates one in RESET, on a device that is opened for it.
    fn create(device: &str) -> Result<Self> {
        let mut memory = vec![0; MESSAGE].into_boxed_slice();
        let context = open(device)?;
        // SAFETY: each object is made of those before it, which live as long; the memory is registered while it is there.
        unsafe {
            let pd = made(sys::ibv_alloc_pd(context))?;
            let cq = made(sys::ibv_create_cq(context, 8, null_mut(), null_mut(), 0))?;
            let access = sys::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0 as i32;
            let mr = made(sys::ibv_reg_mr(pd, memory.as_mut_ptr().cast(), MESSAGE, access))?;
            let mut init = sys::ibv_qp_init_attr {
                qp_context: null_mut(),
                send_cq: cq,
                recv_cq: cq,
                srq: null_mut(),
                cap: sys::ibv_qp_cap {
                    max_send_wr: 4,
                    max_recv_wr: 4,
                    max_send_sge: 1,
                    max_recv_sge: 1,
                    max_inline_data: 0,
                },
                qp_type: sys::ibv_qp_type::IBV_QPT_RC,
                sq_sig_all: 1,
            };
            let qp = made(sys::ibv_create_qp(pd, &raw mut init))?;
            Ok(Self { context, pd, cq, mr, qp, memory })
        }
    }

    fn qpn(&self) -> Qpn {
        // SAFETY: the queue pair is alive.
        Qpn::truncate(unsafe { (*self.qp).qp_num })
    }

    /// The CM says what; `ibcm_sys::ibv::attr` makes the two arguments of `ibv_modify_qp` of it.
    fn modify(&self, step: impl Into<Transition>) -> Result {
        let (mut attr, mask) = ibv::attr::transition(QpType::Rc, &step.into())?;
        // SAFETY: the queue pair is alive; the attributes are read during the call.
        checked(unsafe { sys::ibv_modify_qp(self.qp, &raw mut attr, mask.0 as i32) })
    }

    fn fill(&mut self, byte: u8) {
        self.memory.fill(byte);
    }

    fn sge(&mut self) -> sys::ibv_sge {
        // SAFETY: the region is alive.
        let lkey = unsafe { (*self.mr).lkey };
        sys::ibv_sge { addr: self.memory.as_mut_ptr() as u64, length: MESSAGE as u32, lkey }
    }

    fn post_recv(&mut self) -> Result {
        let mut sge = self.sge();
        let mut work = sys::ibv_recv_wr { wr_id: 0, next: null_mut(), sg_list: &raw mut sge, num_sge: 1 };
        // SAFETY: the queue pair is alive; the memory is its owner's, who does not touch it before the completion.
        checked(unsafe { sys::ibv_post_recv(self.qp, &raw mut work, &mut null_mut()) })
    }

    fn post_send(&mut self) -> Result {
        let mut sge = self.sge();
        // SAFETY: integers, pointers and unions of integers: all bytes zero is a value.
        let mut work: sys::ibv_send_wr = unsafe { MaybeUninit::zeroed().assume_init() };
        work.opcode = sys::ibv_wr_opcode::IBV_WR_SEND;
        work.sg_list = &raw mut sge;
        work.num_sge = 1;
        // SAFETY: as in `post_recv`.
        checked(unsafe { sys::ibv_post_send(self.qp, &raw mut work, &mut null_mut()) })
    }

    /// Polls until something has completed well.
    async fn completion(&self) -> Result {
        loop {
            let mut done = MaybeUninit::<sys::ibv_wc>::zeroed();
            // SAFETY: the queue is alive; one completion is written at most.
            match unsafe { sys::ibv_poll_cq(self.cq, 1, done.as_mut_ptr()) } {
                0 => tokio::task::yield_now().await,
                1 => {
                    // SAFETY: the call has written it. Read as an integer, no value of which is invalid.
                    let status = unsafe { (&raw const (*done.as_ptr()).status).cast::<u32>().read() };
                    return if status == 0 { Ok(()) } else { Err(format!("status {status}").into()) };
                }
                _ => return Err("the completion queue failed".into()),
            }
        }
    }
}

impl Drop for RdmaSysQp {
    fn drop(&mut self) {
        // SAFETY: in the reverse order of their making, each once. The device stays open for the thread of its events.
        unsafe {
            sys::ibv_destroy_qp(self.qp);
            sys::ibv_dereg_mr(self.mr);
            sys::ibv_destroy_cq(self.cq);
            sys::ibv_dealloc_pd(self.pd);
        }
    }
}

/// The queue pair's events come to its own device, not to the HCA's: of the one that counts the CM has to be told.
fn tell_of_events(qp: &RdmaSysQp, hca: &Hca) {
    struct Context(*mut sys::ibv_context);
    // SAFETY: objects of libibverbs may be used from any thread.
    unsafe impl Send for Context {}
    let (context, qpn, hca) = (Context(qp.context), qp.qpn(), hca.clone());
    std::thread::spawn(move || {
        let context = context; // the whole of it
        let mut event = MaybeUninit::<sys::ibv_async_event>::zeroed();
        // SAFETY: the device is open until the process ends; one event is written.
        while unsafe { sys::ibv_get_async_event(context.0, event.as_mut_ptr()) } == 0 {
            let raw = event.as_mut_ptr();
            // SAFETY: zeroed, then written by the call. Read as an integer, no value of which is invalid.
            let number = unsafe { (&raw const (*raw).event_type).cast::<u32>().read() };
            // SAFETY: the event of the call above, acknowledged once.
            unsafe { sys::ibv_ack_async_event(raw) };
            if number == sys::ibv_event_type::IBV_EVENT_COMM_EST as u32 {
                hca.comm_established(qpn);
            }
        }
    });
}

/// Opens the device with this name.
fn open(name: &str) -> Result<*mut sys::ibv_context> {
    let mut len = 0;
    // SAFETY: the list has `len` devices with names, and is freed behind the last use of any.
    unsafe {
        let list = made(sys::ibv_get_device_list(&raw mut len))?;
        let devices = &*slice_from_raw_parts(list, usize::try_from(len)?);
        let named = |device: &&*mut sys::ibv_device| {
            CStr::from_ptr(sys::ibv_get_device_name(**device)).to_bytes() == name.as_bytes()
        };
        let context = devices.iter().find(named).map(|device| sys::ibv_open_device(*device));
        sys::ibv_free_device_list(list);
        made(context.ok_or("no such device")?)
    }
}

/// What a creating call returned: null means that it failed and set errno.
fn made<T>(pointer: *mut T) -> Result<*mut T> {
    if pointer.is_null() { Err(io::Error::last_os_error().into()) } else { Ok(pointer) }
}

/// What a call returned: 0 or an errno value.
fn checked(result: i32) -> Result {
    if result == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(result.abs()).into()) }
}
