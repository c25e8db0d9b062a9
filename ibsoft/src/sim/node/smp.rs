//! Subnet management packets: the fields of their MAD, and the way of those that carry their route along
//! (IBTA vol. 1, 14.2.1 and 14.2.2).

use ibdev::MAD_LEN;
use ibwire::Lid;
use ibwire::mad::{MadHeader, MadStatus, Method, MgmtClass};

/// A subnet management packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Smp {
    pub header: MadHeader,
    raw: [u8; MAD_LEN],
}

/// Where a packet with a directed route goes from a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Out by this port.
    Out(u8),
    /// To the node itself: its agent or its manager.
    Here,
    /// Its pointer is not where it can be at this node, or a part of the way is by LID, which nobody uses.
    Discard,
}

/// Attributes of the subnet management class.
pub(crate) mod attribute {
    use ibwire::mad::AttributeId;

    pub(crate) const NODE_DESCRIPTION: AttributeId = AttributeId(0x0010);
    pub(crate) const NODE_INFO: AttributeId = AttributeId(0x0011);
    pub(crate) const SWITCH_INFO: AttributeId = AttributeId(0x0012);
    pub(crate) const GUID_INFO: AttributeId = AttributeId(0x0014);
    pub(crate) const PORT_INFO: AttributeId = AttributeId(0x0015);
    pub(crate) const P_KEY_TABLE: AttributeId = AttributeId(0x0016);
    pub(crate) const SL_TO_VL: AttributeId = AttributeId(0x0017);
    pub(crate) const VL_ARBITRATION: AttributeId = AttributeId(0x0018);
    pub(crate) const LINEAR_FORWARDING: AttributeId = AttributeId(0x0019);
    pub(crate) const MULTICAST_FORWARDING: AttributeId = AttributeId(0x001b);
    pub(crate) const SM_INFO: AttributeId = AttributeId(0x0020);
}

impl Smp {
    /// Version of the class.
    pub(crate) const CLASS_VERSION: u8 = 1;
    const D_BIT: u16 = 1 << 15;
    const M_KEY: usize = 24;
    const DR_SLID: usize = 32;
    const DR_DLID: usize = 34;
    const DATA: usize = 64;
    const DATA_LEN: usize = 64;
    const INITIAL_PATH: usize = 128;
    const RETURN_PATH: usize = 192;
    const MOST_HOPS: u8 = 63;

    /// The packet, if the MAD is one of this class.
    pub(crate) fn parse(mad: &[u8; MAD_LEN]) -> Option<Self> {
        let header = MadHeader::parse(mad).ok()?;
        let is_one = matches!(header.class, MgmtClass::SUBN_LID_ROUTED | MgmtClass::SUBN_DIRECTED_ROUTE)
            && header.base_version == MadHeader::BASE_VERSION;
        is_one.then_some(Self { header, raw: *mad })
    }

    /// A packet that goes by LID.
    pub(crate) fn by_lid(header: MadHeader, m_key: u64, data: &[u8]) -> Self {
        let mut smp = Self { header, raw: [0; MAD_LEN] };
        smp.raw[Self::M_KEY..Self::M_KEY + 8].copy_from_slice(&m_key.to_be_bytes());
        smp.data_mut()[..data.len()].copy_from_slice(data);
        smp
    }

    pub(crate) fn to_mad(self) -> [u8; MAD_LEN] {
        let mut raw = self.raw;
        self.header.write_to(&mut raw[..MadHeader::LEN]);
        raw
    }

    pub(crate) fn m_key(&self) -> u64 {
        self.raw[Self::M_KEY..].first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
    }

    /// What the attribute says, 64 bytes.
    pub(crate) fn data(&self) -> &[u8] {
        &self.raw[Self::DATA..Self::DATA + Self::DATA_LEN]
    }

    pub(crate) fn data_mut(&mut self) -> &mut [u8] {
        &mut self.raw[Self::DATA..Self::DATA + Self::DATA_LEN]
    }

    pub(crate) fn is_directed(&self) -> bool {
        self.header.class == MgmtClass::SUBN_DIRECTED_ROUTE
    }

    /// The LID where the directed part of the way back ends; permissive if that is the end.
    pub(crate) fn dr_slid(&self) -> Lid {
        self.lid(Self::DR_SLID)
    }

