//! Sockets that carry RoCEv2: options, and why one could not be had.

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use ibdev::DeviceError;
use ibwire::packet::UdpHeader;
use quinn_udp::{RecvMeta, Transmit, UdpSocketState};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use super::address::LocalAddress;
use super::watched::Watched;

/// One bound address: packets that it receives were sent to this address, packets that it sends come from it.
#[derive(Debug)]
pub(super) struct RoceSocket {
    pub socket: Watched,
    pub state: UdpSocketState,
    pub local: SocketAddr,
    /// The port of the device that it is of.
    pub port: u8,
    /// What the kernel granted, in bytes.
    pub recv_buffer: usize,
    /// Datagrams that one call can send, 1 without segmentation offload.
    gso_segments: AtomicUsize,
    /// What the system answers in its place: loopback is never full and takes every length.
    #[cfg(test)]
    pub refuse: std::sync::Mutex<Option<Refuse>>,
    /// What the system answers to one who receives.
    #[cfg(test)]
    pub fail_receive: std::sync::Mutex<Option<FailReceive>>,
}

#[cfg(test)]
pub(super) type Refuse = fn(&Transmit<'_>) -> Option<io::Error>;
#[cfg(test)]
pub(super) type FailReceive = fn() -> io::Error;

/// Holds three windows of a fast peer. The default of Linux holds less than one window of rdma_rxe
/// (spec/softhca.md 6.2).
const BUFFER_BYTES: usize = 8 << 20;

impl RoceSocket {
    /// Binds `address`. Never connected: only so is the IPv4 Identification known in advance.
    pub(super) fn bind(address: &LocalAddress, port: u16) -> Result<Self, DeviceError> {
        Self::new(open(address, port).map_err(|error| refusal(error, port))?)
    }

    /// One that is bound.
    pub(super) fn new(socket: Socket) -> Result<Self, DeviceError> {
        let os = |error| DeviceError::os("set up a RoCEv2 socket", error);
        let socket = Watched::new(socket).map_err(os)?;
        let state = UdpSocketState::new((&socket).into()).map_err(os)?;
        // It turns timestamps on, behind which its control buffer has no room for the ECN bits of merged datagrams.
        #[cfg(target_os = "linux")]
        ibcm_sys::socket::clear_receive_timestamps(std::os::fd::AsFd::as_fd(&socket)).map_err(os)?;
        let bound = SockRef::from(&socket).local_addr().map_err(os)?;
        let local = bound.as_socket().ok_or_else(|| os(io::ErrorKind::AddrNotAvailable.into()))?;
        let recv_buffer = state.recv_buffer_size((&socket).into()).unwrap_or(0);
        let gso_segments = AtomicUsize::new(state.max_gso_segments());
        Ok(Self {
            socket,
            state,
            local,
            port: 1,
            recv_buffer,
            gso_segments,
            #[cfg(test)]
            refuse: Default::default(),
            #[cfg(test)]
            fail_receive: Default::default(),
        })
    }

    /// The same as one of another port of the device.
    pub(super) fn of_port(mut self, port: u8) -> Self {
        self.port = port;
        self
    }

    /// Sends the datagrams of one call. After `WouldBlock`, [`poll_room`](Self::poll_room) waits for room.
    pub(super) fn send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.socket.try_send(|| {
            #[cfg(test)]
            if let Some(error) = self.refuse.lock().unwrap().and_then(|refuse| refuse(transmit)) {
                return Err(error);
            }
            self.state.try_send((&self.socket).into(), transmit)
        })
    }

    /// Waits until there is room.
    pub(super) fn poll_room(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        #[cfg(test)]
        if self.refuse.lock().unwrap().is_some() {
            return self.socket.poll_more_room(cx);
        }
        self.socket.poll_room(cx)
    }

    /// Receives a batch; how many of the buffers are filled.
    pub(super) fn recv(&self, bufs: &mut [IoSliceMut<'_>], metas: &mut [RecvMeta]) -> io::Result<usize> {
        #[cfg(test)]
        if let Some(fail) = *self.fail_receive.lock().unwrap() {
            return Err(fail());
        }
        self.state.recv((&self.socket).into(), bufs, metas)
    }

    /// How many datagrams one call can send.
    pub(super) fn gso_segments(&self) -> usize {
        self.gso_segments.load(Ordering::Relaxed)
    }

    #[cfg(test)]
    pub(super) fn force_gso_segments(&self, segments: usize) {
        self.gso_segments.store(segments, Ordering::Relaxed);
    }

    /// From now on one datagram a call. Whether that is a change.
    pub(super) fn stop_gso(&self) -> bool {
        self.gso_segments.swap(1, Ordering::Relaxed) > 1
    }
}

fn open(address: &LocalAddress, port: u16) -> io::Result<Socket> {
    let socket =
        Socket::new(Domain::for_address(address.socket_addr(port)), Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_nonblocking(true)?;
    match address.ip {
        IpAddr::V4(ip) => {
            socket.set_ttl_v4(UdpHeader::ROCE_HOP_LIMIT.into())?;
            // What goes to groups leaves by the interface of this address, and stays in its network.
            socket.set_multicast_if_v4(&ip)?;
        }
        IpAddr::V6(_) => {
            socket.set_only_v6(true)?;
            socket.set_unicast_hops_v6(UdpHeader::ROCE_HOP_LIMIT.into())?;
            socket.set_multicast_if_v6(address.interface)?;
            #[cfg(target_os = "linux")]
            ibcm_sys::socket::set_no_check6_rx(std::os::fd::AsFd::as_fd(&socket))?;
        }
    }
    // The system may grant less; what it granted is read back.
    _ = socket.set_send_buffer_size(BUFFER_BYTES);
    _ = socket.set_recv_buffer_size(BUFFER_BYTES);
    #[cfg(target_os = "linux")]
    if socket.recv_buffer_size()? < BUFFER_BYTES {
        _ = ibcm_sys::socket::force_recv_buffer_size(std::os::fd::AsFd::as_fd(&socket), BUFFER_BYTES);
    }
    socket.bind(&address.socket_addr(port).into())?;
    Ok(socket)
}

/// Binds the lowest address 127.0.0.N at which `port` is free.
pub(super) fn bind_free_loopback(port: u16) -> Result<(LocalAddress, RoceSocket), DeviceError> {
    let first = LocalAddress::look_up(IpAddr::V4(Ipv4Addr::LOCALHOST));
    for n in 1..=254 {
        let address = LocalAddress { ip: IpAddr::V4(Ipv4Addr::new(127, 0, 0, n)), ..first };
        match RoceSocket::bind(&address, port) {
            Ok(socket) => return Ok((address, socket)),
            Err(DeviceError::InUse { .. }) => {}
            Err(DeviceError::Os { error, .. })
                if n > 1 && error.kind() == io::ErrorKind::AddrNotAvailable =>
            {
                return Err(DeviceError::InUse { what: "127.0.0.1", holder: ONE_LOOPBACK_ADDRESS });
            }
            Err(error) => return Err(error),
        }
    }
    Err(refusal(io::ErrorKind::AddrInUse.into(), port))
}

const RXE_OR_OTHERS: &str = "rdma_rxe holds it for every address as soon as its module is loaded (rmmod rdma_rxe, or \
    use its device, or another network namespace); or another process or another soft device holds it for this \
    address (give each its own: any 127.x.y.z works on Linux; ss -ulnp names the process)";
const OTHER_PROGRAMS: &str = "another process or another soft device holds it for this address (give each its own; \
    ss -ulnp names the process)";
const ONE_LOOPBACK_ADDRESS: &str = "this system gives loopback one address only, 127.0.0.1, so a second soft device \
    needs an address of its own: add one (on macOS: ifconfig lo0 alias 127.0.0.2) or name another";

fn refusal(error: io::Error, port: u16) -> DeviceError {
    match error.kind() {
        io::ErrorKind::AddrInUse if port == UdpHeader::ROCE_PORT => {
            DeviceError::InUse { what: "UDP port 4791", holder: RXE_OR_OTHERS }
        }
        io::ErrorKind::AddrInUse => DeviceError::InUse { what: "the UDP port", holder: OTHER_PROGRAMS },
        io::ErrorKind::PermissionDenied => DeviceError::Permission {
            need: "binding a UDP socket (a sandbox or security module forbids it, or the port is below 1024)",
        },
        io::ErrorKind::AddrNotAvailable => {
            DeviceError::os("bind an address that is not one of this machine", error)
        }
        _ => DeviceError::os("open a RoCEv2 socket", error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_say_who_holds_it_or_what_is_needed() {
        let text = |kind: io::ErrorKind, port| refusal(kind.into(), port).to_string();
        let forbidden = text(io::ErrorKind::PermissionDenied, 4791);
        assert!(forbidden.starts_with("permission denied: binding a UDP socket (a sandbox"), "{forbidden}");
        let taken = text(io::ErrorKind::AddrInUse, 4791);
        assert!(taken.starts_with("UDP port 4791 is taken: rdma_rxe holds it"), "{taken}");
        let taken = text(io::ErrorKind::AddrInUse, 5000);
        assert!(taken.starts_with("the UDP port is taken: another process"), "{taken}");
        assert!(!taken.contains("rdma_rxe"), "{taken}");
    }
}
