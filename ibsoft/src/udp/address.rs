//! Which network interface holds an IP address, and what follows from it.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use ibwire::Mtu;

/// An address to bind, with what its interface says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LocalAddress {
    pub ip: IpAddr,
    /// The interface's index for a link-local IPv6 address, else 0.
    pub scope_id: u32,
    /// The interface's index; 0 where it is not known.
    pub interface: u32,
    /// The interface's MTU in bytes.
    pub netdev_mtu: u32,
}

/// The MTU of Ethernet, assumed where the interface or its MTU cannot be found.
const ETHERNET_MTU: u32 = 1500;

impl LocalAddress {
    /// Looks the address up among the machine's interfaces. An address that none of them holds is kept with
    /// Ethernet's MTU: binding it will say what is wrong.
    pub(super) fn look_up(ip: IpAddr) -> Self {
        let interfaces = if_addrs::get_if_addrs().unwrap_or_default();
        // Every address of 127.0.0.0/8 is the loopback interface's, which lists only the first.
        let found = interfaces
            .iter()
            .find(|interface| interface.ip() == ip)
            .or_else(|| interfaces.iter().find(|interface| ip.is_loopback() && interface.is_loopback()));
        let link_local = matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
        Self {
            ip,
            interface: found.and_then(|interface| interface.index).unwrap_or(0),
            scope_id: found.filter(|_| link_local).and_then(|interface| interface.index).unwrap_or(0),
            netdev_mtu: found.and_then(|interface| mtu_of(&interface.name)).unwrap_or(ETHERNET_MTU),
        }
    }

    /// Where to bind.
    pub(super) fn socket_addr(&self, port: u16) -> SocketAddr {
        match self.ip {
            IpAddr::V4(_) => SocketAddr::new(self.ip, port),
            IpAddr::V6(v6) => SocketAddrV6::new(v6, port, 0, self.scope_id).into(),
        }
    }

    /// The InfiniBand MTU that fits into the interface's.
    pub(super) fn mtu(&self) -> Mtu {
        Mtu::of_netdev(self.netdev_mtu).unwrap_or(Mtu::B256)
    }
}

#[cfg(unix)]
fn mtu_of(interface: &str) -> Option<u32> {
    use std::os::fd::AsFd;
    let socket =
        std::net::UdpSocket::bind("127.0.0.1:0").or_else(|_| std::net::UdpSocket::bind("[::1]:0")).ok()?;
    ibcm_sys::socket::interface_mtu(socket.as_fd(), interface).ok()
}

#[cfg(not(unix))]
fn mtu_of(_interface: &str) -> Option<u32> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_carries_the_largest_mtu() {
        for ip in ["127.0.0.1", "127.9.8.7", "::1"] {
            let address = LocalAddress::look_up(ip.parse().unwrap());
            if cfg!(target_os = "linux") {
                assert_eq!(address.mtu(), Mtu::B4096, "{address:?}");
            }
            assert_eq!(address.scope_id, 0);
        }
    }

    #[test]
    fn a_foreign_address_counts_as_ethernet() {
        let address = LocalAddress::look_up("192.0.2.1".parse().unwrap());
        assert_eq!((address.netdev_mtu, address.mtu()), (1500, Mtu::B1024));
    }
}
