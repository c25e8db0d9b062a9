//! The CM engine: sans-IO, one endpoint per HCA.

pub mod message;
