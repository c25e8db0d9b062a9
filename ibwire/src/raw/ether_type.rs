//! EtherType: what an Ethernet frame or a raw packet carries.

use std::fmt;

/// An EtherType. Any number is one; those with a name are in the constants.
///
/// Below [`EtherType::MIN_ETHERNET`] it fits a raw packet of InfiniBand, but on Ethernet the field is a length there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EtherType(pub u16);

macro_rules! ether_types {
    ($($(#[$doc:meta])* $name:ident = $value:literal, $text:literal;)*) => {
        impl EtherType {
            $($(#[$doc])* pub const $name: Self = Self($value);)*

            /// What it stands for, or `None` if it is not in the list of this crate.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some($text),)*
                    _ => None,
                }
            }
        }
    };
}

ether_types! {
    /// IPv4.
    IPV4 = 0x0800, "IPv4";
    /// Address resolution for IPv4.
    ARP = 0x0806, "ARP";
    /// Reverse ARP.
    RARP = 0x8035, "RARP";
    /// A VLAN tag (IEEE 802.1Q).
    VLAN = 0x8100, "VLAN";
    /// IPv6.
    IPV6 = 0x86dd, "IPv6";
    /// A service tag (IEEE 802.1ad).
    SERVICE_VLAN = 0x88a8, "service VLAN";
    /// For experiments (IEEE 802, local experimental 1).
    LOCAL_1 = 0x88b5, "local experimental 1";
    /// For experiments (IEEE 802, local experimental 2).
    LOCAL_2 = 0x88b6, "local experimental 2";
    /// TIPC.
    TIPC = 0x88ca, "TIPC";
    /// Link layer discovery (IEEE 802.1AB).
    LLDP = 0x88cc, "LLDP";
    /// RoCE version 1.
    ROCE = 0x8915, "RoCE";
}

impl EtherType {
    /// The smallest that Ethernet can carry: what is less is a length there (IEEE 802.3).
    pub const MIN_ETHERNET: Self = Self(0x0600);
}

impl fmt::Display for EtherType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#06x}", self.0)
    }
}

impl fmt::Debug for EtherType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "EtherType({self}, {name})"),
            None => write!(f, "EtherType({self})"),
        }
    }
}
