//! InfiniBand and RoCE as bytes: addresses, codes, packet and MAD headers, ICRC and VCRC, PathRecord.
//!
//! No I/O, no async, no allocation in the hot path. Wire numbers are types that are checked where they enter
//! ([`Qpn`], [`Psn`], [`TimeCode`]); codes are open enumerations, so that an unknown value survives a round trip
//! ([`RejReason`], [`Rate`]).
#![forbid(unsafe_code)]

mod addr;
mod code;
mod codec;
mod error;
pub mod icrc;
pub mod mad;
mod number;
pub mod packet;
mod path_record;
mod private_data;
mod reject;
pub mod vcrc;

pub use addr::{Gid, Guid, Lid, ParseGidError, ParseGuidError};
pub use code::{Mtu, PacketLifeTime, Rate, RnrTimer, TimeCode};
pub use error::DecodeError;
pub use number::{
    CommId, FlowLabel, Msn, PKey, Psn, QKey, Qpn, RKey, ServiceId, ServiceLevel, TransactionId,
};
pub use path_record::{PathRecord, Selector};
pub use private_data::{PrivateData, PrivateDataTooLong};
pub use reject::RejReason;
