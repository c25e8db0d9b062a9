//! Many datagrams with one system call.

use std::cell::RefCell;
use std::io;
use std::mem::MaybeUninit;
use std::net::Ipv6Addr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::time::Duration;

use super::addr::Storage;
use super::options::packet_info;
use super::{Address, Source};

/// The most datagrams of one system call.
pub const BATCH: usize = 64;

/// Room for all that the kernel can be asked to say beside a datagram: of one over raw(7), which is more than of a frame, where it is
/// drops, `PACKET_AUXDATA` and time. Where there is no room the kernel leaves things out.
const CONTROL: usize = {
    const NUMBER: u32 = size_of::<i32>() as u32;
    const TO: u32 = size_of::<libc::in6_pktinfo>() as u32;
    const TIME: u32 = size_of::<libc::timespec>() as u32;
    const _: () = assert!(size_of::<libc::tpacket_auxdata>() as u32 <= TO, "a frame's is less");
    // SAFETY: it computes a length.
    let all = unsafe {
        // Drops, hop limit and traffic class; destination; time.
        3 * libc::CMSG_SPACE(NUMBER) + libc::CMSG_SPACE(TO) + libc::CMSG_SPACE(TIME)
    };
    all as usize
};

/// Room for received datagrams, and what the kernel is asked with: made once, so that a call that finds little costs little.
pub struct RecvBatch {
    size: usize,
    filled: usize,
    /// Each points at a part, a name and control room of its own, and so through the part at `size` bytes of the data.
    headers: Fixed<libc::mmsghdr>,
    _parts: Fixed<libc::iovec>,
    names: Fixed<Address>,
    _control: Fixed<Control>,
    data: Fixed<u8>,
}

// SAFETY: the pointers in it point at memory that belongs to the value alone and is no thread's, and which it reads through `&self`
// and has written through `&mut self` only.
unsafe impl Send for RecvBatch {}
// SAFETY: as above.
unsafe impl Sync for RecvBatch {}

/// A slice that stays where it is and that pointers may point into: of a `Box` Rust takes it that nothing else does.
struct Fixed<T>(NonNull<[T]>);

