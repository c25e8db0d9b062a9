//! Packet sockets and raw IPv6 sockets: what no safe crate offers of packet(7) and raw(7), and batches of datagrams.
//!
//! Every descriptor made here is non-blocking and closed on exec.

mod addr;
mod batch;
mod options;
mod ring;

pub use addr::{Address, LinkAddress, Source};
pub use batch::{BATCH, Head, Outgoing, Received, RecvBatch, Tag, send_many};
pub use options::{
    Instruction, Kind, LinkInfo, attach_filter, bind, deliver_auxdata, deliver_ipv6_facts, deliver_times,
    dropped, exists, fanout, hear_no_outgoing, icmpv6_types, ipv6_checksum_at, ipv6_header_included,
    link_info, membership, namespace, packet_socket, report_drops, ring_losses,
};
pub use ring::{Block, Cursor, Ring, RingSpec};
