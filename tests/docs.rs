//! The pages of docs/: their programs run as doctests.

#[doc = include_str!("../docs/first-connection.md")]
mod first_connection {}

#[doc = include_str!("../docs/rejecting.md")]
mod rejecting {}

#[doc = include_str!("../docs/listeners-and-peers.md")]
mod listeners_and_peers {}

#[doc = include_str!("../docs/deadlines.md")]
mod deadlines {}

#[doc = include_str!("../docs/datagrams.md")]
mod datagrams {}

#[doc = include_str!("../docs/raw.md")]
mod raw {}

#[doc = include_str!("../docs/subnet.md")]
mod subnet {}

#[doc = include_str!("../docs/memory.md")]
mod memory {}

#[doc = include_str!("../docs/testing.md")]
mod testing {}

#[doc = include_str!("../docs/linux.md")]
mod linux {}

#[doc = include_str!("../docs/closing.md")]
mod closing {}

#[doc = include_str!("../docs/own-qp.md")]
mod own_qp {}

#[doc = include_str!("../docs/seeing.md")]
mod seeing {}

#[doc = include_str!("../docs/real-devices.md")]
mod real_devices {}

#[doc = include_str!("../docs/failover.md")]
mod failover {}

#[doc = include_str!("../docs/mapping.md")]
mod mapping {}
