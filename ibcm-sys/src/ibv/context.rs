//! An open device and what can be asked of it.

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::raw::c_int;
use std::path::Path;

use ibdev::{DeviceAttr, DeviceError, GidEntry, LinkLayer, PortAttr};
use ibwire::{Gid, Guid, PKey, TimeCode};
use rdma_sys::{
    ibv_atomic_cap, ibv_context, ibv_device, ibv_device_attr, ibv_device_cap_flags, ibv_gid_entry,
    ibv_port_attr, ibv_qp_cap, ibv_qp_init_attr, ibv_qp_type,
};
use rustix::io::Errno;

use super::{Raw, check, port, refused, zeroed};
use crate::LinuxError;

/// Where the kernel lists RDMA devices, and those that programs can open.
const DEVICES: &str = "/sys/class/infiniband";
const OPENABLE: &str = "/sys/class/infiniband_verbs";

/// The most that a message posted inline can be asked for. Each place of a send queue has room for it.
const INLINE: u32 = 256;

// rdma-sys has no binding for them. infiniband/verbs.h, since rdma-core 32.
unsafe extern "C" {
    fn _ibv_query_gid_ex(
        context: *mut ibv_context,
        port: u32,
        index: u32,
        entry: *mut ibv_gid_entry,
        flags: u32,
        entry_size: usize,
    ) -> c_int;
    fn _ibv_query_gid_table(
        context: *mut ibv_context,
        entries: *mut ibv_gid_entry,
        max_entries: usize,
        flags: u32,
        entry_size: usize,
    ) -> isize;
}

/// An open device.
#[derive(Debug)]
pub(crate) struct Context {
    raw: Raw<ibv_context>,
    /// How long the P_Key table of each port is, which never changes.
    pkey_counts: Vec<u16>,
}

impl Context {
    /// Opens the device with this name. Slow.
    pub(crate) fn open(name: &str) -> Result<Self, DeviceError> {
        let list = DeviceList::new()?;
        let device = list
            .devices()
            .find(|(found, _)| *found == name.as_bytes())
            .map(|(_, device)| device)
            .ok_or_else(|| LinuxError::NoDevice { name: name.into(), present: list.names() }.met(OPEN))?;
        // SAFETY: the device is of a list that is not freed before the end of this function.
        let context = unsafe { rdma_sys::ibv_open_device(device) };
        if context.is_null() {
            let error = io::Error::last_os_error();
            // SAFETY: the device is of a list that is there; the name is a C string in it.
            let file = unsafe { CStr::from_ptr((*device).dev_name.as_ptr()) }.to_string_lossy();
            return Err(not_opened(&Path::new("/dev/infiniband").join(&*file), error));
        }
        let mut context = Self { raw: Raw::new(context, OPEN)?, pkey_counts: Vec::new() };
        for number in 1..=context.raw_attr()?.phys_port_cnt {
            context.pkey_counts.push(context.raw_port(number)?.pkey_tbl_len);
        }
        Ok(context)
    }

    pub(super) fn raw(&self) -> *mut ibv_context {
        self.raw.get()
    }

    /// The name of its file in /dev/infiniband, such as `uverbs0`.
    pub(super) fn file_name(&self) -> String {
        // SAFETY: the context, and with it the device, lives while `self` does; the name is a C string in it.
        let name = unsafe { CStr::from_ptr((*(*self.raw()).device).dev_name.as_ptr()) };
        name.to_string_lossy().into_owned()
    }

