//! Counters of an endpoint.

/// Declares [`Stats`] and its names in one place.
macro_rules! stats {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters since the endpoint was made. Each message that is dropped counts in exactly one `dropped_…`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        #[non_exhaustive]
        pub struct Stats {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Stats {
            /// Each counter with its name, for exporters.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }
    };
}

stats! {
    /// MADs taken in, whatever became of them.
    mads_received,
    /// MADs handed out.
    mads_sent,
    /// REQs, REPs, DREQs, LAPs and SIDR_REQs sent again because no answer came.
    resent,
    /// MRAs sent because a request or reply was undecided for long.
    mras_sent,
    /// REPs, RTUs, REJs, MRAs, DREPs, APRs and SIDR_REPs sent again in answer to a repeated message.
    repeated_answers,
    /// Requests handed to a listener.
    requests,
    /// REQs of peers that were asked at the same time, whichever of the two counted.
    crossing_requests,
    /// Rejections by peers that were asked, but had not asked yet. They are asked again.
    absent_peers,
    /// Requests that the user dropped without an answer.
    ignored_requests,
    /// Connections established, both sides.
    established,
    /// REQs and REPs that were never answered.
    handshake_timeouts,
    /// DREQs that were never answered.
    disconnect_timeouts,
    /// LAPs that were never answered.
    lap_timeouts,
    /// LAPs of peers handed to the user.
    alternate_requests,
    /// LAPs of peers refused unasked.
    refused_alternates,
    /// Connections whose queue pairs have migrated.
    migrations,
    /// Rejections received.
    rejections_received,
    /// Rejections sent, repeated ones not counted.
    rejections_sent,
    /// Connections found stale: the peer reused their QP or ID.
    stale,
    /// Messages that named a connection, but came from another address than its peer's: taken for those of another
    /// host.
    foreign_source,
    /// Queries for datagram services begun.
    sidr_queries,
    /// Queries that were never answered.
    sidr_timeouts,
    /// Redirections that queries followed.
    sidr_redirects,
    /// Requests of peers for datagram services answered from what is published.
    sidr_published,
    /// Requests of peers for datagram services reported.
    sidr_requests,
    /// Reported requests answered.
    sidr_answers,
    /// Requests of peers for datagram services refused unasked: no service, no room, no proper IP header.
    sidr_refused,
    /// Get and Set MADs answered.
    class_queries,
    /// Base version other than 1.
    dropped_base_version,
    /// Not of the CM class.
    dropped_class,
    /// Class version other than 2; REQs are rejected and SIDR_REQs refused besides.
    dropped_class_version,
    /// A method that is not for us.
    dropped_method,
    /// A CM message that is known and not spoken: SAP and SPR, which suggest alternate paths.
    dropped_unsupported,
    /// An attribute that is no CM message.
    dropped_unknown_attribute,
    /// A message that breaks its own rules: an MRA for no message, a REP or SIDR_REP without a QP.
    dropped_malformed,
    /// For no connection, or with IDs that do not match one; some are answered.
    dropped_unknown_id,
    /// A DREQ that names another QP.
    dropped_wrong_qpn,
    /// A REQ, REP, RTU or SIDR_REQ that came again and needs no answer.
    dropped_duplicate,
    /// A message that means nothing in the connection's state.
    dropped_state,
    /// A REQ that was rejected without becoming a connection: no listener, no room at one that rejects then,
    /// unusable path or transport, stale, late.
    refused_requests,
    /// A REQ of our own, to a peer on the same HCA, that came back.
    dropped_reflected,
    /// A REQ that found its listener's backlog full and was dropped.
    dropped_backlog,
    /// An answer not sent: too many for one source in one second.
    dropped_answer_rate,
    /// An answer not sent: too many were waiting to be sent.
    dropped_answer_queue,
    /// A MAD not sent: our GID that it goes by is not in the port's table any more.
    dropped_no_gid,
    /// An answer not sent: there is no such port, or the device was removed.
    dropped_no_port,
    /// A REP whose ID another connection with that peer has.
    dropped_id_taken,
}
