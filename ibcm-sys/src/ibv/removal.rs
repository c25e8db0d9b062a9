//! How the removal of a device is noticed. Drivers that can let go of a device in use report it as an event; others (rxe) do not
//! say anything and wait until the last program has closed it. So the kernel's announcement that the device's file goes
//! away is listened for (netlink(7), NETLINK_KOBJECT_UEVENT).

use std::io;
use std::os::fd::OwnedFd;

use ibdev::DeviceError;
use rustix::io::Errno;
use rustix::net::netlink::{KOBJECT_UEVENT, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recvfrom, socket_with};
use tokio::io::unix::AsyncFd;

/// The multicast group of what the kernel itself announces.
const KERNEL: u32 = 1;

/// Longest announcement of the kernel, and some more.
const LONGEST: usize = 8192;

/// Announcements of the kernel from now on.
pub(super) fn listen() -> Result<OwnedFd, DeviceError> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = || -> Result<OwnedFd, Errno> {
        let socket = socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, Some(KOBJECT_UEVENT))?;
        bind(&socket, &SocketAddrNetlink::new(0, KERNEL))?;
        Ok(socket)
    };
    socket().map_err(|error| DeviceError::os("listen for the removal of devices", error.into()))
}

/// Returns when the device with this file name is being removed. Never, if the socket fails.
pub(super) async fn of(file_name: String, socket: AsyncFd<OwnedFd>) {
    let mut message = vec![0; LONGEST];
    loop {
        let Ok(mut guard) = socket.readable().await else { return std::future::pending().await };
        let received = guard.try_io(|socket| {
            recvfrom(socket.get_ref(), &mut message[..], RecvFlags::empty()).map_err(io::Error::from)
        });
        match received {
            Ok(Ok((_, len, from))) => {
                let from = from.and_then(|from| SocketAddrNetlink::try_from(from).ok());
                let is_of_kernel = from.is_some_and(|from| from.pid() == 0);
                if is_of_kernel && is_removal(&message[..len], &file_name) {
                    return;
                }
            }
            // Announcements were lost: look.
            Ok(Err(error)) if Errno::from_io_error(&error) == Some(Errno::NOBUFS) => {
                if !std::path::Path::new("/sys/class/infiniband_verbs").join(&file_name).exists() {
                    return;
                }
            }
            Ok(Err(_)) => return std::future::pending().await,
            Err(_would_block) => {}
        }
    }
}

/// `remove@/devices/…/infiniband_verbs/uverbs0`, then variables, each with a NUL behind it.
fn is_removal(message: &[u8], file_name: &str) -> bool {
    let header = message.split(|byte| *byte == 0).next().unwrap_or_default();
    let Some(path) = header.strip_prefix(b"remove@") else { return false };
    path.rsplit(|byte| *byte == b'/').next() == Some(file_name.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_devices_own_removal_counts() {
        let removal = b"remove@/devices/virtual/infiniband_verbs/uverbs1\0ACTION=remove\0";
        assert!(is_removal(removal, "uverbs1"));
        assert!(!is_removal(removal, "uverbs10") && !is_removal(removal, "1"));
        assert!(!is_removal(b"add@/devices/virtual/infiniband_verbs/uverbs1\0", "uverbs1"));
        assert!(!is_removal(b"remove@/devices/uverbs1/x\0", "uverbs1") && !is_removal(b"", ""));
    }

    #[tokio::test]
    async fn the_kernel_lets_anyone_listen() {
        // SAFETY: the socket is its descriptor.
        let socket = unsafe { crate::fd::readable(listen().unwrap()) }.unwrap();
        let nothing = of("uverbs-of-nobody".into(), socket);
        assert!(tokio::time::timeout(std::time::Duration::from_millis(1), nothing).await.is_err());
    }
}
