//! What an engine counts.

macro_rules! counters {
    ($($(#[doc = $doc:literal])* $name:ident,)*) => {
        /// What an engine has counted since it was made. Every dropped packet is in exactly one `drop_…`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        #[non_exhaustive]
        pub struct Counters {
            $($(#[doc = $doc])* pub $name: u64,)*
        }

        impl Counters {
            /// All counters with their names, for people and exporters.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }

            /// The first `drop_…` that differs from an earlier snapshot.
            pub(super) fn drop_since(&self, earlier: &Self) -> Option<&'static str> {
                self.named()
                    .zip(earlier.named())
                    .find(|((name, now), (_, then))| now != then && name.starts_with("drop_"))
                    .map(|((name, _), _)| name)
            }
        }
    };
}

counters! {
    /// Packets that the link handed in.
    rx_packets,
    /// Their bytes, BTH through padding.
    rx_bytes,
    /// Packets handed to the link.
    tx_packets,
    /// Their bytes, BTH through padding.
    tx_bytes,
    /// Packets that were not sent because their port is down.
    drop_tx_port_down,
    /// Packets that arrived on a port that is down or does not exist.
    drop_port_down,
    /// Packets that were damaged between two ports: the VCRC did not match.
    drop_vcrc,
    /// Packets that were damaged elsewhere: the ICRC did not match.
    drop_icrc,
    /// Packets with wrong link headers or lengths.
    drop_link_malformed,
    /// Raw packets with impossible lengths or headers.
    drop_raw_malformed,
    /// Raw packets of this port itself that came back.
    drop_raw_own,
    /// Raw packets whose protocol no QP takes.
    drop_raw_unclaimed,
    /// Raw packets of groups that no QP is attached to which takes their protocol.
    drop_raw_not_member,
    /// Raw packets that found no receive; once for each QP.
    drop_raw_no_receive,
    /// Raw packets longer than the receive; once for each QP.
    drop_raw_too_long,
    /// Shorter than their headers and padding.
    drop_malformed,
    /// Another version of the transport header.
    drop_version,
    /// Opcodes that nobody here knows.
    drop_opcode,
    /// Congestion notifications; there is no congestion control.
    drop_cnp,
    /// No such QP.
    drop_unknown_qp,
    /// For QP0, which this device does not have.
    drop_smi,
    /// Multicast that no QP is attached to.
    drop_multicast,
    /// The opcode belongs to another transport than the QP's.
    drop_transport,
    /// The QP's state does not take it.
    drop_state,
    /// The source is not the connection's peer, or the destination not this port.
    drop_address,
    /// Packets of a peer that has migrated, but not to the alternate path that is loaded here.
    drop_migration,
    /// P_Key mismatches.
    drop_pkey,
    /// Q_Key mismatches.
    drop_qkey,
    /// Datagrams for which no receive was posted.
    drop_ud_no_receive,
    /// Datagrams longer than the posted receive, which stays posted.
    drop_ud_too_long,
    /// MADs that do not have 256 bytes or base version 1.
    drop_mad_malformed,
    /// MADs of classes or methods that no agent takes.
    drop_mad_no_agent,
    /// MADs for agents whose receive queue is full.
    drop_mad_queue_full,
    /// MADs to addresses that the port cannot reach: sent and lost.
    drop_mad_unroutable,
    /// Requests ahead of a gap: the first is answered with a NAK, the others with silence.
    drop_out_of_sequence,
    /// SENDs and WRITEs that were executed before: acknowledged again, not executed.
    drop_duplicate,
    /// READs and atomics that were executed before and are not remembered: met with silence.
    drop_forgotten,
    /// Requests for which no receive was posted: answered with RNR NAK, on UC with silence.
    drop_rnr,
    /// Requests that do not follow from the one before. This one and the next ones are answered with NAK, and the QP
    /// fails; on UC they are met with silence.
    drop_opcode_sequence,
    /// Requests for what the QP does not allow its peer.
    drop_not_allowed,
    /// Requests whose length does not fit the path MTU or the message.
    drop_length,
    /// READs and atomics beyond the number that was agreed.
    drop_resources,
    /// Requests with a key that nothing has.
    drop_rkey,
    /// Requests with the key of another protection domain.
    drop_domain,
    /// Requests for what the region does not allow.
    drop_region_access,
    /// Requests for bytes outside of the region.
    drop_range,
    /// Atomics on addresses that are no multiple of 8.
    drop_unaligned,
    /// Messages longer than the receive that they are placed into.
    drop_too_long,
    /// SENDs that want a key invalidated; there are none that can be.
    drop_invalidate,
    /// Responses to what was acknowledged before.
    drop_stale_response,
    /// Responses to what was never sent.
    drop_future_response,
    /// Responses with a reserved syndrome.
    drop_syndrome,
    /// Responses that do not fit the request.
    drop_bad_response,
    /// Responses behind one that is missing.
    drop_behind_gap,
    /// NAKs that change nothing: repeated ones, said or implied, and sequence NAKs while the peer is not ready.
    drop_repeated_nak,
    /// UC messages given up half way: a packet was lost, or was wrong.
    uc_abandoned,
    /// ACKs sent.
    acks_sent,
    /// Packets of READ responses sent.
    read_responses_sent,
    /// Responses to atomics sent.
    atomic_acks_sent,
    /// READs and atomics that are answered again from what is remembered.
    replayed,
    /// READs whose memory was taken away before all of it was sent.
    read_faults,
    /// Sequence NAKs sent.
    sequence_naks_sent,
    /// RNR NAKs sent.
    rnr_naks_sent,
    /// NAKs sent that end the connection.
    fatal_naks_sent,
    /// NAKs received that end the connection.
    fatal_naks_received,
    /// Sequence NAKs received and acted on.
    sequence_naks_received,
    /// Answers from which it followed that an earlier response was lost, so that it was asked for again.
    implied_naks_received,
    /// RNR NAKs received and acted on.
    rnr_naks_received,
    /// Ack timeouts.
    timeouts,
    /// Packets sent again.
    retransmitted,
    /// Connections that have migrated to their alternate path.
    path_migrations,
    /// QPs that failed by themselves.
    qp_errors,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_fields() {
        let counters = Counters { drop_cnp: 7, ..Counters::default() };
        assert_eq!(counters.named().find(|&(name, _)| name == "drop_cnp"), Some(("drop_cnp", 7)));
        assert_eq!(counters.named().map(|(_, n)| n).sum::<u64>(), 7);
        let earlier = Counters { drop_cnp: 6, rx_packets: 1, ..Counters::default() };
        assert_eq!(counters.drop_since(&earlier), Some("drop_cnp"));
        assert_eq!(counters.drop_since(&Counters { rx_packets: 1, ..counters }), None);
    }
}
