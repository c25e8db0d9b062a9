//! .
mod address;
