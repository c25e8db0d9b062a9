//! QP attributes of the contract as libibverbs takes them.
//!
//! Each function gives the two arguments of `ibv_modify_qp` for one state change, with the attributes that its state
//! table requires (spec/softhca.md 2.11) and no other. Use them with a queue pair of your own:
//!
//! ```
//! # use ibcm_sys::{ibv::attr, rdma_sys};
//! # use ibdev::qp::QpType;
//! # fn step(qp: *mut rdma_sys::ibv_qp, rts: &ibdev::qp::Rts) -> Result<(), ibdev::DeviceError> {
//! let (mut attr, mask) = attr::rts(QpType::Rc, rts)?;
//! // SAFETY: `qp` is a queue pair that nothing destroys meanwhile.
//! let result = unsafe { rdma_sys::ibv_modify_qp(qp, &mut attr, mask.0 as i32) };
//! # let _ = result; Ok(()) }
//! ```

#[cfg(test)]
mod tests;

use ibdev::qp::{AlternatePath, Init, QpType, Rtr, Rts, Transition};
use ibdev::{Access, AddressVector, DeviceError};
use rdma_sys::{
    ibv_access_flags, ibv_ah_attr, ibv_gid, ibv_global_route, ibv_mig_state, ibv_qp_attr,
    ibv_qp_attr_mask as Mask, ibv_qp_state, ibv_qp_type,
};

use super::zeroed;

// rdma-sys writes these two by hand: they have to be what libibverbs reads.
const _: () = assert!(size_of::<ibv_ah_attr>() == 32 && size_of::<ibv_global_route>() == 24);
const _: () = assert!(size_of::<ibv_qp_attr>() == 144);

/// Attributes and mask for any state change of the contract.
///
/// # Errors
/// [`DeviceError::Limit`] for a value that libibverbs has no room for, [`DeviceError::Unsupported`] for a state change that
/// does not fit the transport.
pub fn transition(kind: QpType, transition: &Transition) -> Result<(ibv_qp_attr, Mask), DeviceError> {
    match (kind, transition) {
        (_, Transition::Init(init)) => self::init(kind, init),
        (QpType::Rc, Transition::LoadPath(path)) => load_path(path),
        (QpType::Rc, Transition::Migrate) => Ok(migrate()),
        (QpType::Rc | QpType::Uc, Transition::Rtr(rtr)) => self::rtr(kind, rtr),
        (QpType::Rc | QpType::Uc, Transition::Rts(rts)) => self::rts(kind, rts),
        (QpType::Ud, Transition::DatagramRtr) => Ok(to(ibv_qp_state::IBV_QPS_RTR)),
        (QpType::Ud, Transition::DatagramRts { sq_psn }) => {
            let (mut attr, mask) = to(ibv_qp_state::IBV_QPS_RTS);
            attr.sq_psn = sq_psn.get();
            Ok((attr, mask | Mask::IBV_QP_SQ_PSN))
        }
        (_, Transition::SqDrain) => {
            let (mut attr, mask) = to(ibv_qp_state::IBV_QPS_SQD);
            attr.en_sqd_async_notify = 1;
            Ok((attr, mask | Mask::IBV_QP_EN_SQD_ASYNC_NOTIFY))
        }
        (_, Transition::SqResume) => Ok(to(ibv_qp_state::IBV_QPS_RTS)),
        (_, Transition::Error) => Ok(to(ibv_qp_state::IBV_QPS_ERR)),
        (_, Transition::Reset) => Ok(to(ibv_qp_state::IBV_QPS_RESET)),
        _ => Err(NOT_CONNECTED),
    }
}

/// The transport.
///
/// # Errors
/// [`DeviceError::Unsupported`] for one that this crate does not know.
pub fn qp_type(kind: QpType) -> Result<ibv_qp_type::Type, DeviceError> {
    match kind {
        QpType::Rc => Ok(ibv_qp_type::IBV_QPT_RC),
        QpType::Uc => Ok(ibv_qp_type::IBV_QPT_UC),
        QpType::Ud => Ok(ibv_qp_type::IBV_QPT_UD),
        _ => Err(DeviceError::Unsupported { what: "this transport" }),
    }
}

