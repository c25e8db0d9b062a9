//! Many datagrams with one system call.

use std::io;
use std::mem::MaybeUninit;
use std::net::Ipv6Addr;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::options::packet_info;
use super::{Address, Source};

/// The most datagrams of one system call.
pub const BATCH: usize = 64;

/// Room for what the kernel says beside a datagram.
const CONTROL: usize = 128;

/// Room for received datagrams.
pub struct RecvBatch {
    size: usize,
    data: Box<[u8]>,
    about: Box<[About]>,
    filled: usize,
}

#[derive(Clone, Copy)]
struct About {
    from: Address,
    copied: usize,
    wire_len: usize,
    drops: Option<u32>,
    tag: Option<Tag>,
    is_checksum_partial: bool,
    to: Option<(Ipv6Addr, u32)>,
    hop_limit: Option<u8>,
    traffic_class: Option<u8>,
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
}

impl RecvBatch {
    /// Room for `count` datagrams, at most [`BATCH`], of `size` bytes.
    pub fn new(count: usize, size: usize) -> Self {
        let count = count.clamp(1, BATCH);
        let nothing = About {
            from: Address::none(),
            copied: 0,
            wire_len: 0,
            drops: None,
            tag: None,
            is_checksum_partial: false,
            to: None,
            hop_limit: None,
            traffic_class: None,
        };
        let (data, about) = (vec![0; count * size].into(), vec![nothing; count].into());
        Self { size, data, about, filled: 0 }
    }

    /// How many there is room for.
    pub fn capacity(&self) -> usize {
        self.about.len()
    }

    /// Receives what has arrived, at most `most`; what was there is gone.
    ///
    /// # Errors
    /// `WouldBlock` if there is none; what the socket reports.
    pub fn recv(&mut self, socket: BorrowedFd<'_>, most: usize) -> io::Result<usize> {
        self.filled = 0;
        let count = most.min(self.about.len());
        let mut control = [const { MaybeUninit::<Control>::uninit() }; BATCH];
        let mut parts = [const { MaybeUninit::<libc::iovec>::uninit() }; BATCH];
        let mut headers = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; BATCH];
        let buffers = self.data.chunks_exact_mut(self.size.max(1));
        // Without room each datagram is cut to nothing.
        let buffers = buffers.map(Some).chain(std::iter::repeat_with(|| None));
        for (n, (about, buffer)) in self.about.iter_mut().zip(buffers).take(count).enumerate() {
            let (base, len) = match buffer {
                Some(buffer) => (buffer.as_mut_ptr().cast(), buffer.len()),
                None => (std::ptr::NonNull::<u8>::dangling().as_ptr().cast(), 0),
            };
            let part = parts[n].write(libc::iovec { iov_base: base, iov_len: len });
            // SAFETY: integers and pointers: all bytes zero is a value.
            let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
            header.msg_hdr.msg_name = (&raw mut about.from.raw).cast();
            header.msg_hdr.msg_namelen = size_of::<libc::sockaddr_storage>() as _;
            header.msg_hdr.msg_iov = part;
            header.msg_hdr.msg_iovlen = 1;
            header.msg_hdr.msg_control = control[n].as_mut_ptr().cast();
            header.msg_hdr.msg_controllen = CONTROL as _;
            headers[n].write(header);
        }
        // SAFETY: the descriptor is open for the time of the borrow. The first `count` headers were written above; each points at
        // an address, a buffer and control room of its own, which live until after the call, with their lengths.
        let received = unsafe {
            let flags = (libc::MSG_DONTWAIT | libc::MSG_TRUNC) as _;
            libc::recvmmsg(
                socket.as_raw_fd(),
                headers.as_mut_ptr().cast(),
                count as _,
                flags,
                std::ptr::null_mut(),
            )
        };
        let received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
        for (about, header) in self.about.iter_mut().zip(&headers).take(received) {
            // SAFETY: the first `count` headers are written, and `received` is no more.
            let header = unsafe { header.assume_init_ref() };
            about.from.len = header.msg_hdr.msg_namelen;
            // With MSG_TRUNC among the flags of the call the length is the datagram's, not what was copied.
            about.copied = (header.msg_len as usize).min(self.size);
            about.wire_len = header.msg_len as usize;
            about.note(&header.msg_hdr);
        }
        self.filled = received;
        Ok(received)
    }

    /// How many were received.
    pub fn len(&self) -> usize {
        self.filled
    }

    /// Whether none was received.
    pub fn is_empty(&self) -> bool {
        self.filled == 0
    }

    /// The datagram at this place.
    pub fn get(&self, at: usize) -> Option<Received<'_>> {
        let about = self.about[..self.filled].get(at)?;
        Some(Received {
            data: &self.data[at * self.size..][..about.copied],
            wire_len: about.wire_len,
            from: about.from.source(),
            drops: about.drops,
            tag: about.tag,
            is_checksum_partial: about.is_checksum_partial,
            to: about.to,
            hop_limit: about.hop_limit,
            traffic_class: about.traffic_class,
        })
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

impl About {
    /// Reads the control messages.
    fn note(&mut self, header: &libc::msghdr) {
        (self.drops, self.tag, self.to, self.hop_limit, self.traffic_class) = (None, None, None, None, None);
        self.is_checksum_partial = false;
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

/// A datagram to be sent: what goes before the payload, the payload, and where to.
#[derive(Debug, Clone, Copy)]
pub struct Outgoing<'a> {
    /// A header, perhaps of no bytes.
    pub header: &'a [u8],
    /// The payload.
    pub data: &'a [u8],
    /// Where to; `None` if the socket or the header says it.
    pub to: Option<Address>,
}

/// Sends the first of `datagrams`, at most [`BATCH`], and says how many the kernel took.
///
/// # Errors
/// What was wrong with the first of all; what is wrong with a later one is said when that is the first.
pub fn send_many(socket: BorrowedFd<'_>, datagrams: &[Outgoing<'_>]) -> io::Result<usize> {
    let count = datagrams.len().min(BATCH);
    let mut parts = [const { MaybeUninit::<[libc::iovec; 2]>::uninit() }; BATCH];
    let mut headers = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; BATCH];
    for (n, datagram) in datagrams.iter().take(count).enumerate() {
        let part =
            |bytes: &[u8]| libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let parts = parts[n].write([part(datagram.header), part(datagram.data)]);
        // SAFETY: integers and pointers: all bytes zero is a value.
        let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
        if let Some(to) = &datagram.to {
            header.msg_hdr.msg_name = (&raw const to.raw).cast_mut().cast();
            header.msg_hdr.msg_namelen = to.len;
        }
        header.msg_hdr.msg_iov = parts.as_mut_ptr();
        header.msg_hdr.msg_iovlen = 2;
        headers[n].write(header);
    }
    // SAFETY: the descriptor is open for the time of the borrow. The first `count` headers were written above; what they point
    // at lives until after the call and is only read.
    let sent = unsafe {
        let flags = libc::MSG_DONTWAIT as _;
        libc::sendmmsg(socket.as_raw_fd(), headers.as_mut_ptr().cast(), count as _, flags)
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
        let to = None;
        let all = [(&b"a"[..], &b"b"[..]), (b"", b"four"), (b"longer", b"")].map(|(header, data)| Outgoing {
            header,
            data,
            to,
        });
        assert_eq!(send_many(a.as_fd(), &all).unwrap(), 3);
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
}