    /// Where asynchronous events are announced.
    pub(super) fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the context, and with it the descriptor, is open while `self` lives.
        unsafe { BorrowedFd::borrow_raw((*self.raw()).async_fd) }
    }

    fn raw_attr(&self) -> Result<ibv_device_attr, DeviceError> {
        // SAFETY: integers and arrays of integers: all bytes zero is a value.
        let mut raw: ibv_device_attr = unsafe { zeroed() };
        // SAFETY: the context is open while `self` lives; the call fills `raw` and keeps nothing.
        check(unsafe { rdma_sys::ibv_query_device(self.raw(), &raw mut raw) }, "query an RDMA device")?;
        Ok(raw)
    }

    /// What the device can do, and how many buffers a read may have. Slow.
    pub(crate) fn attr(&self, name: &str) -> Result<(DeviceAttr, u32), DeviceError> {
        let raw = self.raw_attr()?;
        let number = |n: c_int| u32::try_from(n).unwrap_or(0);
        let small = |n: c_int| u8::try_from(n.clamp(0, 255)).unwrap_or(u8::MAX);
        let mut attr = DeviceAttr::new(name, Guid(u64::from_be(raw.node_guid)), raw.phys_port_cnt);
        attr.max_cqe = number(raw.max_cqe);
        // A longer queue would have no completion queue.
        attr.max_qp_wr = number(raw.max_qp_wr).min(attr.max_cqe);
        attr.max_sge = number(raw.max_sge);
        if raw.max_srq > 0 {
            attr.max_srq_wr = number(raw.max_srq_wr).min(attr.max_cqe);
            attr.max_sge = attr.max_sge.min(number(raw.max_srq_sge));
        }
        attr.atomics = raw.atomic_cap != ibv_atomic_cap::IBV_ATOMIC_NONE;
        // RoCE drivers may say so and do nothing with a path (spec/softhca.md 2.12: rxe).
        let can_migrate = raw.device_cap_flags & ibv_device_cap_flags::IBV_DEVICE_AUTO_PATH_MIG.0 != 0;
        attr.path_migration = can_migrate && self.port(1)?.link_layer == LinkLayer::InfiniBand;
        attr.max_inline_data = self.max_inline_data()?;
        attr.max_message = self.raw_port(1)?.max_msg_sz;
        attr.max_responder_resources = small(raw.max_qp_rd_atom);
        attr.max_initiator_depth = small(raw.max_qp_init_rd_atom);
        attr.ack_delay = TimeCode::truncate(raw.local_ca_ack_delay);
        let max_sge_rd = match number(raw.max_sge_rd) {
            0 => attr.max_sge, // not stated
            limit => limit.min(attr.max_sge),
        };
        Ok((attr, max_sge_rd))
    }

    /// How long an inline message can be: no attribute says so, but queue pairs are created with it or not. Slow.
    fn max_inline_data(&self) -> Result<u32, DeviceError> {
        // SAFETY: the context is open while `self` lives; the domain is released below.
        let pd = unsafe { rdma_sys::ibv_alloc_pd(self.raw()) };
        let pd = Raw::new(pd, "allocate a protection domain")?;
        // SAFETY: as above; no channel, no queue context.
        let cq =
            unsafe { rdma_sys::ibv_create_cq(self.raw(), 1, std::ptr::null_mut(), std::ptr::null_mut(), 0) };
        let cq = Raw::new(cq, "create a completion queue");
        let most = cq.as_ref().ok().and_then(|cq| {
            [INLINE, INLINE / 2, INLINE / 4].into_iter().find(|most| {
                let cap = ibv_qp_cap {
                    max_send_wr: 1,
                    max_recv_wr: 1,
                    max_send_sge: 1,
                    max_recv_sge: 1,
                    max_inline_data: *most,
                };
                let mut init = ibv_qp_init_attr {
                    qp_context: std::ptr::null_mut(),
                    send_cq: cq.get(),
                    recv_cq: cq.get(),
                    srq: std::ptr::null_mut(),
                    cap,
                    qp_type: ibv_qp_type::IBV_QPT_RC,
                    sq_sig_all: 1,
                };
                // SAFETY: domain and completion queue are there until after the queue pair, which is destroyed at once.
                unsafe {
                    let qp = rdma_sys::ibv_create_qp(pd.get(), &raw mut init);
                    !qp.is_null() && rdma_sys::ibv_destroy_qp(qp) == 0
                }
            })
        });
        // SAFETY: what was made above, each once, in the reverse order.
        unsafe {
            if let Ok(cq) = &cq {
                rdma_sys::ibv_destroy_cq(cq.get());
            }
            rdma_sys::ibv_dealloc_pd(pd.get());
        }
        cq.map(|_| most.unwrap_or(0))
    }

    /// So many P_Keys has the table of this port, which is one of the device's.
    pub(super) fn pkey_count(&self, number: u8) -> u16 {
        self.pkey_counts.get(usize::from(number).wrapping_sub(1)).copied().unwrap_or(0)
    }

    pub(crate) fn port(&self, number: u8) -> Result<PortAttr, DeviceError> {
        self.raw_port(number).map(|raw| port::attr(number, &raw))
    }

    fn raw_port(&self, number: u8) -> Result<ibv_port_attr, DeviceError> {
        // SAFETY: integers: all bytes zero is a value.
        let mut raw: ibv_port_attr = unsafe { zeroed() };
        // The exported function and not rdma-sys's `___ibv_query_port`: that one tells a modern context by 32 bits of
        // ones where it has 64. The exported one fills in all but the last field, which stays zero.
        // SAFETY: the context is open while `self` lives; the call writes the front of `raw`, which the shorter
        // struct of the signature stands for, and keeps nothing.
        let result = unsafe { rdma_sys::ibv_query_port(self.raw(), number, (&raw mut raw).cast()) };
        check(result, "query a port")?;
        Ok(raw)
    }

    /// The used entries of a port's GID table.
    pub(crate) fn gids(&self, number: u8) -> Result<Vec<GidEntry>, DeviceError> {
        let entries = self.raw_gids(number)?;
        Ok(entries
            .iter()
            .filter_map(|entry| {
                Some(GidEntry {
                    index: u16::try_from(entry.gid_index).ok()?,
                    gid: address(entry),
                    kind: port::gid_kind(entry.gid_type)?,
                })
            })
            .collect())
    }

    /// The GID at this index, if there is one.
    pub(super) fn gid(&self, number: u8, index: u16) -> Result<Option<Gid>, DeviceError> {
        // SAFETY: integers, and a union of integers: all bytes zero is a value.
        let mut entry: ibv_gid_entry = unsafe { zeroed() };
        // SAFETY: the context is open while `self` lives; one entry of the given size is written, and nothing is kept.
        let result = unsafe {
            _ibv_query_gid_ex(
                self.raw(),
                number.into(),
                index.into(),
                &raw mut entry,
                0,
                size_of::<ibv_gid_entry>(),
            )
        };
        // The table is shorter, or has a gap there.
        if [Errno::INVAL, Errno::NODATA].iter().any(|absent| absent.raw_os_error() == result) {
            return Ok(None);
        }
        check(result, "read a GID").map(|()| Some(address(&entry)))
    }

    /// Indices of the network interfaces whose addresses of a family the port has.
    pub(super) fn interfaces(&self, number: u8, is_ipv4: bool) -> Result<BTreeSet<u32>, DeviceError> {
        let entries = self.raw_gids(number)?;
        let of_family = entries.iter().filter(|entry| address(entry).to_ip().is_ipv4() == is_ipv4);
        Ok(of_family.map(|entry| entry.ndev_ifindex).filter(|index| *index != 0).collect())
    }

    fn raw_gids(&self, number: u8) -> Result<Vec<ibv_gid_entry>, DeviceError> {
        // The call answers for all ports at once.
        let mut room = 0;
        for port in (1..).take(self.pkey_counts.len()) {
            room += usize::try_from(self.raw_port(port)?.gid_tbl_len).unwrap_or(0);
        }
        // SAFETY: integers, and a union of integers: all bytes zero is a value.
        let mut entries: Vec<ibv_gid_entry> = (0..room).map(|_| unsafe { zeroed() }).collect();
        // SAFETY: the context is open while `self` lives; at most `entries.len()` entries of the given size are
        // written, and nothing is kept.
        let found = unsafe {
            _ibv_query_gid_table(
                self.raw(),
                entries.as_mut_ptr(),
                entries.len(),
                0,
                size_of::<ibv_gid_entry>(),
            )
        };
        let found = usize::try_from(found).map_err(|_| {
            let errno = i32::try_from(-found).unwrap_or(0);
            refused("read the GID table", io::Error::from_raw_os_error(errno))
        })?;
        entries.truncate(found);
        entries.retain(|entry| entry.port_num == u32::from(number));
        Ok(entries)
    }

    /// A port's P_Key table.
    pub(crate) fn pkeys(&self, number: u8) -> Result<Vec<PKey>, DeviceError> {
        (0..c_int::from(self.raw_port(number)?.pkey_tbl_len))
            .map(|index| {
                let mut pkey = 0;
                // SAFETY: the context is open while `self` lives; the call fills `pkey` and keeps nothing.
                let result = unsafe { rdma_sys::ibv_query_pkey(self.raw(), number, index, &raw mut pkey) };
                check(result, "read the P_Key table")?;
                Ok(PKey(u16::from_be(pkey)))
            })
            .collect()
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: this is the last owner; every object made from the context keeps an `Arc` of it, so none is left.
        unsafe { rdma_sys::ibv_close_device(self.raw()) };
    }
}