impl<T> Fixed<T> {
    fn new(all: Vec<T>) -> Self {
        Self(NonNull::from(Box::leak(all.into_boxed_slice())))
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    /// Where one of them is, or the end.
    fn at(&self, n: usize) -> *mut T {
        assert!(n <= self.len());
        // SAFETY: it is no further than the end of the slice.
        unsafe { self.0.cast::<T>().as_ptr().add(n) }
    }
}

impl<T> Drop for Fixed<T> {
    fn drop(&mut self) {
        // SAFETY: this is the box that `new` leaked, and nothing that points into it is used afterwards: all that does is dropped with
        // it.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// A VLAN tag that the kernel has taken out of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tag {
    /// Priority, drop eligibility and VLAN.
    pub tci: u16,
    /// The tag's EtherType, if the kernel tells it.
    pub tpid: Option<u16>,
}

impl Tag {
    /// The tag of a frame with this status.
    pub(super) fn new(status: u32, tci: u16, tpid: u16) -> Option<Self> {
        let has = |bit| status & bit != 0;
        has(libc::TP_STATUS_VLAN_VALID)
            .then(|| Self { tci, tpid: has(libc::TP_STATUS_VLAN_TPID_VALID).then_some(tpid) })
    }
}

/// A received datagram.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Received<'a> {
    /// What there was room for.
    pub data: &'a [u8],
    /// How long it was.
    pub wire_len: usize,
    /// Who sent it.
    pub from: Source,
    /// How many the socket had dropped before it, modulo 2^32; `None` before the first, and in a ring, which counts apart.
    pub drops: Option<u32>,
    /// The VLAN tag that it had.
    pub tag: Option<Tag>,
    /// Its checksum is not filled in: it was sent by this machine.
    pub is_checksum_partial: bool,
    /// The IPv6 address that it was sent to, and the interface that it came by.
    pub to: Option<(Ipv6Addr, u32)>,
    /// Its hop limit when it arrived.
    pub hop_limit: Option<u8>,
    /// Its traffic class.
    pub traffic_class: Option<u8>,
    /// When the kernel took it from the link, since the beginning of 1970 by the system's clock: in a ring always, else if that was
    /// asked for.
    pub time: Option<Duration>,
}

impl RecvBatch {
    /// Room for `count` datagrams of `size` bytes each, all of it allocated and zeroed at once. A count of 0 counts as 1, one
    /// above [`BATCH`] as that: [`capacity`](Self::capacity) tells. What is longer is cut.
    pub fn new(count: usize, size: usize) -> Self {
        let count = count.clamp(1, BATCH);
        let data = Fixed::new(vec![0; count * size]);
        let names = Fixed::new(vec![Address::none(); count]);
        let control = Fixed::new((0..count).map(|_| Control([0; CONTROL])).collect());
        let part = |n| libc::iovec { iov_base: data.at(n * size).cast(), iov_len: size };
        let parts = Fixed::new((0..count).map(part).collect());
        let header = |n| {
            // SAFETY: integers and pointers: all bytes zero is a value.
            let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
            // SAFETY: a place inside of a live address, of which no reference is made.
            header.msg_hdr.msg_name = unsafe { (&raw mut (*names.at(n)).raw).cast() };
            header.msg_hdr.msg_namelen = Storage::LEN as _;
            header.msg_hdr.msg_iov = parts.at(n);
            header.msg_hdr.msg_iovlen = 1;
            header.msg_hdr.msg_control = control.at(n).cast();
            header.msg_hdr.msg_controllen = CONTROL as _;
            header
        };
        let headers = Fixed::new((0..count).map(header).collect());
        Self { size, filled: 0, headers, _parts: parts, names, _control: control, data }
    }

    /// How many there is room for.
    pub fn capacity(&self) -> usize {
        self.headers.len()
    }

    /// Receives what has arrived, at most `most`; what was there is gone.
    ///
    /// # Errors
    /// `WouldBlock` if there is none; what the socket reports.
    pub fn recv(&mut self, socket: BorrowedFd<'_>, most: usize) -> io::Result<usize> {
        for n in 0..std::mem::take(&mut self.filled) {
            // SAFETY: there are so many headers, and nobody else has a pointer to them.
            let header = unsafe { &mut *self.headers.at(n) };
            // What the last call has changed.
            header.msg_hdr.msg_namelen = Storage::LEN as _;
            header.msg_hdr.msg_controllen = CONTROL as _;
        }
        let count = most.min(self.capacity());
        // SAFETY: the descriptor is open for the time of the borrow. There are at least `count` headers; each points at an address,
        // a buffer and control room of its own, with their lengths, which live as long as `self` and which nobody reads meanwhile.
        let received = unsafe {
            let flags = (libc::MSG_DONTWAIT | libc::MSG_TRUNC) as _;
            libc::recvmmsg(socket.as_raw_fd(), self.headers.at(0), count as _, flags, std::ptr::null_mut())
        };
        self.filled = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
        Ok(self.filled)
    }

    /// How many were received.
    pub fn len(&self) -> usize {
        self.filled
    }

    /// Whether none was received.
    pub fn is_empty(&self) -> bool {
        self.filled == 0
    }

    /// What the kernel has filled in for a datagram.
    fn header(&self, at: usize) -> Option<&libc::mmsghdr> {
        // SAFETY: there are as many headers, and who writes in them has the only reference to `self`.
        (at < self.filled).then(|| unsafe { &*self.headers.at(at) })
    }

