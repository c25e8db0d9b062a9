//! Multicast groups over UDP: a socket for each group, bound to its address and joined by IGMP or MLD on the interfaces of the
//! device's own addresses (spec/softhca.md 3.3). A socket of a unicast address does not receive what is sent to groups.

use std::future::{Future, poll_fn};
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;

use ibdev::DeviceError;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::sync::oneshot;

use super::address::LocalAddress;
use super::link::Io;
use super::socket::RoceSocket;
use crate::device::Core;

/// How long a socket rests that gives errors.
const REST: Duration = Duration::from_millis(100);

/// Binds and joins a group, on the interfaces of `own`, of which one at least is of the group's family.
pub(super) fn bind(
    group: IpAddr,
    udp_port: u16,
    own: &[IpAddr],
    port: u8,
) -> Result<RoceSocket, DeviceError> {
    let os = |error| DeviceError::os("join a multicast group", error);
    let address = SocketAddr::new(group, udp_port);
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP)).map_err(os)?;
    socket.set_nonblocking(true).map_err(os)?;
    // Each device of this machine that has joined has a socket of its own, and each gets a copy.
    socket.set_reuse_address(true).map_err(os)?;
    if group.is_ipv6() {
        socket.set_only_v6(true).map_err(os)?;
        #[cfg(target_os = "linux")]
        ibcm_sys::socket::set_no_check6_rx(std::os::fd::AsFd::as_fd(&socket)).map_err(os)?;
    }
    socket.bind(&address.into()).map_err(os)?;
    let mut refused = None;
    let mut joined = false;
    for own in own.iter().filter(|own| own.is_ipv4() == group.is_ipv4()) {
        let result = match (group, own) {
            (IpAddr::V4(group), IpAddr::V4(own)) => socket.join_multicast_v4(&group, own),
            (IpAddr::V6(group), _) => socket.join_multicast_v6(&group, LocalAddress::look_up(*own).interface),
            _ => continue,
        };
        match result {
            Ok(()) => joined = true,
            // Two addresses of one interface, of which the first has joined.
            Err(error) => refused = Some(error),
        }
    }
    match (joined, refused) {
        (true, _) => {}
        (false, Some(error)) => return Err(os(error)),
        (false, None) => {
            return Err(DeviceError::Unsupported {
                what: "a multicast group of a family that the port has not",
            });
        }
    }
    Ok(RoceSocket::new(socket)?.of_port(port))
}

/// Hands what comes to the group to the engine, until `left` is dropped or the device is gone.
pub(super) async fn receive(core: Weak<Core>, io: Arc<Io>, socket: RoceSocket, left: oneshot::Receiver<()>) {
    let mut left = pin!(left);
    loop {
        let ready = poll_fn(|cx| match left.as_mut().poll(cx) {
            Poll::Ready(_) => Poll::Ready(false),
            Poll::Pending => socket.socket.poll_recv_ready(cx).map(|ready| ready.is_ok()),
        });
        if !ready.await {
            return;
        }
        let Some(core) = core.upgrade() else { return };
        let works = take_in(&core, &io, &socket);
        drop(core);
        match works {
            // A flood leaves other tasks their turn.
            true => tokio::task::yield_now().await,
            false => tokio::time::sleep(REST).await,
        }
    }
}

/// Takes one batch. False if the socket gives errors.
fn take_in(core: &Core, io: &Io, socket: &RoceSocket) -> bool {
    let mut receiver = io.receiver();
    let received = socket.socket.try_recv(|| receiver.recv(socket, io.capture.as_ref()).map(drop));
    let works = match received {
        Ok(()) => {
            receiver.hand_in(core);
            true
        }
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => true,
        Err(error) => {
            tracing::debug!(group = %socket.local, %error, "receiving failed");
            receiver.counters.errors += 1;
            false
        }
    };
    io.signals().received = receiver.counters;
    drop(receiver);
    core.catch_up();
    works
}
