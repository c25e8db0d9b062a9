//! Where the MADs of a connection go.

use ibdev::{AddressVector, GidKind, MadAddr};
use ibwire::Gid;

use super::local::LocalCa;

/// An address that stays right when our GID table changes: it names our GID, whose index is looked up for each MAD.
#[derive(Debug, Clone, Copy)]
pub(super) struct Address {
    to: MadAddr,
    /// `None` without GRH, or if the table did not have the index that the peer's MAD came by.
    sgid: Option<(Gid, GidKind)>,
}

impl Address {
    /// `to`, whose GID index is right at present.
    pub(super) fn new(ca: &LocalCa, to: MadAddr) -> Self {
        let entry = to.av.grh.and_then(|grh| ca.port(to.av.port)?.gid_at(grh.sgid_index));
        Self { to, sgid: entry.map(|entry| (entry.gid, entry.kind)) }
    }

    /// The address with the GID index of this moment; `None` while the port does not have the GID.
    #[inline]
    pub(super) fn resolve(&self, ca: &LocalCa) -> Option<MadAddr> {
        let mut to = self.to;
        if let (Some(grh), Some((gid, kind))) = (&mut to.av.grh, self.sgid) {
            grh.sgid_index = ca.port(to.av.port)?.index_of(gid, kind)?;
        }
        Some(to)
    }

    /// The port that it starts from.
    pub(super) fn port(&self) -> u8 {
        self.to.av.port
    }

    /// The other end.
    pub(super) fn av(&self) -> &AddressVector {
        &self.to.av
    }

    /// Our GID, if it is known.
    pub(super) fn sgid(&self) -> Option<Gid> {
        self.sgid.map(|(gid, _)| gid)
    }
}