/// RESET to INIT.
///
/// # Errors
/// As [`transition`].
pub fn init(kind: QpType, init: &Init) -> Result<(ibv_qp_attr, Mask), DeviceError> {
    let (mut attr, mut mask) = to(ibv_qp_state::IBV_QPS_INIT);
    attr.pkey_index = init.pkey_index;
    attr.port_num = port(init.port)?;
    mask |= Mask::IBV_QP_PKEY_INDEX | Mask::IBV_QP_PORT;
    match kind {
        QpType::Rc | QpType::Uc => {
            attr.qp_access_flags = access(init.access).0;
            mask |= Mask::IBV_QP_ACCESS_FLAGS;
        }
        QpType::Ud => {
            attr.qkey = init.qkey.0;
            mask |= Mask::IBV_QP_QKEY;
        }
        _ => return Err(DeviceError::Unsupported { what: "this transport" }),
    }
    Ok((attr, mask))
}

/// INIT to RTR of a connection.
///
/// # Errors
/// As [`transition`].
pub fn rtr(kind: QpType, rtr: &Rtr) -> Result<(ibv_qp_attr, Mask), DeviceError> {
    let (mut attr, mask) = to(ibv_qp_state::IBV_QPS_RTR);
    attr.ah_attr = address_vector(&rtr.av)?;
    attr.path_mtu = match rtr.path_mtu.0 {
        code @ 1..=5 => code.into(), // the numbers of ibv_mtu
        code => return Err(limit("path MTU code", code.into(), 5)),
    };
    attr.dest_qp_num = rtr.dest_qpn.get();
    attr.rq_psn = rtr.rq_psn.get();
    let required = Mask::IBV_QP_AV | Mask::IBV_QP_PATH_MTU | Mask::IBV_QP_DEST_QPN | Mask::IBV_QP_RQ_PSN;
    match kind {
        QpType::Uc => Ok((attr, mask | required)),
        QpType::Rc => {
            attr.max_dest_rd_atomic = rtr.max_dest_rd_atomic;
            attr.min_rnr_timer = rtr.min_rnr_timer.get();
            let reliable = Mask::IBV_QP_MAX_DEST_RD_ATOMIC | Mask::IBV_QP_MIN_RNR_TIMER;
            Ok((attr, mask | required | reliable))
        }
        _ => Err(NOT_CONNECTED),
    }
}

/// RTR to RTS of a connection.
///
/// # Errors
/// As [`transition`].
pub fn rts(kind: QpType, rts: &Rts) -> Result<(ibv_qp_attr, Mask), DeviceError> {
    let (mut attr, mask) = to(ibv_qp_state::IBV_QPS_RTS);
    attr.sq_psn = rts.sq_psn.get();
    match kind {
        QpType::Uc => Ok((attr, mask | Mask::IBV_QP_SQ_PSN)),
        QpType::Rc => {
            attr.timeout = rts.timeout.get();
            attr.retry_cnt = at_most("retry count", rts.retry_count, 7)?;
            attr.rnr_retry = at_most("RNR retry count", rts.rnr_retry, 7)?;
            attr.max_rd_atomic = rts.max_rd_atomic;
            let required = Mask::IBV_QP_SQ_PSN
                | Mask::IBV_QP_TIMEOUT
                | Mask::IBV_QP_RETRY_CNT
                | Mask::IBV_QP_RNR_RETRY
                | Mask::IBV_QP_MAX_QP_RD_ATOMIC;
            let alternate = match &rts.alternate {
                Some(path) => rearm(path, &mut attr)?,
                None => Mask(0),
            };
            Ok((attr, mask | required | alternate))
        }
        _ => Err(NOT_CONNECTED),
    }
}

