//! What follows an IPv6 header: the protocol numbers of IANA.

use std::fmt;

/// A protocol number. Any is one; those that IANA has given a name know it.
///
/// The registry of 2026: 0 to 147, 253 and 254 for experiments, 255 reserved (spec/raw.md 5).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NextHeader(pub u8);

impl NextHeader {
    /// IPv6 Hop-by-Hop Option.
    pub const HOP_BY_HOP: Self = Self(0);
    /// Internet Control Message.
    pub const ICMP: Self = Self(1);
    /// Internet Group Management.
    pub const IGMP: Self = Self(2);
    /// IPv4 encapsulation.
    pub const IPV4: Self = Self(4);
    /// Transmission Control.
    pub const TCP: Self = Self(6);
    /// User Datagram.
    pub const UDP: Self = Self(17);
    /// Datagram Congestion Control Protocol.
    pub const DCCP: Self = Self(33);
    /// IPv6 encapsulation.
    pub const IPV6: Self = Self(41);
    /// Routing Header for IPv6.
    pub const ROUTE: Self = Self(43);
    /// Fragment Header for IPv6.
    pub const FRAGMENT: Self = Self(44);
    /// Generic Routing Encapsulation.
    pub const GRE: Self = Self(47);
    /// Encap Security Payload.
    pub const ESP: Self = Self(50);
    /// Authentication Header.
    pub const AH: Self = Self(51);
    /// ICMP for IPv6.
    pub const ICMPV6: Self = Self(58);
    /// No Next Header for IPv6.
    pub const NONE: Self = Self(59);
    /// Destination Options for IPv6.
    pub const DESTINATION_OPTIONS: Self = Self(60);
    /// OSPFIGP.
    pub const OSPF: Self = Self(89);
    /// Protocol Independent Multicast.
    pub const PIM: Self = Self(103);
    /// Virtual Router Redundancy Protocol.
    pub const VRRP: Self = Self(112);
    /// Stream Control Transmission Protocol.
    pub const SCTP: Self = Self(132);
    /// Mobility Header.
    pub const MOBILITY: Self = Self(135);
    /// UDP-Lite.
    pub const UDP_LITE: Self = Self(136);
    /// Host Identity Protocol.
    pub const HIP: Self = Self(139);
    /// Shim6 Protocol.
    pub const SHIM6: Self = Self(140);
    /// Ethernet.
    pub const ETHERNET: Self = Self(143);
    /// Bit-stream Emulation.
    pub const BIT_EMU: Self = Self(147);
    /// For experiments and tests (RFC 3692), the first of two.
    pub const EXPERIMENT_1: Self = Self(253);
    /// For experiments and tests (RFC 3692), the second of two.
    pub const EXPERIMENT_2: Self = Self(254);

    /// IANA's keyword, or its description where there is no keyword; `None` for what is not assigned.
    pub fn name(self) -> Option<&'static str> {
        match self.0 {
            253 | 254 => Some("experimentation and testing"),
            255 => Some("Reserved"),
            number => NAMES.get(usize::from(number)).copied(),
        }
    }

    /// Whether it is an extension header of IPv6: another header may follow it.
    pub const fn is_extension(self) -> bool {
        matches!(self.0, 0 | 43 | 44 | 50 | 51 | 60 | 135 | 139 | 140 | 147 | 253 | 254)
    }
}

impl fmt::Display for NextHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Debug for NextHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "NextHeader({self}, {name})"),
            None => write!(f, "NextHeader({self})"),
        }
    }
}

/// Names of the numbers from 0 on.
#[rustfmt::skip]
const NAMES: [&str; 148] = [
    "HOPOPT", "ICMP", "IGMP", "GGP", "IPv4", "ST", "TCP", "CBT", "EGP", "IGP", "BBN-RCC-MON", "NVP-II", "PUP",
    "ARGUS", "EMCON", "XNET", "CHAOS", "UDP", "MUX", "DCN-MEAS", "HMP", "PRM", "XNS-IDP", "TRUNK-1", "TRUNK-2",
    "LEAF-1", "LEAF-2", "RDP", "IRTP", "ISO-TP4", "NETBLT", "MFE-NSP", "MERIT-INP", "DCCP", "3PC", "IDPR",
    "XTP", "DDP", "IDPR-CMTP", "TP++", "IL", "IPv6", "SDRP", "IPv6-Route", "IPv6-Frag", "IDRP", "RSVP", "GRE",
    "DSR", "BNA", "ESP", "AH", "I-NLSP", "SWIPE", "NARP", "Min-IPv4", "TLSP", "SKIP", "IPv6-ICMP",
    "IPv6-NoNxt", "IPv6-Opts", "any host internal protocol", "CFTP", "any local network", "SAT-EXPAK",
    "KRYPTOLAN", "RVD", "IPPC", "any distributed file system", "SAT-MON", "VISA", "IPCV", "CPNX", "CPHB",
    "WSN", "PVP", "BR-SAT-MON", "SUN-ND", "WB-MON", "WB-EXPAK", "ISO-IP", "VMTP", "SECURE-VMTP", "VINES",
    "IPTM", "NSFNET-IGP", "DGP", "TCF", "EIGRP", "OSPFIGP", "Sprite-RPC", "LARP", "MTP", "AX.25", "IPIP",
    "MICP", "SCC-SP", "ETHERIP", "ENCAP", "any private encryption scheme", "GMTP", "IFMP", "PNNI", "PIM",
    "ARIS", "SCPS", "QNX", "A/N", "IPComp", "SNP", "Compaq-Peer", "IPX-in-IP", "VRRP", "PGM",
    "any 0-hop protocol", "L2TP", "DDX", "IATP", "STP", "SRP", "UTI", "SMP", "SM", "PTP", "ISIS over IPv4",
    "FIRE", "CRTP", "CRUDP", "SSCOPMCE", "IPLT", "SPS", "PIPE", "SCTP", "FC", "RSVP-E2E-IGNORE",
    "Mobility Header", "UDPLite", "MPLS-in-IP", "manet", "HIP", "Shim6", "WESP", "ROHC", "Ethernet", "AGGFRAG",
    "NSH", "Homa", "BIT-EMU",
];