    /// The bytes of the datagram at this place that there was room for.
    #[inline]
    pub fn data(&self, at: usize) -> Option<&[u8]> {
        // With MSG_TRUNC among the flags of the call the length is the datagram's, not what was copied.
        let len = (self.header(at)?.msg_len as usize).min(self.size);
        // SAFETY: the datagram's room is inside of the data and `size` bytes long; who writes in it has the only reference to `self`.
        Some(unsafe { std::slice::from_raw_parts(self.data.at(at * self.size), len) })
    }

    /// The datagram at this place.
    pub fn get(&self, at: usize) -> Option<Received<'_>> {
        let (header, data) = (self.header(at)?, self.data(at)?);
        let from = match header.msg_hdr.msg_namelen {
            0 => Source::Unknown,
            // SAFETY: there are as many addresses, and who writes in them has the only reference to `self`.
            _ => unsafe { &*self.names.at(at) }.source(),
        };
        let mut received = Received {
            data,
            wire_len: header.msg_len as usize,
            from,
            drops: None,
            tag: None,
            is_checksum_partial: false,
            to: None,
            hop_limit: None,
            traffic_class: None,
            time: None,
        };
        received.note(&header.msg_hdr);
        Some(received)
    }
}

impl std::fmt::Debug for RecvBatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RecvBatch").field("filled", &self.filled).finish_non_exhaustive()
    }
}

/// Aligned as control messages are.
#[repr(C, align(8))]
struct Control([u8; CONTROL]);

