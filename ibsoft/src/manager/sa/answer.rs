//! From a request to its answer.

use ibsa::mad::{RmppHeader, SaHeader, attribute_offset};
use ibsa::proto::rmpp::Mad;
use ibsa::record::{ClassPortInfo, Layout};
use ibwire::mad::{AttributeId, MadStatus, Method, Redirect};
use ibwire::{QKey, Qpn};

use super::request::{Request, status};
use super::{Sa, SaLimits};

/// Records of an answer, as they stand on the wire.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Rows {
    pub data: Vec<u8>,
    pub count: usize,
    /// Bytes from one to the next, in units of 8.
    pub offset: u16,
    limit: usize,
}

impl Rows {
    pub(super) fn new(limits: &SaLimits) -> Self {
        Self { limit: limits.records, ..Self::default() }
    }

    /// Adds a record, padded.
    pub(super) fn push<L: Layout>(&mut self, record: &L) -> Result<(), MadStatus> {
        if self.count == self.limit {
            return Err(status::NO_RESOURCES);
        }
        self.offset = attribute_offset::<L>();
        let at = self.data.len();
        self.data.resize(at + usize::from(self.offset) * 8, 0);
        record.write_to(&mut self.data[at..]);
        self.count += 1;
        Ok(())
    }
}

/// What goes back.
#[derive(Debug)]
pub(super) enum Answer {
    /// One record in one MAD, with this attribute offset.
    One(Vec<u8>, u16),
    /// What was found: a transfer for GetTable; for Get it has to be one.
    Found(Rows),
}

impl Answer {
    /// One record.
    pub(super) fn one<L: Layout>(record: &L) -> Self {
        Self::One(record.to_bytes(), attribute_offset::<L>())
    }
}

/// Attributes that are not those of a record type.
mod attribute {
    use ibwire::mad::AttributeId;

    pub(super) const NODE: AttributeId = AttributeId(0x11);
    pub(super) const PORT_INFO: AttributeId = AttributeId(0x12);
    pub(super) const SL2VL: AttributeId = AttributeId(0x13);
    pub(super) const SWITCH_INFO: AttributeId = AttributeId(0x14);
    pub(super) const LFT: AttributeId = AttributeId(0x15);
    pub(super) const MFT: AttributeId = AttributeId(0x17);
    pub(super) const SM_INFO: AttributeId = AttributeId(0x18);
    pub(super) const LINK: AttributeId = AttributeId(0x20);
    pub(super) const GUID_INFO: AttributeId = AttributeId(0x30);
    pub(super) const SERVICE: AttributeId = AttributeId(0x31);
    pub(super) const P_KEY_TABLE: AttributeId = AttributeId(0x33);
    pub(super) const PATH: AttributeId = AttributeId(0x35);
    pub(super) const VL_ARBITRATION: AttributeId = AttributeId(0x36);
    pub(super) const MC_MEMBER: AttributeId = AttributeId(0x38);
    pub(super) const MULTI_PATH: AttributeId = AttributeId(0x3a);
    pub(super) const INFORM_INFO_RECORD: AttributeId = AttributeId(0xf3);
}

impl Sa {
    /// Finds out what a request is answered with.
    pub(super) fn answer(&mut self, request: &Request<'_>) -> Result<Answer, MadStatus> {
        let (method, id) = (request.header.mad.method, request.header.mad.attribute);
        match method {
            Method::GET if id == AttributeId::CLASS_PORT_INFO => {
                Ok(Answer::One(self.class_port_info().to_bytes().to_vec(), 0))
            }
            Method::GET | Method::GET_TABLE => self.find(request, id).map(Answer::Found),
            Method::SET if id == attribute::MC_MEMBER => self.join(request),
            Method::SET if id == attribute::SERVICE => self.register(request),
            Method::SET if id == attribute::GUID_INFO => self.set_guids(request),
            Method::SET if id == AttributeId::INFORM_INFO => self.subscribe(request),
            Method::DELETE if id == attribute::MC_MEMBER => self.leave(request),
            Method::DELETE if id == attribute::SERVICE => self.unregister(request),
            Method::DELETE if id == attribute::GUID_INFO => self.delete_guids(request),
            Method::GET_MULTI if id == attribute::MULTI_PATH => Err(status::INVALID), // it was not a transfer
            _ => Err(MadStatus::BAD_METHOD_ATTRIBUTE),
        }
    }

