//! The software HCA over UDP: two devices with two ports each, on four addresses of loopback, in real time.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use futures::future::LocalBoxFuture;
use ibdev::{Device, DeviceError};
use ibsoft::{SoftDevice, UdpConfig};
use tokio::runtime::Runtime;

use super::bench::{Bench, Feature, Fixture, Hands};

#[derive(Debug)]
pub struct SoftUdp;

/// Addresses that were tried: other tests of this machine may hold some.
static PAIRS: AtomicU32 = AtomicU32::new(0);

impl Fixture for SoftUdp {
    fn name(&self) -> &'static str {
        "soft_udp"
    }

    fn lacks(&self) -> &'static [Feature] {
        &[Feature::Raw, Feature::Removal]
    }

    fn runtime(&self) -> Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
    }

    fn open(&self) -> LocalBoxFuture<'_, Bench> {
        Box::pin(async {
            loop {
                let pair = PAIRS.fetch_add(1, Ordering::Relaxed) + (std::process::id() << 8);
                let address = |host| {
                    let [_, _, process, pair] = pair.to_be_bytes();
                    IpAddr::V4(Ipv4Addr::new(
                        127,
                        224 + (process >> 4),
                        process << 4 | pair >> 4,
                        pair << 4 | host,
                    ))
                };
                let addresses = [[address(1), address(3)], [address(2), address(4)]];
                match addresses.map(bind) {
                    [Ok(a), Ok(b)] => {
                        let b = Arc::new(b);
                        let hands = Sockets { addresses, b: Arc::downgrade(&b) };
                        return Bench { a: Arc::new(a), b, hands: Box::new(hands), differs: &[] };
                    }
                    [Err(DeviceError::InUse { .. }), _] | [_, Err(DeviceError::InUse { .. })] => {}
                    other => panic!("{other:?}"),
                }
            }
        })
    }
}

/// A device with two ports.
fn bind(ports: [IpAddr; 2]) -> Result<SoftDevice, DeviceError> {
    SoftDevice::bind(UdpConfig::with_ports(ports.map(|address| vec![address]).to_vec()))
}

#[derive(Debug)]
struct Sockets {
    addresses: [[IpAddr; 2]; 2],
    b: Weak<SoftDevice>,
}

impl Sockets {
    fn set_port_of_b(&self, port: u8, up: bool) {
        let b = self.b.upgrade().expect("the case has it");
        b.set_port_up(port, up).expect("it has two ports");
    }
}

impl Hands for Sockets {
    fn set_ports_of_b(&self, up: bool) {
        for port in [1, 2] {
            self.set_port_of_b(port, up);
        }
    }

    fn take_port_of_b_down(&self, port: u8) {
        self.set_port_of_b(port, false);
    }

    fn open_a(&self) -> LocalBoxFuture<'_, Arc<dyn Device>> {
        Box::pin(async { Arc::new(bind(self.addresses[0]).expect("the address is free")) as Arc<dyn Device> })
    }

    /// A device is closed with its last handle, and only then its address is free.
    fn nothing_left(&self) -> LocalBoxFuture<'_, ()> {
        Box::pin(async {
            for ports in self.addresses {
                while bind(ports).is_err() {
                    tokio::task::yield_now().await;
                }
            }
        })
    }
}
