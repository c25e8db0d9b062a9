//! Codes that stand for sizes, speeds and times.

use std::fmt;
use std::time::Duration;

/// A path MTU code, 1..=5 for 256..=4096 bytes; other values are kept as they came.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mtu(pub u8);

impl Mtu {
    /// 256 bytes.
    pub const B256: Self = Self(1);
    /// 512 bytes.
    pub const B512: Self = Self(2);
    /// 1024 bytes.
    pub const B1024: Self = Self(3);
    /// 2048 bytes.
    pub const B2048: Self = Self(4);
    /// 4096 bytes.
    pub const B4096: Self = Self(5);

    /// The size in bytes, `None` for a reserved code.
    pub const fn bytes(self) -> Option<u32> {
        match self.0 {
            1..=5 => Some(128 << self.0),
            _ => None,
        }
    }

    /// The largest MTU of at most `bytes`, `None` below 256.
    pub const fn at_most(bytes: u32) -> Option<Self> {
        match bytes {
            0..256 => None,
            256..512 => Some(Self::B256),
            512..1024 => Some(Self::B512),
            1024..2048 => Some(Self::B1024),
            2048..4096 => Some(Self::B2048),
            _ => Some(Self::B4096),
        }
    }

    /// The MTU of a RoCEv2 port on an Ethernet device with this MTU: what remains after 96 bytes of headers.
    pub const fn of_netdev(mtu: u32) -> Option<Self> {
        Self::at_most(mtu.saturating_sub(96))
    }
}

impl fmt::Display for Mtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bytes() {
            Some(bytes) => write!(f, "{bytes}"),
            None => write!(f, "mtu code {}", self.0),
        }
    }
}

impl fmt::Debug for Mtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mtu({self})")
    }
}

/// A static rate code. The codes are not in order of speed; [`Rate::mbps`] is.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rate(pub u8);

impl Rate {
    /// The port's current rate. What recent Linux puts into RoCE paths.
    pub const PORT_CURRENT: Self = Self(0);
    /// 2.5 Gb/s.
    pub const GBPS_2_5: Self = Self(2);
    /// 10 Gb/s.
    pub const GBPS_10: Self = Self(3);
    /// 30 Gb/s.
    pub const GBPS_30: Self = Self(4);
    /// 5 Gb/s.
    pub const GBPS_5: Self = Self(5);
    /// 20 Gb/s.
    pub const GBPS_20: Self = Self(6);
    /// 40 Gb/s.
    pub const GBPS_40: Self = Self(7);
    /// 60 Gb/s.
    pub const GBPS_60: Self = Self(8);
    /// 80 Gb/s.
    pub const GBPS_80: Self = Self(9);
    /// 120 Gb/s.
    pub const GBPS_120: Self = Self(10);
    /// 14 Gb/s.
    pub const GBPS_14: Self = Self(11);
    /// 56 Gb/s.
    pub const GBPS_56: Self = Self(12);
    /// 112 Gb/s.
    pub const GBPS_112: Self = Self(13);
    /// 168 Gb/s.
    pub const GBPS_168: Self = Self(14);
    /// 25 Gb/s.
    pub const GBPS_25: Self = Self(15);
    /// 100 Gb/s.
    pub const GBPS_100: Self = Self(16);
    /// 200 Gb/s.
    pub const GBPS_200: Self = Self(17);
    /// 300 Gb/s.
    pub const GBPS_300: Self = Self(18);
    /// 28 Gb/s.
    pub const GBPS_28: Self = Self(19);
    /// 50 Gb/s.
    pub const GBPS_50: Self = Self(20);
    /// 400 Gb/s.
    pub const GBPS_400: Self = Self(21);
    /// 600 Gb/s.
    pub const GBPS_600: Self = Self(22);
    /// 800 Gb/s.
    pub const GBPS_800: Self = Self(23);
    /// 1200 Gb/s.
    pub const GBPS_1200: Self = Self(24);
    /// 1600 Gb/s.
    pub const GBPS_1600: Self = Self(25);

