//! Codes and sets of bits in records.

use std::fmt;

use super::value::number;

/// Declares a code whose unknown values are kept as they came.
macro_rules! code {
    ($(#[$meta:meta])* $name:ident($raw:ty) { $( $(#[$value_meta:meta])* $value:ident = $number:literal, $word:literal; )* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $raw);

        impl $name {
            $( $(#[$value_meta])* pub const $value: Self = Self($number); )*
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.0 {
                    $( $number => f.pad($word), )*
                    other => write!(f, "code {other}"),
                }
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }

        number! { $name: |raw| $name(raw as $raw), |value: &$name| u64::from(value.0); }
    };
}

/// Declares a set of bits; unknown bits are kept as they came.
macro_rules! set {
    ($(#[$($meta:tt)*])* $name:ident($raw:ty) { $( $(#[$($bit_meta:tt)*])* $bit:ident = $index:literal; )* }) => {
        bitflags::bitflags! {
            $(#[$($meta)*])*
            #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
            pub struct $name: $raw {
                $( $(#[$($bit_meta)*])* const $bit = 1 << $index; )*
                const _ = !0;
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.is_empty() {
                    true => f.write_str("none"),
                    false => bitflags::parser::to_writer(self, f),
                }
            }
        }

        number! { $name: |raw| $name::from_bits_retain(raw as $raw), |value: &$name| u64::from(value.bits()); }
    };
}

code! {
    /// What a node is (IBTA vol. 1, 14.2.5.3).
    NodeType(u8) {
        /// A channel adapter.
        CA = 1, "CA";
        /// A switch.
        SWITCH = 2, "switch";
        /// A router.
        ROUTER = 3, "router";
    }
}

code! {
    /// The logical state of a port (IBTA vol. 1, 14.2.5.6).
    PortState(u8) {
        /// No link.
        DOWN = 1, "Down";
        /// A link, not configured by the SM yet.
        INIT = 2, "Init";
        /// Configured.
        ARMED = 3, "Armed";
        /// In service.
        ACTIVE = 4, "Active";
    }
}

code! {
    /// The physical state of a port (IBTA vol. 1, 14.2.5.6).
    PortPhysicalState(u8) {
        /// Asleep.
        SLEEP = 1, "Sleep";
        /// Looking for a link partner.
        POLLING = 2, "Polling";
        /// Switched off.
        DISABLED = 3, "Disabled";
        /// Training the link.
        TRAINING = 4, "Training";
        /// The link is up.
        LINK_UP = 5, "LinkUp";
        /// Recovering from errors.
        LINK_ERROR_RECOVERY = 6, "LinkErrorRecovery";
        /// Under test.
        PHY_TEST = 7, "PhyTest";
    }
}

code! {
    /// What a subnet manager is at the moment (IBTA vol. 1, 14.4.1).
    SmState(u8) {
        /// Switched off.
        NOT_ACTIVE = 0, "not active";
        /// Looking at the subnet.
        DISCOVERING = 1, "discovering";
        /// Another one is master.
        STANDBY = 2, "standby";
        /// In charge.
        MASTER = 3, "master";
    }
}

code! {
    /// How grave a notice is (IBTA vol. 1, 13.4.8.2).
    NoticeType(u8) {
        /// Something is broken.
        FATAL = 0, "fatal";
        /// Needs attention.
        URGENT = 1, "urgent";
        /// Somebody uses what is not his.
        SECURITY = 2, "security";
        /// The subnet has changed.
        SUBNET_MANAGEMENT = 3, "subnet management";
        /// To know.
        INFORMATIONAL = 4, "informational";
    }
}

set! {
    /// Link widths.
    LinkWidth(u8) {
        /// One lane.
        X1 = 0;
        /// Four lanes.
        X4 = 1;
        /// Eight lanes.
        X8 = 2;
        /// Twelve lanes.
        X12 = 3;
        /// Two lanes.
        X2 = 4;
    }
}

set! {
    /// Speeds of a lane up to QDR.
    LinkSpeed(u8) {
        /// 2.5 Gb/s.
        SDR = 0;
        /// 5 Gb/s.
        DDR = 1;
        /// 10 Gb/s.
        QDR = 2;
    }
}

set! {
    /// Speeds of a lane from FDR on. None: [`LinkSpeed`] counts.
    LinkSpeedExt(u8) {
        /// 14.0625 Gb/s.
        FDR = 0;
        /// 25.78125 Gb/s.
        EDR = 1;
        /// 53.125 Gb/s.
        HDR = 2;
        /// 106.25 Gb/s.
        NDR = 3;
    }
}

set! {
    /// Speeds of a lane from XDR on, valid with [`PortCapabilities2::XDR`].
    LinkSpeedExt2(u8) {
        /// 212.5 Gb/s.
        XDR = 0;
    }
}

set! {
    /// CapabilityMask of a port (IBTA vol. 1, 14.2.5.6).
    PortCapabilities(u32) {
        /// An SM runs here.
        SM = 1;
        /// Notices can be read.
        NOTICE = 2;
        /// Sends traps.
        TRAP = 3;
        /// Optional inter-packet delays.
        OPTIONAL_IPD = 4;
        /// Automatic path migration.
        AUTOMATIC_MIGRATION = 5;
        /// Maps SLs to VLs.
        SL_MAPPING = 6;
        /// Keeps its M_Key.
        M_KEY_NVRAM = 7;
        /// Keeps its P_Keys.
        P_KEY_NVRAM = 8;
        /// Has LED information.
        LED_INFO = 9;
        /// Its SM is switched off.
        SM_DISABLED = 10;
        /// Has a system image GUID.
        SYSTEM_IMAGE_GUID = 11;
        /// Traps of wrong P_Keys at external ports of switches.
        P_KEY_SWITCH_EXTERNAL_PORT_TRAP = 12;
        /// Cable information.
        CABLE_INFO = 13;
        /// Speeds from FDR on.
        EXTENDED_SPEEDS = 14;
        /// [`PortCapabilities2`] is valid.
        CAPABILITY_MASK2 = 15;
        /// Serves communication management.
        COMMUNICATION_MANAGEMENT = 16;
        /// Tunnels SNMP.
        SNMP_TUNNELING = 17;
        /// Can be reinitialised.
        REINIT = 18;
        /// Serves device management.
        DEVICE_MANAGEMENT = 19;
        /// Serves a vendor's class.
        VENDOR_CLASS = 20;
        /// Directed-route notices.
        DR_NOTICE = 21;
        /// Notices of a changed capability mask.
        CAPABILITY_MASK_NOTICE = 22;
        /// Serves boot management.
        BOOT_MANAGEMENT = 23;
        /// Measures the link's round trip.
        LINK_ROUND_TRIP_LATENCY = 24;
        /// Can be asked to register again what it had at the SA.
        CLIENT_REREGISTRATION = 25;
        /// Notices of other local changes.
        OTHER_LOCAL_CHANGES_NOTICE = 26;
        /// Tables of speed and width pairs.
        LINK_SPEED_WIDTH_PAIRS = 27;
        /// MADs of its vendor.
        VENDOR_SPECIFIC_MADS = 28;
        /// Can suppress traps of wrong P_Keys in multicast.
        MULTICAST_P_KEY_TRAP_SUPPRESSION = 29;
        /// Has a top of its multicast table.
        MULTICAST_FDB_TOP = 30;
        /// Hierarchy information.
        HIERARCHY_INFO = 31;
    }
}

set! {
    /// CapabilityMask2 of a port.
    PortCapabilities2(u16) {
        /// Its node description can be set.
        SET_NODE_DESCRIPTION = 0;
        /// Has extended port information.
        PORT_INFO_EXTENDED = 1;
        /// Virtual ports.
        VIRTUALIZATION = 2;
        /// Table of the states of a switch's ports.
        SWITCH_PORT_STATE_TABLE = 3;
        /// Links of two lanes.
        LINK_WIDTH_2X = 4;
        /// HDR.
        HDR = 5;
        /// NDR.
        NDR = 10;
        /// XDR.
        XDR = 12;
    }
}

set! {
    /// How a port takes part in a multicast group (spec/sa.md 5.1).
    JoinState(u8) {
        /// Sends and receives; keeps the group alive.
        FULL_MEMBER = 0;
        /// Sends and receives, but does not count.
        NON_MEMBER = 1;
        /// Sends only, and does not count.
        SEND_ONLY_NON_MEMBER = 2;
        /// Sends only; keeps the group alive.
        SEND_ONLY_FULL_MEMBER = 3;
    }
}
