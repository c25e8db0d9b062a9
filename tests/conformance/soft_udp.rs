//! The software HCA over UDP: two devices with two ports each, on four addresses of loopback, in real time.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

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

    /// Its ports are up as long as their sockets are open.
    fn lacks(&self) -> &'static [Feature] {
        &[Feature::Raw, Feature::PortControl, Feature::Removal]
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
                        return Bench {
                            a: Arc::new(a),
                            b: Arc::new(b),
                            hands: Box::new(Sockets(addresses)),
                            differs: &[],
                        };
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
struct Sockets([[IpAddr; 2]; 2]);

impl Hands for Sockets {
    fn open_a(&self) -> LocalBoxFuture<'_, Arc<dyn Device>> {
        Box::pin(async { Arc::new(bind(self.0[0]).expect("the address is free")) as Arc<dyn Device> })
    }

    /// A device is closed with its last handle, and only then its address is free.
    fn nothing_left(&self) -> LocalBoxFuture<'_, ()> {
        Box::pin(async {
            for ports in self.0 {
                while bind(ports).is_err() {
                    tokio::task::yield_now().await;
                }
            }
        })
    }
}
