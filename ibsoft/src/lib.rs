//! .
#![forbid(unsafe_code)]

#[cfg(feature = "runtime")]
mod device;
pub mod engine;
#[cfg(feature = "runtime")]
mod pcap;
#[cfg(feature = "runtime")]
pub mod sim;
#[cfg(feature = "runtime")]
mod udp;

#[cfg(feature = "runtime")]
pub use device::SoftDevice;
#[cfg(feature = "runtime")]
pub use udp::UdpConfig;
