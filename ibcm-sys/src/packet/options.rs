//! Making packet sockets, and their options.

use std::io;
use std::net::Ipv6Addr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::{Address, LinkAddress};

/// A network interface as it is now.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct LinkInfo {
    /// Its index.
    pub index: u32,
    /// Whether it is up and has a carrier.
    pub is_up: bool,
    /// The longest payload of a frame in bytes.
    pub mtu: u32,
    /// `ARPHRD_…`: 1 Ethernet, 32 InfiniBand, 772 loopback.
    pub kind: u16,
    /// Its own address.
    pub address: LinkAddress,
}

/// Kinds of membership of a packet socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// What is sent to a group.
    Multicast(LinkAddress),
    /// All that passes.
    Promiscuous,
}

/// One instruction of a classic BPF program: `sock_filter` of linux/filter.h, and a line of `tcpdump -ddd`, but the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instruction {
    /// Operation.
    pub code: u16,
    /// How far to jump if true.
    pub jt: u8,
    /// How far to jump if false.
    pub jf: u8,
    /// Operand.
    pub k: u32,
}

/// A packet socket that receives whole frames, none until it is bound.
///
/// # Errors
/// `PermissionDenied` without CAP_NET_RAW.
pub fn packet_socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers. A descriptor that is not negative is open and nobody else's.
    unsafe {
        let fd = libc::socket(libc::AF_PACKET, kind, 0);
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(fd)) }
    }
}

/// Binds a packet socket to an interface and an EtherType: it receives from now on.
pub fn bind(socket: BorrowedFd<'_>, index: u32, protocol: u16) -> io::Result<()> {
    let none = LinkAddress::new(&[]).expect("short");
    let address = Address::link(index, protocol, none);
    // SAFETY: the descriptor is open for the time of the borrow; the kernel reads `len` bytes of a live address.
    done(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address.raw).cast(), address.len) })
}

/// What an interface is now, through any open socket of its network namespace.
///
/// # Errors
/// `NotFound` or ENODEV if there is none with this name.
pub fn link_info(socket: BorrowedFd<'_>, name: &str) -> io::Result<LinkInfo> {
    // SAFETY: the request has just filled in that field, and all are plain integers.
    let index = unsafe { request(socket, name, libc::SIOCGIFINDEX as _)?.ifr_ifru.ifru_ifindex };
    // SAFETY: as above.
    let flags = unsafe { request(socket, name, libc::SIOCGIFFLAGS as _)?.ifr_ifru.ifru_flags };
    // SAFETY: as above.
    let mtu = unsafe { request(socket, name, libc::SIOCGIFMTU as _)?.ifr_ifru.ifru_mtu };
    // SAFETY: as above.
    let hardware = unsafe { request(socket, name, libc::SIOCGIFHWADDR as _)?.ifr_ifru.ifru_hwaddr };
    let up = libc::IFF_UP | libc::IFF_RUNNING;
    let kind = hardware.sa_family;
    let bytes = hardware.sa_data.map(|byte| byte as u8);
    // The request has room for 14 bytes: of InfiniBand's 20 it tells the first.
    let len = if kind == libc::ARPHRD_INFINIBAND { 14 } else { 6 };
    Ok(LinkInfo {
        index: index as u32,
        is_up: i32::from(flags) & up == up,
        mtu: u32::try_from(mtu).unwrap_or(0),
        kind,
        address: LinkAddress::new(&bytes[..len]).expect("short"),
    })
}

/// Whether the interface with this name is still the one with this index, and whether it is up.
pub fn exists(socket: BorrowedFd<'_>, name: &str, index: u32) -> Option<bool> {
    link_info(socket, name).ok().filter(|info| info.index == index).map(|info| info.is_up)
}

fn request(socket: BorrowedFd<'_>, name: &str, what: libc::c_ulong) -> io::Result<libc::ifreq> {
    // SAFETY: `ifreq` is plain data for which all zero bytes are a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays 0: the name is a C string.
    if name.is_empty() || name.len() >= request.ifr_name.len() || name.bytes().any(|byte| byte == 0) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not the name of a network interface"));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    // SAFETY: the descriptor is open for the time of the borrow; these requests read the name in `request` and write
    // only inside it, and the kernel keeps no pointer.
    done(unsafe { libc::ioctl(socket.as_raw_fd(), what as _, &raw mut request) })?;
    Ok(request)
}

