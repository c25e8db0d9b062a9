//! A subnet manager with its administration as the manager on a switch of the fabric.

use std::time::Instant;

use ibwire::{Lid, PKey, Qpn, ServiceLevel};

use super::management::{Manager, ManagerMad};
use crate::manager::{Peer, SmMad, SubnetManager};

impl Manager for SubnetManager {
    fn handle_mad(&mut self, now: Instant, mad: &ManagerMad) {
        if mad.qp == Qpn::SMI {
            self.handle_smp(now, mad.lid, &mad.mad);
            return;
        }
        let peer = Peer { lid: mad.lid, qpn: mad.remote_qp, gid: mad.gid, sl: mad.sl, p_key: mad.pkey };
        self.handle_sa(now, peer, &mad.mad);
    }

    fn handle_timeout(&mut self, now: Instant) {
        SubnetManager::handle_timeout(self, now);
    }

    fn poll_transmit(&mut self, now: Instant) -> Option<ManagerMad> {
        Some(match SubnetManager::poll_transmit(self, now)? {
            SmMad::Smp(lid, mad) => by_qp0(lid, mad),
            SmMad::Sa(sent) => {
                let Peer { lid, qpn, gid, sl, p_key } = sent.peer;
                ManagerMad { qp: Qpn::GSI, remote_qp: qpn, lid, gid, sl, pkey: p_key, mad: sent.mad }
            }
        })
    }

    fn poll_timeout(&self) -> Option<Instant> {
        SubnetManager::poll_timeout(self)
    }

    fn sm(&self) -> Option<&SubnetManager> {
        Some(self)
    }

    fn sm_mut(&mut self) -> Option<&mut SubnetManager> {
        Some(self)
    }
}

fn by_qp0(lid: Lid, mad: [u8; ibdev::MAD_LEN]) -> ManagerMad {
    let (sl, pkey) = (ServiceLevel::default(), PKey::DEFAULT);
    ManagerMad { qp: Qpn::SMI, remote_qp: Qpn::SMI, lid, gid: None, sl, pkey, mad }
}

#[cfg(test)]
pub(super) mod tests;
