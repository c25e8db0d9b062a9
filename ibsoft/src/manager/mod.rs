//! Managing a subnet: what it consists of, its routes, and subnet administration, all sans-IO.
//!
//! [`Topology`] is the database, which a [`SubnetManager`] fills: it sweeps through the subnet by directed routes, gives LIDs,
//! writes routes and multicast trees, and is master or standby. [`Sa`] answers the subnet administration's MADs from it (spec/sa.md, section 10 for the
//! rules): MADs and times go in, MADs come out. It never panics on what a peer sends, and what it keeps for peers is bounded
//! by [`SaLimits`].

mod routing;
pub mod sa;
pub mod sm;
mod topology;

pub use routing::{MulticastTree, Routing, route};
pub use sa::{GroupTree, Partition, Peer, Sa, SaConfig, SaCounters, SaLimits, SaMad, SaMode};
pub use sm::{Qos, SmConfig, SmCounters, SmMad, SubnetManager};
pub use topology::{Node, NodeId, Port, PortAt, Switch, Topology};