/// Asks for the VLAN tag of each frame (`PACKET_AUXDATA`).
pub fn deliver_auxdata(socket: BorrowedFd<'_>) -> io::Result<()> {
    set(socket, libc::SOL_PACKET, libc::PACKET_AUXDATA, &1_i32)
}

/// Frames that other sockets send are not received (`PACKET_IGNORE_OUTGOING`).
pub fn hear_no_outgoing(socket: BorrowedFd<'_>) -> io::Result<()> {
    set(socket, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &1_i32)
}

/// Asks for the number of drops so far beside each datagram (`SO_RXQ_OVFL`).
pub fn report_drops(socket: BorrowedFd<'_>) -> io::Result<()> {
    set(socket, libc::SOL_SOCKET, libc::SO_RXQ_OVFL, &1_i32)
}

/// Asks for the time at which the kernel took each datagram from the link (`SO_TIMESTAMPNS`).
pub fn deliver_times(socket: BorrowedFd<'_>) -> io::Result<()> {
    set(socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &1_i32)
}

/// Of ICMPv6 only messages of these types are received, of which type t is bit t % 32 of word t / 32 (`ICMP6_FILTER`).
pub fn icmpv6_types(socket: BorrowedFd<'_>, types: &[u32; 8]) -> io::Result<()> {
    const ICMPV6_FILTER: i32 = 1; // linux/icmpv6.h
    let blocked = types.map(|word| !word);
    set(socket, libc::IPPROTO_ICMPV6, ICMPV6_FILTER, &blocked)
}

/// Asks for destination, hop limit and traffic class of each IPv6 datagram.
pub fn deliver_ipv6_facts(socket: BorrowedFd<'_>) -> io::Result<()> {
    [libc::IPV6_RECVPKTINFO, libc::IPV6_RECVHOPLIMIT, libc::IPV6_RECVTCLASS]
        .into_iter()
        .try_for_each(|option| set(socket, libc::IPPROTO_IPV6, option, &1_i32))
}

/// What is sent begins with the whole IPv6 header (`IPV6_HDRINCL`).
pub fn ipv6_header_included(socket: BorrowedFd<'_>) -> io::Result<()> {
    const IPV6_HDRINCL: i32 = 36; // linux/in6.h
    set(socket, libc::IPPROTO_IPV6, IPV6_HDRINCL, &1_i32)
}

/// The payload has a checksum at this offset, which the kernel fills in and checks (`IPV6_CHECKSUM`).
pub fn ipv6_checksum_at(socket: BorrowedFd<'_>, offset: u16) -> io::Result<()> {
    const IPV6_CHECKSUM: i32 = 7; // linux/in6.h
    set(socket, libc::IPPROTO_IPV6, IPV6_CHECKSUM, &i32::from(offset))
}

/// Shares what arrives with the other sockets of group `id`, which the kernel chooses from by `mode`
/// (`PACKET_FANOUT`).
pub fn fanout(socket: BorrowedFd<'_>, id: u16, mode: u16) -> io::Result<()> {
    set(socket, libc::SOL_PACKET, libc::PACKET_FANOUT, &(u32::from(mode) << 16 | u32::from(id)))
}

/// Joins or leaves.
pub fn membership(socket: BorrowedFd<'_>, index: u32, kind: Kind, joins: bool) -> io::Result<()> {
    /// `packet_mreq` of linux/if_packet.h, with room for the addresses of InfiniBand.
    #[repr(C)]
    struct Request {
        index: i32,
        kind: u16,
        len: u16,
        address: [u8; LinkAddress::MAX],
    }
    let mut request =
        Request { index: index as i32, kind: libc::PACKET_MR_PROMISC as u16, len: 0, address: [0; 24] };
    if let Kind::Multicast(address) = kind {
        request.kind = libc::PACKET_MR_MULTICAST as u16;
        let bytes = address.as_bytes();
        request.len = bytes.len() as u16;
        request.address[..bytes.len()].copy_from_slice(bytes);
    }
    let option = if joins { libc::PACKET_ADD_MEMBERSHIP } else { libc::PACKET_DROP_MEMBERSHIP };
    set(socket, libc::SOL_PACKET, option, &request)
}

