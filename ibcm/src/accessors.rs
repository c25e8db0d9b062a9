//! What every handle of a connection tells and does.

/// Adds them to a type whose field `conn` is an [`Established`](crate::established::Established).
macro_rules! accessors {
    ($handle:ty) => {
        impl $handle {
            /// Waits until the connection has ended, and tells how. It does nothing to end it.
            ///
            /// # Cancel safety
            /// A dropped future has no effect.
            pub async fn closed(&self) -> crate::Closed {
                self.conn.session().closed().await
            }

            /// What the peer's program sent along when the connection was made, zero-padded: 92 bytes of the REQ (56 if
            /// it was addressed by IP) on the passive side, 196 of the REP on the active side.
            pub fn private_data(&self) -> &[u8] {
                self.conn.session().private_data()
            }

            /// The other end.
            pub fn peer(&self) -> crate::Peer {
                self.conn.session().peer()
            }

            /// Which side this is.
            pub fn role(&self) -> crate::Role {
                self.conn.session().role()
            }

            /// The transport: [`Rc`](crate::Transport::Rc), unless both sides have chosen
            /// [`Uc`](crate::Transport::Uc).
            pub fn transport(&self) -> crate::Transport {
                self.conn.session().transport()
            }

            /// What the passive side made of the alternate path that the connection was asked for with; `None` if there was
            /// none.
            pub fn failover(&self) -> Option<crate::FailoverAccepted> {
                self.conn.session().failover()
            }

            /// The service that was connected to.
            pub fn service_id(&self) -> ibwire::ServiceId {
                self.conn.session().service_id()
            }

            /// The number of this side's queue pair; `None` when the connection is over.
            pub fn local_qpn(&self) -> Option<ibwire::Qpn> {
                self.conn.local_qpn()
            }

            /// What has gone over the connection so far, in both directions.
            pub fn stats(&self) -> crate::stats::ConnectionStats {
                self.conn.stats()
            }

            /// What happened to the connection, and happens, besides its end.
            pub fn events(&self) -> crate::ConnectionEvents {
                self.conn.session().events()
            }
        }
    };
}

pub(crate) use accessors;