fn address(entry: &ibv_gid_entry) -> Gid {
    // SAFETY: every field of the union is plain bytes.
    Gid(unsafe { entry.gid.raw })
}

/// Why a device could not be opened: libibverbs tries more than its file, and says what came of the last attempt.
fn not_opened(file: &Path, error: io::Error) -> DeviceError {
    match std::fs::OpenOptions::new().read(true).write(true).open(file) {
        Err(denied) if denied.kind() == io::ErrorKind::PermissionDenied => refused(OPEN, denied),
        Err(absent) if absent.kind() == io::ErrorKind::NotFound => {
            LinuxError::NoFile { path: file.display().to_string() }.met(OPEN)
        }
        _ => refused(OPEN, error),
    }
}

/// Names of the RDMA devices of this machine. Slow.
pub(crate) fn names() -> Result<Vec<String>, DeviceError> {
    DeviceList::new().map(|list| list.names())
}

const OPEN: &str = "open an RDMA device";

struct DeviceList {
    first: *mut *mut ibv_device,
    len: usize,
}

impl DeviceList {
    fn new() -> Result<Self, DeviceError> {
        let mut len = 0;
        // SAFETY: the call writes the number of devices and keeps nothing.
        let first = unsafe { rdma_sys::ibv_get_device_list(&raw mut len) };
        let error = io::Error::last_os_error();
        let is_openable = Path::new(OPENABLE).exists();
        if first.is_null() {
            let is_absent = Errno::from_io_error(&error) == Some(Errno::NOSYS) || !is_openable;
            return match is_absent && has_devices() {
                true => Err(NO_UVERBS.met(LIST)),
                false if is_absent => Ok(Self { first, len: 0 }),
                false => Err(refused(LIST, error)),
            };
        }
        let list = Self { first, len: usize::try_from(len).unwrap_or(0) };
        if list.len == 0 && !is_openable && has_devices() {
            return Err(NO_UVERBS.met(LIST));
        }
        Ok(list)
    }

    fn names(&self) -> Vec<String> {
        self.devices().map(|(name, _)| String::from_utf8_lossy(name).into_owned()).collect()
    }

    /// Name and device.
    fn devices(&self) -> impl Iterator<Item = (&[u8], *mut ibv_device)> {
        (0..self.len).map(|i| {
            // SAFETY: the list has `len` devices and is freed with `self` only.
            let device = unsafe { *self.first.add(i) };
            // SAFETY: the name of a device of the list is a C string in it.
            let name = unsafe { CStr::from_ptr(rdma_sys::ibv_get_device_name(device)) };
            (name.to_bytes(), device)
        })
    }
}

const LIST: &str = "list RDMA devices";
const NO_UVERBS: LinuxError = LinuxError::NoModule { module: "ib_uverbs" };

/// Whether the kernel has RDMA devices, openable or not.
fn has_devices() -> bool {
    std::fs::read_dir(DEVICES).is_ok_and(|mut devices| devices.next().is_some())
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        if self.first.is_null() {
            return;
        }
        // SAFETY: made by `ibv_get_device_list`, freed once.
        unsafe { rdma_sys::ibv_free_device_list(self.first) };
    }
}