impl Received<'_> {
    /// Reads the control messages.
    fn note(&mut self, header: &libc::msghdr) {
        // SAFETY: the kernel has filled in the header: its control part is `msg_controllen` bytes of whole messages in live, aligned
        // memory, which these macros walk. Each message is read as what its level and type say it is, if it is as long.
        unsafe {
            let mut message = libc::CMSG_FIRSTHDR(header);
            while !message.is_null() {
                let (level, kind) = ((*message).cmsg_level, (*message).cmsg_type);
                let data = libc::CMSG_DATA(message);
                let len =
                    ((*message).cmsg_len as usize).saturating_sub(data.offset_from(message.cast()) as usize);
                let number = || (len >= 4).then(|| data.cast::<i32>().read_unaligned());
                match (level, kind) {
                    (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => self.drops = number().map(|n| n as u32),
                    (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) if len >= size_of::<libc::timespec>() => {
                        let time = data.cast::<libc::timespec>().read_unaligned();
                        // Not below 0 nor a second or more of nanoseconds, by the kernel's word.
                        self.time = Some(Duration::new(time.tv_sec as u64, time.tv_nsec as u32));
                    }
                    (libc::SOL_PACKET, libc::PACKET_AUXDATA) if len >= size_of::<libc::tpacket_auxdata>() => {
                        self.auxdata(&data.cast::<libc::tpacket_auxdata>().read_unaligned());
                    }
                    (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) if len >= size_of::<libc::in6_pktinfo>() => {
                        self.to = Some(packet_info(&data.cast::<libc::in6_pktinfo>().read_unaligned()));
                    }
                    (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => self.hop_limit = number().map(|n| n as u8),
                    (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => self.traffic_class = number().map(|n| n as u8),
                    _ => {}
                }
                message = libc::CMSG_NXTHDR(header, message);
            }
        }
    }

    fn auxdata(&mut self, auxdata: &libc::tpacket_auxdata) {
        self.is_checksum_partial = auxdata.tp_status & libc::TP_STATUS_CSUMNOTREADY != 0;
        self.tag = Tag::new(auxdata.tp_status, auxdata.tp_vlan_tci, auxdata.tp_vlan_tpid);
    }
}

/// What goes before the payload of a datagram, at most [`MAX`](Self::MAX) bytes.
#[derive(Debug, Clone, Copy)]
pub struct Head {
    len: usize,
    bytes: [u8; Self::MAX],
}

impl Head {
    /// The longest in bytes.
    pub const MAX: usize = 24;

    /// Nothing.
    pub const NONE: Self = Self { len: 0, bytes: [0; Self::MAX] };

    /// The first `len` of these bytes, or all.
    #[inline]
    pub const fn new(bytes: [u8; Self::MAX], len: usize) -> Self {
        Self { len: if len < Self::MAX { len } else { Self::MAX }, bytes }
    }
}

/// A datagram to be sent: what goes before the payload, the payload, and where to.
#[derive(Debug, Clone, Copy)]
pub struct Outgoing<'a> {
    /// A header.
    pub head: Head,
    /// The payload.
    pub data: &'a [u8],
    /// Where to; `None` if the socket or the header says it.
    pub to: Option<Address>,
}

/// A datagram of up to so many bytes is put together, header and payload: that costs less than a second part for the kernel to look
/// at.
const JOINED: usize = 1536;

thread_local! {
    /// Room for those of one call, kept for the next.
    static ROOM: RefCell<Vec<MaybeUninit<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Sends the first of `datagrams`, at most [`BATCH`], and says how many the kernel took; 0 of none. It never waits: where there is no
/// room it is `WouldBlock`, on a descriptor that blocks, too.
///
/// Each thread that sends keeps 96 KiB for headers and payloads to be put together in, until it ends.
///
/// # Errors
/// What was wrong with the first of all; what is wrong with a later one is said when that is the first.
///
/// # Panics
/// If `datagrams` itself sends by this function when it is asked for the next one.
pub fn send_many<'a>(
    socket: BorrowedFd<'_>,
    datagrams: impl Iterator<Item = Outgoing<'a>>,
) -> io::Result<usize> {
    ROOM.with_borrow_mut(|room| {
        room.resize(BATCH * JOINED, MaybeUninit::uninit());
        send_joined(socket, datagrams, room)
    })
}

fn send_joined<'a>(
    socket: BorrowedFd<'_>,
    datagrams: impl Iterator<Item = Outgoing<'a>>,
    mut room: &mut [MaybeUninit<u8>],
) -> io::Result<usize> {
    const { assert!(Head::MAX <= JOINED) };
    let mut names = [const { MaybeUninit::<Storage>::uninit() }; BATCH];
    let mut parts = [const { MaybeUninit::<[libc::iovec; 2]>::uninit() }; BATCH];
    let mut headers = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; BATCH];
    let mut count = 0;
    let places = names.iter_mut().zip(&mut parts).zip(&mut headers);
    for (((name, parts), header), Outgoing { head, data, to }) in places.zip(datagrams) {
        let part = |at: *const u8, len| libc::iovec { iov_base: at.cast_mut().cast(), iov_len: len };
        let whole = head.len + data.len();
        let mut used = 1;
        let parts = if head.len == 0 {
            parts.write([part(data.as_ptr(), whole), part(data.as_ptr(), 0)])
        } else {
            let is_joined = whole <= JOINED;
            // There are as many times the most of one as there are places.
            let (joined, rest) = room.split_at_mut(if is_joined { whole.max(Head::MAX) } else { Head::MAX });
            room = rest;
            let joined = joined.as_mut_ptr().cast::<u8>();
            // SAFETY: there is room for the longest header.
            unsafe { joined.copy_from_nonoverlapping(head.bytes.as_ptr(), Head::MAX) };
            if is_joined {
                // SAFETY: there is room for both.
                unsafe { joined.add(head.len).copy_from_nonoverlapping(data.as_ptr(), data.len()) };
                parts.write([part(joined, whole), part(joined, 0)])
            } else {
                used = 2;
                parts.write([part(joined, head.len), part(data.as_ptr(), data.len())])
            }
        };
        // SAFETY: integers and pointers: all bytes zero is a value.
        let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
        if let Some(to) = to {
            message.msg_hdr.msg_name = (&raw mut *name.write(to.raw)).cast();
            message.msg_hdr.msg_namelen = to.len;
        }
        message.msg_hdr.msg_iov = parts.as_mut_ptr();
        message.msg_hdr.msg_iovlen = used;
        header.write(message);
        count += 1;
    }
    // SAFETY: the descriptor is open for the time of the borrow. The first `count` headers were written above; what they point
    // at lives until after the call and is only read.
    let sent = unsafe {
        let flags = libc::MSG_DONTWAIT as _;
        libc::sendmmsg(socket.as_raw_fd(), headers.as_mut_ptr().cast(), count, flags)
    };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    use super::*;

    /// The same calls serve any datagram socket.
    #[test]
    fn a_batch_of_datagrams_goes_and_comes() {
        let (a, b) = (UdpSocket::bind("[::1]:0").unwrap(), UdpSocket::bind("[::1]:0").unwrap());
        super::super::deliver_ipv6_facts(b.as_fd()).unwrap();
        let mut batch = RecvBatch::new(8, 4);
        assert_eq!(batch.recv(b.as_fd(), 8).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        a.connect(b.local_addr().unwrap()).unwrap();
        let head = |bytes: &[u8]| {
            let mut all = [0; Head::MAX];
            all[..bytes.len()].copy_from_slice(bytes);
            Head::new(all, bytes.len())
        };
        let to = None;
        let all = [(&b"a"[..], &b"b"[..]), (b"", b"four"), (b"longer", b"")];
        let all = all.map(|(bytes, data)| Outgoing { head: head(bytes), data, to });
        assert_eq!(send_many(a.as_fd(), all.into_iter()).unwrap(), 3);
        assert_eq!(batch.recv(b.as_fd(), 2).unwrap(), 2);
        let first = batch.get(0).unwrap();
        assert_eq!((first.data, first.to.unwrap().0), (&b"ab"[..], "::1".parse().unwrap()));
        assert!(first.hop_limit.is_some() && first.traffic_class == Some(0) && first.drops.is_none());
        assert_eq!(first.from, Source::Ipv6 { address: "::1".parse().unwrap(), scope: 0 });
        assert_eq!(batch.get(1).unwrap().data, b"four");
        assert_eq!(batch.recv(b.as_fd(), 8).unwrap(), 1);
        let cut = batch.get(0).unwrap();
        assert_eq!((cut.data, cut.wire_len), (&b"long"[..], 6));
        assert!(batch.get(1).is_none());
    }

    /// Header and payload are one datagram, whether they are put together before the call or by it.
    #[test]
    fn a_datagram_of_any_length_is_whole() {
        let (a, b) = (UdpSocket::bind("[::1]:0").unwrap(), UdpSocket::bind("[::1]:0").unwrap());
        a.connect(b.local_addr().unwrap()).unwrap();
        let bytes: Vec<_> = (0..=u8::MAX).cycle().take(JOINED + 1).collect();
        let mut batch = RecvBatch::new(4, 2048);
        for (round, head) in [0, 1, 14, Head::MAX].into_iter().enumerate() {
            let payloads = [0, 1, JOINED - head, JOINED - head + 1, 1400].map(|len| &bytes[..len]);
            let outgoing =
                payloads.map(|data| Outgoing { head: Head::new([7; Head::MAX], head), data, to: None });
            assert_eq!(send_many(a.as_fd(), outgoing.into_iter()).unwrap(), 5);
            for (part, wanted) in [(0..4), (4..5)].into_iter().zip([&payloads[..4], &payloads[4..]]) {
                assert_eq!(batch.recv(b.as_fd(), 4).unwrap(), part.len());
                for (at, payload) in wanted.iter().enumerate() {
                    assert_eq!(batch.data(at).unwrap(), [&vec![7; head][..], payload].concat());
                    assert_eq!(batch.get(at).unwrap().to.is_some(), round > 0);
                }
            }
            // There is room for what the kernel says though it has said nothing before.
            super::super::deliver_ipv6_facts(b.as_fd()).unwrap();
        }
    }
}
