//! Automatic path migration of reliable connections (spec/softhca.md 2.12).
//!
//! A QP without an alternate path is in the migration state MIGRATED, one with it in REARM until a packet shows that its
//! peer has one loaded as well, then ARMED.

use std::time::Duration;

use ibdev::qp::AlternatePath;
use ibdev::{DeviceError, DeviceEvent};
use ibwire::Qpn;

use super::net::Ingress;
use super::peer::{Peer, PeerPath};
use super::qp::{Kind, Qp};
use super::rc::Rc;
use super::shared::Shared;

/// A path that is loaded.
#[derive(Debug)]
pub(super) struct Alternate {
    path: PeerPath,
    /// How long to wait for an acknowledgement there.
    timeout: Option<Duration>,
    /// ARMED; else REARM.
    armed: bool,
    /// Whether it was reported that the peer has migrated elsewhere.
    failed: bool,
}

/// What the migration state makes of a packet.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing: it is treated as without an alternate path.
    Pass,
    /// The peer has migrated. So do we, then it is treated.
    Migrate,
    /// It is dropped.
    Drop,
}

impl Alternate {
    pub(super) fn is_armed(&self) -> bool {
        self.armed
    }
}

impl Peer {
    /// Looks at a packet while an alternate path is loaded.
    ///
    /// In REARM, too, a packet that asks for migration and comes by the alternate path is heeded: a peer that has migrated
    /// had it loaded, and the packet that would have armed this side is lost.
    pub(super) fn watch(&mut self, ingress: &Ingress<'_>, qpn: Qpn, shared: &mut Shared) -> Verdict {
        let bth = ingress.packet.bth();
        let by_primary = self.path.leads_to(ingress);
        let Some(alternate) = &mut self.alternate else { return Verdict::Pass };
        let by_alternate = alternate.path.leads_to(ingress) && bth.pkey.matches(alternate.path.pkey);
        match bth.mig_req {
            true if by_alternate && (alternate.armed || !by_primary) => Verdict::Migrate,
            true if by_primary && alternate.armed => {
                shared.counters.drop_migration += 1;
                if !alternate.failed {
                    alternate.failed = true;
                    shared.device_event(DeviceEvent::PathMigrationFailed(qpn));
                }
                Verdict::Drop
            }
            false if by_primary && bth.pkey.matches(self.path.pkey) => {
                alternate.armed = true;
                Verdict::Pass
            }
            _ => Verdict::Pass,
        }
    }
}

impl Rc {
    /// Loads an alternate path: REARM.
    ///
    /// # Errors
    /// [`DeviceError::State`] in the migration state ARMED.
    fn load_path(&mut self, path: PeerPath, timeout: Option<Duration>) -> Result<(), DeviceError> {
        let Some(peer) = &mut self.peer else { return Err(NOT_ARMED) };
        if peer.alternate.as_ref().is_some_and(|alternate| alternate.armed) {
            return Err(DeviceError::State { state: "RTS, migration state ARMED" });
        }
        peer.alternate = Some(Box::new(Alternate { path, timeout, armed: false, failed: false }));
        Ok(())
    }

    /// Goes by the alternate path from now on. Does nothing if none is loaded.
    pub(super) fn migrate(&mut self, qpn: Qpn, shared: &mut Shared) {
        let Some(peer) = &mut self.peer else { return };
        let Some(alternate) = peer.alternate.take() else { return };
        tracing::debug!(%qpn, from = peer.path.port, to = alternate.path.port, "path migrated");
        peer.path = alternate.path;
        self.requester.change_path(alternate.timeout);
        shared.counters.path_migrations += 1;
        shared.device_event(DeviceEvent::PathMigrated(qpn));
    }
}

impl Qp {
    /// What an alternate path comes to on this device.
    pub(super) fn alternate_path(
        &self,
        alternate: &AlternatePath,
        shared: &Shared,
    ) -> Result<(PeerPath, Option<Duration>), DeviceError> {
        let Kind::Rc(rc) = &self.kind else {
            return Err(DeviceError::Unsupported { what: "path migration of this transport" });
        };
        let limit = |what, value: u64, limit: u64| DeviceError::Limit { what, value, limit };
        let number = alternate.av.port;
        let no_port = limit("port of the alternate path", number.into(), shared.ports.len() as u64);
        let port = shared.port(number).ok_or(no_port)?;
        if rc.responder.mtu() > port.mtu() {
            return Err(limit("bytes of path MTU", rc.responder.mtu() as u64, port.mtu() as u64));
        }
        let pkey = *port.pkeys.get(usize::from(alternate.pkey_index)).ok_or(limit(
            "P_Key index",
            alternate.pkey_index.into(),
            port.pkeys.len().saturating_sub(1) as u64,
        ))?;
        let net = port.resolve(&alternate.av).map_err(|what| DeviceError::Unsupported { what })?;
        Ok((PeerPath { port: number, net, pkey }, alternate.timeout.ack_timeout()))
    }

    /// Loads an alternate path.
    pub(super) fn load_path(&mut self, path: (PeerPath, Option<Duration>)) -> Result<(), DeviceError> {
        match &mut self.kind {
            Kind::Rc(rc) => rc.load_path(path.0, path.1),
            Kind::Uc(_) | Kind::Ud(_) | Kind::Raw(_) => Err(NOT_ARMED),
        }
    }

    /// Migrates because the user says so.
    pub(super) fn migrate(&mut self, shared: &mut Shared) -> Result<(), DeviceError> {
        match &mut self.kind {
            Kind::Rc(rc) if rc.is_armed() => rc.migrate(self.qpn, shared),
            _ => return Err(NOT_ARMED),
        }
        self.wake(shared);
        Ok(())
    }
}

const NOT_ARMED: DeviceError = DeviceError::State { state: "RTS, migration state not ARMED" };