    /// The real signalling rate in Mb/s, `None` for code 0 and reserved codes.
    pub const fn mbps(self) -> Option<u32> {
        Some(match self.0 {
            2 => 2_500,
            3 => 10_000,
            4 => 30_000,
            5 => 5_000,
            6 => 20_000,
            7 => 40_000,
            8 => 60_000,
            9 => 80_000,
            10 => 120_000,
            11 => 14_062,
            12 => 56_250,
            13 => 112_500,
            14 => 168_750,
            15 => 25_781,
            16 => 103_125,
            17 => 206_250,
            18 => 309_375,
            19 => 28_125,
            20 => 51_562,
            21 => 425_000,
            22 => 637_500,
            23 => 850_000,
            24 => 1_275_000,
            25 => 1_700_000,
            _ => return None,
        })
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.0 {
            0 => "port current",
            2 => "2.5 Gb/s",
            3 => "10 Gb/s",
            4 => "30 Gb/s",
            5 => "5 Gb/s",
            6 => "20 Gb/s",
            7 => "40 Gb/s",
            8 => "60 Gb/s",
            9 => "80 Gb/s",
            10 => "120 Gb/s",
            11 => "14 Gb/s",
            12 => "56 Gb/s",
            13 => "112 Gb/s",
            14 => "168 Gb/s",
            15 => "25 Gb/s",
            16 => "100 Gb/s",
            17 => "200 Gb/s",
            18 => "300 Gb/s",
            19 => "28 Gb/s",
            20 => "50 Gb/s",
            21 => "400 Gb/s",
            22 => "600 Gb/s",
            23 => "800 Gb/s",
            24 => "1200 Gb/s",
            25 => "1600 Gb/s",
            other => return write!(f, "rate code {other}"),
        };
        f.write_str(name)
    }
}

impl fmt::Debug for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rate({self})")
    }
}

/// A 5-bit time code: 4.096 us times 2^n, n in 0..=31.
///
/// As a QP's ack timeout, code 0 means "never" instead; see [`TimeCode::ack_timeout`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct TimeCode(u8);

impl TimeCode {
    /// The longest time, 2 h 26 min.
    pub const MAX: Self = Self(31);

    /// The code, or `None` above 31.
    pub const fn new(code: u8) -> Option<Self> {
        if code <= 31 { Some(Self(code)) } else { None }
    }

    /// The low five bits of `raw`.
    pub const fn truncate(raw: u8) -> Self {
        Self(raw & 31)
    }

    /// The shortest code that is not less than `time`; saturates at 31.
    pub const fn at_least(time: Duration) -> Self {
        let nanos = time.as_nanos();
        let mut code = 0;
        while code < 31 && (4096u128 << code) < nanos {
            code += 1;
        }
        Self(code)
    }

    /// The plain code.
    pub const fn get(self) -> u8 {
        self.0
    }

    /// The time, exact.
    pub const fn duration(self) -> Duration {
        Duration::from_nanos(4096 << self.0)
    }

    /// The time as a QP's ack timeout: `None` (never) for code 0.
    pub const fn ack_timeout(self) -> Option<Duration> {
        if self.0 == 0 { None } else { Some(self.duration()) }
    }

    /// The code plus `n`, saturating at 31.
    #[must_use]
    pub const fn saturating_add(self, n: u8) -> Self {
        let sum = self.0.saturating_add(n);
        if sum > 31 { Self::MAX } else { Self(sum) }
    }

    /// The code minus `n`, saturating at 0.
    #[must_use]
    pub const fn saturating_sub(self, n: u8) -> Self {
        Self(self.0.saturating_sub(n))
    }
}

impl fmt::Display for TimeCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:?})", self.0, self.duration())
    }
}

impl fmt::Debug for TimeCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TimeCode({self})")
    }
}

