//! An open device, its protection domain, and what can be asked of it.

use std::ffi::CStr;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::raw::c_int;
use std::sync::Arc;

use ibdev::{DeviceAttr, DeviceError, GidEntry, PortAttr};
use ibwire::{Gid, Guid, PKey, TimeCode};
use rdma_sys::{ibv_context, ibv_device, ibv_device_attr, ibv_gid_entry, ibv_pd, ibv_port_attr};

use super::{Raw, check, port, refused, zeroed};

// rdma-sys has no binding for it. infiniband/verbs.h, since rdma-core 32.
unsafe extern "C" {
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
    ports: u8,
}

impl Context {
    /// Opens the device with this name. Slow.
    pub(crate) fn open(name: &str) -> Result<Self, DeviceError> {
        let list = DeviceList::new()?;
        let device = list
            .devices()
            .find(|(found, _)| *found == name.as_bytes())
            .map(|(_, device)| device)
            .ok_or_else(|| {
                DeviceError::os("open an RDMA device by its name", io::ErrorKind::NotFound.into())
            })?;
        // SAFETY: the device is of a list that is not freed before the end of this function.
        let context = unsafe { rdma_sys::ibv_open_device(device) };
        let mut context = Self { raw: Raw::new(context, "open an RDMA device")?, ports: 0 };
        context.ports = context.raw_attr()?.phys_port_cnt;
        Ok(context)
    }

    pub(super) fn raw(&self) -> *mut ibv_context {
        self.raw.get()
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

    /// What the device can do. Slow.
    pub(crate) fn attr(&self, name: &str) -> Result<DeviceAttr, DeviceError> {
        let raw = self.raw_attr()?;
        let number = |n: c_int| u32::try_from(n).unwrap_or(0);
        let small = |n: c_int| u8::try_from(n.clamp(0, 255)).unwrap_or(u8::MAX);
        let mut attr = DeviceAttr::new(name, Guid(u64::from_be(raw.node_guid)), raw.phys_port_cnt);
        attr.max_qp_wr = number(raw.max_qp_wr);
        attr.max_cqe = number(raw.max_cqe);
        attr.max_message = self.raw_port(1)?.max_msg_sz;
        attr.max_responder_resources = small(raw.max_qp_rd_atom);
        attr.max_initiator_depth = small(raw.max_qp_init_rd_atom);
        attr.ack_delay = TimeCode::truncate(raw.local_ca_ack_delay);
        Ok(attr)
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
        // The call answers for all ports at once.
        let mut room = 0;
        for port in 1..=self.ports {
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
        let of_port = entries.iter().filter(|entry| entry.port_num == u32::from(number));
        Ok(of_port
            .filter_map(|entry| {
                Some(GidEntry {
                    index: u16::try_from(entry.gid_index).ok()?,
                    // SAFETY: every field of the union is plain bytes.
                    gid: Gid(unsafe { entry.gid.raw }),
                    kind: port::gid_kind(entry.gid_type)?,
                })
            })
            .collect())
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

/// Names of the RDMA devices of this machine. Slow.
pub(crate) fn names() -> Result<Vec<String>, DeviceError> {
    let list = DeviceList::new()?;
    Ok(list.devices().map(|(name, _)| String::from_utf8_lossy(name).into_owned()).collect())
}

struct DeviceList {
    first: *mut *mut ibv_device,
    len: usize,
}

impl DeviceList {
    fn new() -> Result<Self, DeviceError> {
        let mut len = 0;
        // SAFETY: the call writes the number of devices and keeps nothing.
        let first = unsafe { rdma_sys::ibv_get_device_list(&raw mut len) };
        if first.is_null() {
            return Err(refused("list RDMA devices; is ib_uverbs loaded?", io::Error::last_os_error()));
        }
        Ok(Self { first, len: usize::try_from(len).unwrap_or(0) })
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

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: made by `ibv_get_device_list`, freed once.
        unsafe { rdma_sys::ibv_free_device_list(self.first) };
    }
}

/// A protection domain: memory and queue pairs of one belong together.
#[derive(Debug)]
pub(crate) struct ProtectionDomain {
    raw: Raw<ibv_pd>,
    context: Arc<Context>,
}

impl ProtectionDomain {
    pub(crate) fn new(context: Arc<Context>) -> Result<Self, DeviceError> {
        // SAFETY: the context is open while its `Arc` lives, and the domain keeps that.
        let pd = unsafe { rdma_sys::ibv_alloc_pd(context.raw()) };
        Ok(Self { raw: Raw::new(pd, "allocate a protection domain")?, context })
    }

    pub(super) fn raw(&self) -> *mut ibv_pd {
        self.raw.get()
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        // SAFETY: this is the last owner; memory and queue pairs of the domain keep an `Arc` of it, so none is left.
        unsafe { rdma_sys::ibv_dealloc_pd(self.raw()) };
    }
}