    fn find(&mut self, request: &Request<'_>, id: AttributeId) -> Result<Rows, MadStatus> {
        match id {
            attribute::NODE => self.node_records(request),
            attribute::PORT_INFO => self.port_info_records(request),
            attribute::SL2VL => self.sl2vl_records(request),
            attribute::SWITCH_INFO => self.switch_info_records(request),
            attribute::LFT => self.lft_records(request),
            attribute::MFT => self.mft_records(request),
            attribute::SM_INFO => self.sm_info_records(request),
            attribute::LINK => self.link_records(request),
            attribute::GUID_INFO => self.guid_info_records(request),
            attribute::P_KEY_TABLE => self.p_key_records(request),
            attribute::VL_ARBITRATION => self.arbitration_records(request),
            attribute::SERVICE => self.service_records(request),
            attribute::MC_MEMBER => self.member_records(request),
            attribute::INFORM_INFO_RECORD => self.subscription_records(request),
            attribute::PATH => self.path_records(request),
            _ => Err(MadStatus::BAD_METHOD_ATTRIBUTE),
        }
    }

    fn class_port_info(&self) -> ClassPortInfo {
        ClassPortInfo {
            base_version: 1,
            class_version: SaHeader::CLASS_VERSION,
            // UD multicast, MultiPath, capability mask match.
            capability_mask: 1 << 9 | 1 << 10 | 1 << 13,
            // Alias GUIDs, whole PortInfoRecord, extended speeds, both capability masks match, send-only full members, 2x, HDR.
            capability_mask2: 1 << 5 | 1 << 6 | 1 << 7 | 1 << 10 | 1 << 12 | 1 << 13 | 1 << 15,
            resp_time: self.config.resp_time,
            redirect: Redirect { qpn: Qpn::GSI, qkey: QKey::GSI, ..Redirect::default() },
            trap: Redirect { qkey: QKey::GSI, ..Redirect::default() },
            trap_hop_limit: 0,
        }
    }

    /// Sends the answer to a request that is a single MAD.
    pub(super) fn reply(&mut self, request: &Request<'_>, answer: Result<Answer, MadStatus>) {
        let is_table = request.header.mad.method == Method::GET_TABLE;
        let is_path = request.header.mad.attribute == attribute::PATH;
        let (data, offset) = match answer {
            Err(status) => return self.refuse(request, status),
            Ok(Answer::Found(rows)) if is_table => return self.reply_table(request, rows),
            Ok(Answer::Found(rows)) if rows.count == 0 => return self.refuse(request, status::NO_RECORDS),
            Ok(Answer::Found(rows)) if rows.count > 1 && !is_path => {
                return self.refuse(request, status::TOO_MANY_RECORDS);
            }
            Ok(Answer::Found(mut rows)) => {
                rows.data.truncate(usize::from(rows.offset) * 8);
                (rows.data, rows.offset)
            }
            Ok(Answer::One(data, offset)) => (data, offset),
        };
        let header = SaHeader {
            mad: request.header.mad.response(MadStatus::OK),
            rmpp: RmppHeader::default(),
            sm_key: 0,
            attribute_offset: offset,
            component_mask: request.header.component_mask,
        };
        self.send(request.now, request.from, mad(&header, &data));
    }

    /// Begins the transfer of a table.
    fn reply_table(&mut self, request: &Request<'_>, rows: Rows) {
        let header = SaHeader {
            mad: request.header.mad.response(MadStatus::OK),
            rmpp: RmppHeader::default(),
            sm_key: 0,
            attribute_offset: rows.offset,
            component_mask: request.header.component_mask,
        };
        self.begin_transfer(request, header, rows.data);
    }

    /// Sends a refusal: the request comes back with a status.
    pub(super) fn refuse(&mut self, request: &Request<'_>, status: MadStatus) {
        self.counters.refused += 1;
        let mut mad_header = request.header.mad.response(status);
        if mad_header.attribute == attribute::MULTI_PATH {
            mad_header.attribute = attribute::PATH; // as the answer would be
        }
        let header = SaHeader {
            mad: mad_header,
            rmpp: RmppHeader::default(),
            sm_key: 0,
            attribute_offset: 0,
            component_mask: request.header.component_mask,
        };
        let data = &request.data[..request.data.len().min(SaHeader::DATA_LEN)];
        self.send(request.now, request.from, mad(&header, data));
    }
}

/// Headers and at most 200 bytes of data as a MAD.
pub(super) fn mad(header: &SaHeader, data: &[u8]) -> Mad {
    let mut mad = [0; ibwire::mad::MAD_LEN];
    mad[..SaHeader::LEN].copy_from_slice(&header.to_bytes());
    mad[SaHeader::LEN..SaHeader::LEN + data.len()].copy_from_slice(data);
    mad
}
