//! Addresses of loopback for tests that run at the same time, in one process and in several.

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU8, Ordering};

/// Addresses 127.x.y.1 to 127.x.y.254 that nobody else on this machine takes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Loopback {
    process: u8,
    number: u8,
}

/// What processes share among each other: who has this address and port of 127.x has all of it.
const PROCESSES: std::ops::Range<u8> = 20..170;
const CLAIM: (u8, u8, u16) = (255, 254, 4791);
/// How often a process may claim addresses.
const MOST: u8 = 127;

impl Loopback {
    /// Other ones than ever before in this process.
    pub(crate) fn claim() -> Self {
        static PROCESS: LazyLock<(u8, UdpSocket)> = LazyLock::new(claim_for_process);
        static NEXT: AtomicU8 = AtomicU8::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        assert!(number < MOST, "a process has {MOST} networks and no more");
        Self { process: PROCESS.0, number }
    }

    pub(crate) const fn address(self, host: u8) -> Ipv4Addr {
        Ipv4Addr::new(127, self.process, self.number, host)
    }

    /// A UDP port for those who share an address, below those that the system chooses by itself.
    #[allow(dead_code, reason = "each test target uses its part")]
    pub(crate) fn port(self) -> u16 {
        10_000 + u16::from(self.process - PROCESSES.start) * u16::from(MOST) + u16::from(self.number)
    }
}

fn claim_for_process() -> (u8, UdpSocket) {
    let (third, last, port) = CLAIM;
    let count = u32::from(PROCESSES.end - PROCESSES.start);
    // Seldom taken.
    let first = std::process::id() % count;
    let mut processes = (first..first + count).map(|n| PROCESSES.start + (n % count) as u8);
    let claim =
        |process| Some((process, UdpSocket::bind(((Ipv4Addr::new(127, process, third, last)), port)).ok()?));
    processes
        .find_map(claim)
        .unwrap_or_else(|| panic!("{count} processes have claimed addresses, or UDP port {port} is taken"))
}
