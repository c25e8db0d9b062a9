//! Subnet management packets by directed route, as a manager sends and reads them (IBTA vol. 1, 14.2.1).

use ibsa::proto::rmpp::Mad;
use ibwire::mad::{AttributeId, MadHeader, MadStatus, Method, MgmtClass};
use ibwire::{Lid, TransactionId};

/// Attributes of the class.
pub(super) mod attribute {
    use ibwire::mad::AttributeId;

    pub(in super::super) const NODE_DESCRIPTION: AttributeId = AttributeId(0x10);
    pub(in super::super) const NODE_INFO: AttributeId = AttributeId(0x11);
    pub(in super::super) const SWITCH_INFO: AttributeId = AttributeId(0x12);
    pub(in super::super) const GUID_INFO: AttributeId = AttributeId(0x14);
    pub(in super::super) const PORT_INFO: AttributeId = AttributeId(0x15);
    pub(in super::super) const P_KEY_TABLE: AttributeId = AttributeId(0x16);
    pub(in super::super) const SL_TO_VL: AttributeId = AttributeId(0x17);
    pub(in super::super) const VL_ARBITRATION: AttributeId = AttributeId(0x18);
    pub(in super::super) const LINEAR_FORWARDING: AttributeId = AttributeId(0x19);
    pub(in super::super) const MULTICAST_FORWARDING: AttributeId = AttributeId(0x1b);
    pub(in super::super) const SM_INFO: AttributeId = AttributeId(0x20);
}

/// Version of the class.
const CLASS_VERSION: u8 = 1;
/// The bit of the status that marks a packet on its way back.
const RETURNING: u16 = 1 << 15;
const DR_LIDS: std::ops::Range<usize> = 32..36;
const DATA: std::ops::Range<usize> = 64..128;
const INITIAL_PATH: usize = 128;
/// Most hops of a directed route.
pub(super) const MOST_HOPS: usize = 63;

/// The ports by which a packet leaves, one node after another.
pub(super) type Path = Vec<u8>;

/// A request by directed route.
pub(super) fn request(
    method: Method,
    attribute: AttributeId,
    modifier: u32,
    tid: TransactionId,
    path: &[u8],
    data: &[u8],
) -> Mad {
    let mut mad = [0; ibwire::mad::MAD_LEN];
    let header = MadHeader {
        attribute_modifier: modifier,
        class_specific: path.len() as u16, // hop pointer 0, hop count
        ..MadHeader::new(MgmtClass::SUBN_DIRECTED_ROUTE, CLASS_VERSION, method, attribute, tid)
    };
    header.write_to(&mut mad);
    mad[DR_LIDS].fill(0xff);
    mad[DATA][..data.len()].copy_from_slice(data);
    mad[INITIAL_PATH + 1..][..path.len()].copy_from_slice(path);
    mad
}

/// The answer to a request that reached the manager: the same packet turned round.
pub(super) fn answer(request: &Mad, header: MadHeader, status: MadStatus, data: &[u8]) -> Mad {
    let mut mad = *request;
    let direction = if header.class == MgmtClass::SUBN_DIRECTED_ROUTE { RETURNING } else { 0 };
    let status = MadStatus(status.0 | direction);
    MadHeader { method: Method::GET_RESP, status, ..header }.write_to(&mut mad);
    mad[DATA].fill(0);
    mad[DATA][..data.len()].copy_from_slice(data);
    mad
}

/// The answer to a trap: it was heard.
pub(super) fn repress(trap: &Mad, header: MadHeader) -> Mad {
    let mut mad = *trap;
    MadHeader { method: Method::TRAP_REPRESS, ..header }.write_to(&mut mad);
    mad
}

/// What the attribute of a packet says.
pub(super) fn data(mad: &Mad) -> &[u8] {
    &mad[DATA]
}

/// The status of an answer without the direction.
pub(super) const fn status(header: &MadHeader) -> MadStatus {
    MadStatus(header.status.0 & !RETURNING)
}

/// Where answers by directed route go: the route is in the packet.
pub(super) const BY_ROUTE: Lid = Lid::PERMISSIVE;