/// RTS to RTS of a reliable connection: loads an alternate path and rearms.
///
/// # Errors
/// As [`transition`].
pub fn load_path(path: &AlternatePath) -> Result<(ibv_qp_attr, Mask), DeviceError> {
    let (mut attr, mask) = to(ibv_qp_state::IBV_QPS_RTS);
    let alternate = rearm(path, &mut attr)?;
    Ok((attr, mask | alternate))
}

/// RTS to RTS of a reliable connection that is armed: migrates now.
pub fn migrate() -> (ibv_qp_attr, Mask) {
    let (mut attr, mask) = to(ibv_qp_state::IBV_QPS_RTS);
    attr.path_mig_state = ibv_mig_state::IBV_MIG_MIGRATED;
    (attr, mask | Mask::IBV_QP_PATH_MIG_STATE)
}

fn rearm(path: &AlternatePath, attr: &mut ibv_qp_attr) -> Result<Mask, DeviceError> {
    attr.alt_ah_attr = address_vector(&path.av)?;
    attr.alt_port_num = attr.alt_ah_attr.port_num;
    attr.alt_pkey_index = path.pkey_index;
    attr.alt_timeout = path.timeout.get();
    attr.path_mig_state = ibv_mig_state::IBV_MIG_REARM;
    Ok(Mask::IBV_QP_ALT_PATH | Mask::IBV_QP_PATH_MIG_STATE)
}

/// The address of a remote port.
///
/// # Errors
/// [`DeviceError::Limit`] for a port number of 0 and for a GID index above 255: libibverbs keeps it in one byte.
pub fn address_vector(av: &AddressVector) -> Result<ibv_ah_attr, DeviceError> {
    // SAFETY: integers, and a union of integers: all bytes zero is a value.
    let mut attr: ibv_ah_attr = unsafe { zeroed() };
    attr.dlid = av.dlid.0;
    attr.sl = av.sl.get();
    attr.src_path_bits = av.path_bits;
    attr.static_rate = av.rate.0; // libibverbs takes IBTA's codes
    attr.port_num = port(av.port)?;
    if let Some(route) = &av.grh {
        attr.is_global = 1;
        attr.grh = ibv_global_route {
            dgid: ibv_gid { raw: route.dgid.0 },
            flow_label: route.flow_label.get(),
            sgid_index: u8::try_from(route.sgid_index)
                .map_err(|_| limit("GID index", route.sgid_index.into(), u8::MAX.into()))?,
            hop_limit: route.hop_limit,
            traffic_class: route.traffic_class,
        };
    }
    Ok(attr)
}

/// What the peer may do. Local writes, which receives need, are always allowed.
pub fn access(remote: Access) -> ibv_access_flags {
    let mut flags = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE;
    for (allowed, flag) in [
        (Access::REMOTE_WRITE, ibv_access_flags::IBV_ACCESS_REMOTE_WRITE),
        (Access::REMOTE_READ, ibv_access_flags::IBV_ACCESS_REMOTE_READ),
        (Access::REMOTE_ATOMIC, ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC),
    ] {
        if remote.contains(allowed) {
            flags |= flag;
        }
    }
    flags
}

const NOT_CONNECTED: DeviceError = DeviceError::Unsupported { what: "this state change on this transport" };

fn to(state: ibv_qp_state::Type) -> (ibv_qp_attr, Mask) {
    // SAFETY: integers, and structs of integers: all bytes zero is a value.
    let mut attr: ibv_qp_attr = unsafe { zeroed() };
    attr.qp_state = state;
    (attr, Mask::IBV_QP_STATE)
}

fn port(number: u8) -> Result<u8, DeviceError> {
    match number {
        0 => Err(limit("port", 0, u8::MAX.into())),
        number => Ok(number),
    }
}

fn at_most(what: &'static str, value: u8, max: u8) -> Result<u8, DeviceError> {
    if value <= max { Ok(value) } else { Err(limit(what, value.into(), max.into())) }
}

fn limit(what: &'static str, value: u64, limit: u64) -> DeviceError {
    DeviceError::Limit { what, value, limit }
}