    /// The LID behind the directed part of the way there; permissive if there is none.
    pub(crate) fn dr_dlid(&self) -> Lid {
        self.lid(Self::DR_DLID)
    }

    fn lid(&self, at: usize) -> Lid {
        Lid(u16::from_be_bytes([self.raw[at], self.raw[at + 1]]))
    }

    pub(crate) fn is_returning(&self) -> bool {
        self.is_directed() && self.header.status.0 & Self::D_BIT != 0
    }

    const fn hops(&self) -> (u8, u8) {
        let [pointer, count] = self.header.class_specific.to_be_bytes();
        (pointer, count)
    }

    fn set_pointer(&mut self, pointer: u8) {
        self.header.class_specific = u16::from_be_bytes([pointer, self.hops().1]);
    }

    /// Whether a manager takes it, not the node's own agent.
    pub(crate) fn is_for_manager(&self) -> bool {
        self.header.method.is_response()
            || self.header.method == Method::TRAP
            || self.header.attribute == attribute::SM_INFO
    }

    /// Turns a request into its answer.
    pub(crate) fn answer(mut self, status: MadStatus) -> Self {
        let direction = if self.is_directed() { Self::D_BIT } else { 0 };
        self.header.method = Method::GET_RESP;
        self.header.status = MadStatus(status.0 | direction);
        self
    }

    /// The next step of a directed route. `entered` is the port by which it came in, `None` at the node that sends it
    /// or by LID; only switches pass packets on. The packet is changed as the node changes it.
    pub(crate) fn step(&mut self, entered: Option<u8>, is_switch: bool) -> Step {
        let (pointer, count) = self.hops();
        if count > Self::MOST_HOPS {
            return Step::Discard;
        }
        if self.is_returning() {
            self.step_back(pointer, count, entered, is_switch)
        } else {
            self.step_on(pointer, count, entered, is_switch)
        }
    }

    fn step_on(&mut self, pointer: u8, count: u8, entered: Option<u8>, is_switch: bool) -> Step {
        if pointer == 0 && count > 0 {
            // The route begins here: nobody sends one that came in by a port and did not begin yet.
            if entered.is_some() {
                return Step::Discard;
            }
            self.set_pointer(1);
            return Step::Out(self.raw[Self::INITIAL_PATH + 1]);
        }
        if pointer < count {
            let Some(entered) = entered.filter(|_| is_switch) else { return Step::Discard };
            self.raw[Self::RETURN_PATH + usize::from(pointer)] = entered;
            self.set_pointer(pointer + 1);
            return Step::Out(self.raw[Self::INITIAL_PATH + usize::from(pointer) + 1]);
        }
        if pointer == count {
            if count > 0 {
                let Some(entered) = entered else { return Step::Discard };
                self.raw[Self::RETURN_PATH + usize::from(pointer)] = entered;
            }
            self.set_pointer(pointer + 1);
            return if self.dr_dlid() == Lid::PERMISSIVE { Step::Here } else { Step::Discard };
        }
        if pointer == count + 1 { Step::Here } else { Step::Discard }
    }

    fn step_back(&mut self, pointer: u8, count: u8, entered: Option<u8>, is_switch: bool) -> Step {
        match pointer {
            0 => Step::Here,
            1 => {
                self.set_pointer(0);
                if self.dr_slid() == Lid::PERMISSIVE { Step::Here } else { Step::Discard }
            }
            // The answering node's own step, or a switch on the way.
            _ if pointer == count + 1 && entered.is_none() || pointer <= count && is_switch => {
                self.set_pointer(pointer - 1);
                Step::Out(self.raw[Self::RETURN_PATH + usize::from(pointer) - 1])
            }
            _ => Step::Discard,
        }
    }
}

#[cfg(test)]
impl Smp {
    /// A packet with the route `path`, the ports to leave by.
    pub(crate) fn directed(header: MadHeader, path: &[u8]) -> Self {
        let mut smp =
            Self { header: MadHeader { class_specific: path.len() as u16, ..header }, raw: [0; MAD_LEN] };
        smp.raw[Self::DR_SLID..Self::DR_DLID + 2].fill(0xff);
        smp.raw[Self::INITIAL_PATH + 1..][..path.len()].copy_from_slice(path);
        smp
    }
}
