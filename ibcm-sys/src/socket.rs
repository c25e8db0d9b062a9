//! Socket options that no safe crate sets.

use std::io;
use std::os::fd::BorrowedFd;

#[cfg(target_os = "linux")]
pub use linux::{clear_receive_timestamps, force_recv_buffer_size, no_check6_rx, set_no_check6_rx};

#[cfg(target_os = "linux")]
mod linux {
    use std::io;
    use std::os::fd::{AsRawFd, BorrowedFd};

    /// Makes an IPv6 UDP socket take datagrams whose UDP checksum is 0, as rdma_rxe and NICs send them
    /// (`UDP_NO_CHECK6_RX`; spec/softhca.md 0). Without it the kernel drops them before the socket.
    pub fn set_no_check6_rx(socket: BorrowedFd<'_>) -> io::Result<()> {
        set_int(socket, libc::SOL_UDP, libc::UDP_NO_CHECK6_RX, 1)
    }

    /// Whether an IPv6 UDP socket takes datagrams whose UDP checksum is 0.
    pub fn no_check6_rx(socket: BorrowedFd<'_>) -> io::Result<bool> {
        let mut value: libc::c_int = 0;
        let mut len = size_of_val(&value) as libc::socklen_t;
        // SAFETY: the descriptor is open for the time of the borrow; the kernel writes at most `len` bytes, the size
        // of `value`, and keeps neither pointer.
        let result = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_UDP,
                libc::UDP_NO_CHECK6_RX,
                (&raw mut value).cast(),
                &raw mut len,
            )
        };
        if result == 0 { Ok(value != 0) } else { Err(io::Error::last_os_error()) }
    }

    /// Sets the receive buffer above the system's limit (`SO_RCVBUFFORCE`), in bytes. Needs CAP_NET_ADMIN.
    pub fn force_recv_buffer_size(socket: BorrowedFd<'_>, bytes: usize) -> io::Result<()> {
        let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
        set_int(socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, bytes)
    }

    /// Ends receive timestamps (`SO_TIMESTAMPNS`), which cost time and room in the control buffer.
    pub fn clear_receive_timestamps(socket: BorrowedFd<'_>) -> io::Result<()> {
        set_int(socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 0)
    }

    fn set_int(
        socket: BorrowedFd<'_>,
        level: libc::c_int,
        option: libc::c_int,
        value: libc::c_int,
    ) -> io::Result<()> {
        // SAFETY: the descriptor is open for the time of the borrow; the kernel reads `size_of_val(&value)` bytes
        // from a live integer and keeps no pointer.
        let result = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                level,
                option,
                (&raw const value).cast(),
                size_of_val(&value) as libc::socklen_t,
            )
        };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

/// The MTU of the network interface called `name`, in bytes (`SIOCGIFMTU`), through any open socket.
pub fn interface_mtu(socket: BorrowedFd<'_>, name: &str) -> io::Result<u32> {
    use std::os::fd::AsRawFd;

    // SAFETY: `ifreq` is plain data for which all zero bytes are a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays 0: the name is a C string.
    if name.len() >= request.ifr_name.len() || name.bytes().any(|byte| byte == 0) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not the name of a network interface"));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    // SAFETY: the descriptor is open for the time of the borrow; SIOCGIFMTU reads the name in `request` and writes
    // only inside it, and the kernel keeps no pointer.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU as _, &raw mut request) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: SIOCGIFMTU succeeded, so the kernel filled in the MTU member; every bit pattern is a valid integer.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    u32::try_from(mtu).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "negative MTU"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    #[test]
    fn loopback_has_an_mtu_and_nonsense_has_none() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let name = if cfg!(target_os = "linux") { "lo" } else { "lo0" };
        assert!(interface_mtu(socket.as_fd(), name).unwrap() >= 1500);
        for name in ["nonsense0", "a name that is far too long for an interface", "l\0"] {
            assert!(interface_mtu(socket.as_fd(), name).is_err(), "{name:?}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn hca_t04_ipv6_datagrams_without_checksum_arrive_once_allowed() {
        use std::io::ErrorKind;
        use std::os::fd::AsRawFd;
        use std::time::Duration;

        let receiver = UdpSocket::bind("[::1]:0").unwrap();
        let sender = UdpSocket::bind("[::1]:0").unwrap();
        let on: libc::c_int = 1;
        // SAFETY: the descriptor is open; the kernel reads an integer that is live and keeps no pointer.
        let result = unsafe {
            libc::setsockopt(
                sender.as_raw_fd(),
                libc::SOL_UDP,
                libc::UDP_NO_CHECK6_TX,
                (&raw const on).cast(),
                size_of_val(&on) as libc::socklen_t,
            )
        };
        assert_eq!(result, 0);
        let to = receiver.local_addr().unwrap();

        assert!(!no_check6_rx(receiver.as_fd()).unwrap());
        sender.send_to(b"dropped", to).unwrap();
        receiver.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let mut buf = [0; 16];
        assert_eq!(receiver.recv(&mut buf).unwrap_err().kind(), ErrorKind::WouldBlock);

        set_no_check6_rx(receiver.as_fd()).unwrap();
        assert!(no_check6_rx(receiver.as_fd()).unwrap());
        sender.send_to(b"taken", to).unwrap();
        receiver.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        assert_eq!(receiver.recv(&mut buf).unwrap(), 5);
    }
}
