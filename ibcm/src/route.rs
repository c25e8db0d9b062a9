//! What the system's routing table says.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

/// The source address of the system's route to `dest`; `None` if there is none. Nothing is sent.
pub(crate) fn source_to(dest: IpAddr) -> Option<IpAddr> {
    let any: IpAddr = match dest {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    // Connecting a datagram socket looks the route up; the port does not matter.
    socket.connect((dest, 9)).ok()?;
    socket.local_addr().ok().map(|address| address.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_to_loopback_starts_there() {
        let source = source_to(Ipv4Addr::LOCALHOST.into());
        assert_eq!(source, Some(Ipv4Addr::LOCALHOST.into()));
    }
}