/// A 6-bit packet lifetime code: 4.096 us times 2^n, n in 0..=63.
///
/// What follows from it, such as a timeout, has the five bits of a [`TimeCode`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PacketLifeTime(u8);

impl PacketLifeTime {
    /// The code, or `None` above 63.
    pub const fn new(code: u8) -> Option<Self> {
        if code <= 63 { Some(Self(code)) } else { None }
    }

    /// The low six bits of `raw`.
    pub const fn truncate(raw: u8) -> Self {
        Self(raw & 63)
    }

    /// The plain code.
    pub const fn get(self) -> u8 {
        self.0
    }

    /// The code as a time code, saturating at 31, which is 2 h 26 min.
    pub const fn time_code(self) -> TimeCode {
        if self.0 > 31 { TimeCode::MAX } else { TimeCode(self.0) }
    }
}

impl From<TimeCode> for PacketLifeTime {
    fn from(code: TimeCode) -> Self {
        Self(code.0)
    }
}

impl fmt::Display for PacketLifeTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match TimeCode::new(self.0) {
            Some(code) => fmt::Display::fmt(&code, f),
            None => write!(f, "{} (over 2 h 26 min)", self.0),
        }
    }
}

impl fmt::Debug for PacketLifeTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PacketLifeTime({self})")
    }
}

/// A 5-bit RNR NAK timer code: how long a requester waits before it tries a receiver-not-ready peer again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct RnrTimer(u8);

impl RnrTimer {
    /// Hundredths of a millisecond by code.
    const CENTIMILLIS: [u32; 32] = [
        65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1_024, 1_536,
        2_048, 3_072, 4_096, 6_144, 8_192, 12_288, 16_384, 24_576, 32_768, 49_152,
    ];

    /// The code, or `None` above 31.
    pub const fn new(code: u8) -> Option<Self> {
        if code <= 31 { Some(Self(code)) } else { None }
    }

    /// The low five bits of `raw`.
    pub const fn truncate(raw: u8) -> Self {
        Self(raw & 31)
    }

    /// The plain code.
    pub const fn get(self) -> u8 {
        self.0
    }

    /// The time; code 0 is the longest, 655.36 ms.
    pub const fn duration(self) -> Duration {
        Duration::from_micros(Self::CENTIMILLIS[self.0 as usize] as u64 * 10)
    }
}

impl fmt::Debug for RnrTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RnrTimer({} ({:?}))", self.0, self.duration())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_codes_round_up_and_are_exact() {
        assert_eq!(TimeCode::truncate(20).duration(), Duration::from_nanos(4_294_967_296));
        assert_eq!(TimeCode::at_least(Duration::from_nanos(4_294_967_296)).get(), 20);
        assert_eq!(TimeCode::at_least(Duration::from_nanos(4_294_967_297)).get(), 21);
        assert_eq!(TimeCode::at_least(Duration::ZERO).get(), 0);
        assert_eq!(TimeCode::at_least(Duration::MAX), TimeCode::MAX);
        assert_eq!(TimeCode::MAX.duration(), Duration::from_nanos(8_796_093_022_208));
        assert_eq!(TimeCode::default().ack_timeout(), None);
    }

    #[test]
    fn rnr_timer_table() {
        assert_eq!(RnrTimer::truncate(0).duration(), Duration::from_micros(655_360));
        assert_eq!(RnrTimer::truncate(26).duration(), Duration::from_micros(81_920));
        assert_eq!(RnrTimer::truncate(1).duration(), Duration::from_micros(10));
    }

    #[test]
    fn mtu_of_ethernet() {
        let of = |mtu| Mtu::of_netdev(mtu).and_then(Mtu::bytes);
        assert_eq!(of(1500), Some(1024));
        assert_eq!(of(4191), Some(2048));
        assert_eq!(of(4200), Some(4096));
        assert_eq!(of(65536), Some(4096));
        assert_eq!(of(351), None);
        assert_eq!(Mtu(0).bytes(), None);
        assert_eq!(Mtu(6).bytes(), None);
    }
}