/// Puts a program before the socket's queue, in the place of the one that is there: what it gives 0 for is not received.
///
/// # Errors
/// `InvalidInput` for what is no program, or too long.
pub fn attach_filter(socket: BorrowedFd<'_>, program: &[Instruction]) -> io::Result<()> {
    let mut program: Vec<_> =
        program.iter().map(|i| libc::sock_filter { code: i.code, jt: i.jt, jf: i.jf, k: i.k }).collect();
    let too_long = |_| io::Error::new(io::ErrorKind::InvalidInput, "the filter program is too long");
    let len = u16::try_from(program.len()).map_err(too_long)?;
    let program = libc::sock_fprog { len, filter: program.as_mut_ptr() };
    // The kernel reads the instructions during the call and keeps a copy.
    set(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
}

/// How many datagrams the socket has dropped since it was made, because its queue was full (`SO_MEMINFO`).
pub fn dropped(socket: BorrowedFd<'_>) -> io::Result<u32> {
    const SO_MEMINFO: i32 = 55; // asm-generic/socket.h
    const DROPS: usize = 8; // SK_MEMINFO_DROPS
    let mut values = [0_u32; 9];
    let mut len = size_of_val(&values) as libc::socklen_t;
    // SAFETY: the descriptor is open for the time of the borrow; the kernel writes at most `len` bytes, the size of
    // `values`, and keeps neither pointer.
    done(unsafe {
        let to = values.as_mut_ptr().cast();
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_MEMINFO, to, &raw mut len)
    })?;
    Ok(values[DROPS])
}

/// Frames that a socket with a [`Ring`](super::Ring) has dropped since this was asked last, and how often its ring was full
/// (`PACKET_STATISTICS`).
pub fn ring_losses(socket: BorrowedFd<'_>) -> io::Result<(u32, u32)> {
    let mut stats = libc::tpacket_stats_v3 { tp_packets: 0, tp_drops: 0, tp_freeze_q_cnt: 0 };
    let mut len = size_of_val(&stats) as libc::socklen_t;
    // SAFETY: the descriptor is open for the time of the borrow; the kernel writes at most `len` bytes, the size of
    // `stats`, and keeps neither pointer.
    done(unsafe {
        let to = (&raw mut stats).cast();
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_PACKET, libc::PACKET_STATISTICS, to, &raw mut len)
    })?;
    Ok((stats.tp_drops, stats.tp_freeze_q_cnt))
}

/// A number of the socket's network namespace that no other one has had since the machine was started (`SO_NETNS_COOKIE`, Linux
/// 5.14); before 0.
pub fn namespace(socket: BorrowedFd<'_>) -> u64 {
    const SO_NETNS_COOKIE: i32 = 71; // asm-generic/socket.h
    let mut cookie = 0_u64;
    let mut len = size_of_val(&cookie) as libc::socklen_t;
    // SAFETY: the descriptor is open for the time of the borrow; the kernel writes at most `len` bytes, the size of
    // `cookie`, and keeps neither pointer.
    let told = done(unsafe {
        let to = (&raw mut cookie).cast();
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_NETNS_COOKIE, to, &raw mut len)
    });
    told.map_or(0, |()| cookie)
}

/// Sets an option to a plain value.
pub(super) fn set<T>(socket: BorrowedFd<'_>, level: i32, option: i32, value: &T) -> io::Result<()> {
    // SAFETY: the descriptor is open for the time of the borrow; the kernel reads `size_of::<T>()` bytes of a live value and
    // keeps no pointer to them.
    done(unsafe {
        let value = std::ptr::from_ref(value).cast();
        libc::setsockopt(socket.as_raw_fd(), level, option, value, size_of::<T>() as libc::socklen_t)
    })
}

fn done(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Destination and interface of an IPv6 datagram, from its control message.
pub(super) fn packet_info(info: &libc::in6_pktinfo) -> (Ipv6Addr, u32) {
    (Ipv6Addr::from(info.ipi6_addr.s6_addr), info.ipi6_ifindex)
}
