//! Subnet administration: the records of the SA, and the engines of its clients.
//!
//! [`record`] has every attribute of the class as a struct with public fields, and a [`Template`](record::Template) of
//! each: the fields a query names, with their bits of the component mask. [`mad`] has the headers of the datagrams that carry
//! them, [`proto`] the sans-IO engines: transfers of more than one datagram (RMPP), and a client's transactions.
//!
//! # Features
//! `client` (default): [`Client`], the async client on tokio. Without it there are records and engines only.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![deny(missing_docs)]
#![forbid(unsafe_code)]

#[cfg(feature = "client")]
mod client;
pub mod mad;
pub mod proto;
pub mod record;

#[cfg(feature = "client")]
pub use client::{
    CacheConfig, Client, FoundPath, Group, Incomplete, Join, Membership, Notice, Notices, PathQuery,
    PathSource, Register, Registration, Table, Trap,
};
pub use proto::client::{Answer, Config, Effort, QueryError, Request, SaStatus, Stats};
