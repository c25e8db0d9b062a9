//! The scenarios of spec/cm.md 8 and the rows of its tables, one test each: two or more endpoints, a virtual clock and
//! a network that does to each MAD what the script says.

mod active;
mod capture;
mod disconnect;
mod fields;
mod host;
mod hostile;
mod listeners;
mod loss;
mod migration;
mod monitor;
mod mra;
mod pair;
mod passive;
mod peers;
mod ports;
mod reject;
mod replay;
mod sidr;
mod sidr_simulation;
mod simulation;
mod stale;
mod teardown;
mod together;
mod transports;
mod unknown;
