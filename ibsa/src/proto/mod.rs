//! The engines of the class, sans-IO: transfers of more than one MAD, and the client's transactions.

pub mod client;
pub mod rmpp;
