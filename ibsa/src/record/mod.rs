//! Every record of subnet administration, class version 2 (IBTA vol. 1, 15.2.5; spec/sa.md section 3).
//!
//! A record is a struct with public fields. [`Layout::parse`] reads it, [`Layout::to_bytes`] writes it, `{}` prints one
//! line and `{:#}` all fields. [`Template`] is what a query is made of: its setters set a field together with its bits of
//! the component mask, a value together with its selector.
//!
//! | where | records |
//! |---|---|
//! | nodes | [`NodeRecord`] |
//! | ports | [`PortInfoRecord`], [`PortInfoExtendedRecord`] |
//! | switches | [`SwitchInfoRecord`] |
//! | tables of a port or switch | [`LftRecord`], [`RftRecord`], [`MftRecord`], [`Sl2VlTableRecord`], [`VlArbitrationTableRecord`], [`PKeyTableRecord`], [`GuidInfoRecord`] |
//! | the subnet | [`SmInfoRecord`], [`LinkRecord`], [`TraceRecord`] |
//! | paths | [`PathRecord`], [`MultiPath`] |
//! | multicast | [`McMemberRecord`] |
//! | services | [`ServiceRecord`], [`ServiceAssociationRecord`] |
//! | events | [`InformInfo`], [`InformInfoRecord`], [`Notice`] |
//!
//! ```
//! use ibsa::record::{Is, Layout, PathRecord, Template};
//! use ibwire::{Mtu, Rate};
//!
//! let wanted = Template::<PathRecord>::new()
//!     .p_key(0x1234)
//!     .sl(3)
//!     .mtu(Is::LessThan(Mtu::B2048))
//!     .rate(Is::Exactly(Rate::GBPS_2_5));
//! let (record, mask) = wanted.checked()?;
//! assert_eq!(mask, 0xfa000);
//! assert_eq!(record.to_bytes()[50..56], [0x12, 0x34, 0x00, 0x03, 0x44, 0x82]);
//!
//! let refused = Template::<PathRecord>::new().sl(16).checked().unwrap_err();
//! assert_eq!(refused.to_string(), "PathRecord sl is 16, at most 15 is possible");
//! # Ok::<(), ibsa::record::InvalidField>(())
//! ```

mod bits;
mod code;
mod inform;
mod layout;
mod multi_path;
mod multicast;
mod node;
mod notice;
mod path;
mod port_info;
mod service;
mod subnet;
mod switch_info;
mod tables;
mod template;
pub mod v1;
mod value;

pub use ibwire::PathRecord;
pub use ibwire::mad::ClassPortInfo;

pub use code::{
    JoinState, LinkSpeed, LinkSpeedExt, LinkSpeedExt2, LinkWidth, NodeType, NoticeType, PortCapabilities,
    PortCapabilities2, PortPhysicalState, PortState, SmState,
};
pub use inform::{InformInfo, InformInfoRecord};
pub use layout::{Layout, Masked, Record};
pub use multi_path::{MultiPath, MultiPathRecord};
pub use multicast::{McMemberRecord, ProxyJoin};
pub use node::{NodeInfo, NodeRecord};
pub use notice::{Notice, NoticeDetails, Offender};
pub use port_info::{PortInfo, PortInfoExtendedRecord, PortInfoRecord};
pub use service::{ServiceAssociationRecord, ServiceRecord};
pub use subnet::{LinkRecord, SmInfoRecord, TraceRecord};
pub use switch_info::{SwitchInfo, SwitchInfoRecord};
pub use tables::{
    GuidInfoRecord, LftRecord, MftRecord, PKeyTableRecord, RandomRoute, RftRecord, Sl2VlTableRecord,
    VlArbitrationTableRecord, VlWeight,
};
pub use template::{InvalidField, Is, Template};
pub use value::{IntoField, Text, Value};
