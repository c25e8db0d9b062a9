//! The records of class version 1, as IBA 1.0a had them (spec/sa.md 3.30). No SA of today speaks it: this reads old traces and
//! old texts.
//!
//! Records were named by a 32-bit [`Rid`]; segmentation was part of the class's own [`Header`]. Bit i of a component mask
//! is the i-th element of the record, reserved ones counted.

mod header;
mod nodes;
mod response;
mod services;

pub use header::{EditModifier, Header};
pub use nodes::{
    GuidInfoRecord, InformRecord, LinearForwardingTableRecord, LinkRecord, MulticastForwardingTableRecord,
    NodeRecord, NoticeRecord, PartitionRecord, PortInfoRecord, RandomForwardingTableRecord, Rid,
    SlToVlMappingTableRecord, SmInfoRecord, SwitchInfoRecord, VlArbitrationTableRecord,
};
pub use response::{SaResponse, TableEnd};
pub use services::{McGroupRecord, McMemberRecord, PathRecord, RangeRecord, ServiceRecord};
