//! Alternate paths of a connection: loaded by LAP and APR, taken by the queue pair.

use std::sync::Arc;

use ibdev::QueuePair;
use ibdev::qp::{AlternatePath, Transition};
use ibwire::{PathRecord, PrivateData, TimeCode};

use crate::clock::now;
use crate::error::PathError;
use crate::events::ConnectionEvent;
use crate::handshake::{Session, wait};
use crate::path::Path;
use crate::proto::message::{ApInfo, ApStatus};
use crate::proto::{self, AlternateRequest, Invalid, Limit, LoadPath, Value};
use crate::shared::Shared;
use crate::slot::{Slot, SlotState};

/// Within which time a peer shall answer a LAP, flight time not counted: 1.07 s.
const RESPONSE_TIMEOUT: TimeCode = TimeCode::truncate(18);

/// What happened to the alternate paths of a connection and nobody has taken note of.
#[derive(Debug, Default)]
pub(crate) struct Paths {
    /// Our LAP has no answer yet, whether anyone waits for it or not.
    asking: bool,
    /// What became of our LAP.
    answer: Option<Result<AlternatePath, PathError>>,
    /// The peer's LAP, for a program with a queue pair of its own.
    request: Option<Box<AlternateRequest>>,
}

/// Who moves the queue pair.
enum Mover {
    /// This crate.
    Ours(Arc<dyn QueuePair>),
    /// The program.
    Program,
    /// Nobody: it is gone.
    Nobody,
}

impl SlotState {
    fn mover(&self) -> Mover {
        match &self.queues {
            Some(queues) => queues.qp().cloned().map_or(Mover::Nobody, Mover::Ours),
            None => Mover::Program,
        }
    }

    fn paths(&mut self) -> &mut Paths {
        self.paths.get_or_insert_default()
    }
}

impl Slot {
    /// The peer has loaded the path of our LAP, and now our queue pair has to.
    pub(crate) fn alternate_loaded(self: &Arc<Self>, shared: &Arc<Shared>, path: AlternatePath) {
        let qp = match self.with(shared, |state| state.mover()) {
            Mover::Ours(qp) => qp,
            Mover::Program => return self.alternate_answered(shared, Ok(path)),
            Mover::Nobody => return,
        };
        let (slot, hca) = (Arc::clone(self), Arc::clone(shared));
        shared.begin(async move {
            let answer = match qp.modify(Transition::LoadPath(path)).await {
                Ok(()) => {
                    slot.events.push(ConnectionEvent::AlternateLoaded);
                    Ok(path)
                }
                Err(source) => {
                    hca.command(|engine| engine.endpoint.unload_path(slot.handle));
                    Err(PathError::Qp(source))
                }
            };
            slot.alternate_answered(&hca, answer);
        });
    }

    /// This is what became of our LAP.
    pub(crate) fn alternate_answered(&self, shared: &Shared, answer: Result<AlternatePath, PathError>) {
        self.with(shared, |state| {
            let paths = state.paths();
            (paths.asking, paths.answer) = (false, Some(answer));
        });
        self.wake_all(shared);
    }

    /// The peer asks for a path. A queue pair of ours loads it, then the peer is told.
    pub(crate) fn alternate_requested(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        request: Box<AlternateRequest>,
    ) {
        let qp = match self.with(shared, |state| state.mover()) {
            Mover::Ours(qp) => qp,
            Mover::Program => {
                self.with(shared, |state| state.paths().request = Some(request));
                return self.wake_all(shared);
            }
            Mover::Nobody => return,
        };
        let (slot, hca) = (Arc::clone(self), Arc::clone(shared));
        shared.begin(async move {
            let loaded = qp.modify(Transition::LoadPath(request.attr)).await;
            let answered = hca.command(|engine| match &loaded {
                Ok(()) => engine.endpoint.accept_path(now(), slot.handle, PrivateData::EMPTY),
                Err(error) => {
                    tracing::debug!(%error, "alternate path not loaded");
                    let (status, info) = (ApStatus::REJECTED, ApInfo::None);
                    engine.endpoint.reject_path(now(), slot.handle, status, &info, PrivateData::EMPTY)
                }
            });
            if loaded.is_ok() && answered.is_ok() {
                slot.events.push(ConnectionEvent::AlternateLoaded);
            }
        });
    }

    /// The queue pair goes by another path now.
    pub(crate) fn migrated(&self, primary: &proto::Path) {
        tracing::debug!(port = primary.port, peer = %primary.record.dgid, "migrated");
        self.events.push(ConnectionEvent::Migrated { port: primary.port, primary: primary.record });
    }
}

impl Session {
    /// What the passive side made of the alternate path in the REQ; `None` if there was none.
    pub fn failover(&self) -> Option<proto::message::FailoverAccepted> {
        self.shared().engine().endpoint.failover(self.slot().handle)
    }

    /// Active side: asks the peer to load an alternate path (LAP), and gives what this side's queue pair has to be
    /// programmed with when it has: `Transition::LoadPath` of the device contract, `ibcm_sys::ibv::attr::load_path`.
    ///
    /// The peer has a second to answer, then it is asked again, as often as the REQ allowed retries; a Linux peer never
    /// answers.
    ///
    /// # Errors
    /// [`PathError`]; the connection stays.
    ///
    /// # Cancel safety
    /// Dropped, the exchange goes on, and the peer may load the path; this side's queue pair would not have it.
    pub async fn load_alternate_path(&self, path: &Path) -> Result<AlternatePath, PathError> {
        if !Arc::ptr_eq(path.port().hca().shared(), self.shared()) {
            let must = Limit::Must("one of the connection's HCA");
            return Err(Invalid::new("alternate path", Value::Gid(path.record().sgid), must).into());
        }
        self.load(path.inner()).await
    }

    async fn load(&self, path: proto::Path) -> Result<AlternatePath, PathError> {
        let (shared, slot) = (self.shared(), self.slot());
        let mut load = LoadPath::new(path);
        load.response_timeout = RESPONSE_TIMEOUT;
        let busy = slot.with(shared, |state| {
            let paths = state.paths();
            if !paths.asking {
                // It may be there of one that nobody waited for.
                paths.answer = None;
            }
            std::mem::replace(&mut paths.asking, true)
        });
        if busy {
            return Err(PathError::Busy);
        }
        let asked = shared.command(|engine| engine.endpoint.load_path(now(), slot.handle, &load));
        if let Err(error) = asked {
            slot.with(shared, |state| state.paths().asking = false);
            return Err(error.into());
        }
        wait(shared, slot, |state| match state.paths().answer.take() {
            Some(answer) => Some(answer),
            None => state.end.is_some().then_some(Err(PathError::Closed)),
        })
        .await
    }

    /// The queue pair has migrated to its alternate path, as its device told: MADs go by it from now on, too, and another
    /// path can be loaded.
    ///
    /// Not needed where the device tells this crate, as software HCAs do.
    ///
    /// # Errors
    /// [`PathError::NotLoaded`], [`PathError::Closed`].
    pub fn migrated(&self) -> Result<(), PathError> {
        self.settle_migration().map(drop)
    }

    fn settle_migration(&self) -> Result<proto::Path, PathError> {
        let conn = self.slot().handle;
        Ok(self.shared().command(|engine| engine.endpoint.migrated(now(), conn))?)
    }

    /// Active side: as [`migrated`](Self::migrated), then the path of before is loaded as the alternate one, as by
    /// [`load_alternate_path`](Self::load_alternate_path).
    ///
    /// # Errors
    /// [`PathError`]; the connection stays, by its new path.
    ///
    /// # Cancel safety
    /// As [`load_alternate_path`](Self::load_alternate_path).
    pub async fn migrated_and_reload(&self) -> Result<AlternatePath, PathError> {
        let old = self.settle_migration()?;
        self.load(old).await
    }

    /// Passive side: waits for the peer to ask for an alternate path; `None` when the connection has ended. The peer is kept
    /// patient for some seconds by an MRA until it is answered.
    ///
    /// # Cancel safety
    /// A dropped future loses no request.
    pub async fn path_request(&self) -> Option<PathRequest<'_>> {
        let request = wait(self.shared(), self.slot(), |state| match state.paths().request.take() {
            Some(request) => Some(Some(request)),
            None => state.end.is_some().then_some(None),
        });
        Some(PathRequest { session: self, request: Some(request.await?) })
    }
}

/// The peer of a [`Session`] asks for an alternate path.
///
/// Load it into the queue pair by [`attr`](Self::attr), then [`accept`](Self::accept); or [`reject`](Self::reject).
/// Dropped, it is rejected.
#[derive(Debug)]
#[must_use = "dropped, it is rejected"]
pub struct PathRequest<'a> {
    session: &'a Session,
    request: Option<Box<AlternateRequest>>,
}

impl PathRequest<'_> {
    fn request(&self) -> &AlternateRequest {
        self.request.as_ref().expect("it is taken when it is answered, and that takes the value")
    }

    /// What the queue pair has to be programmed with.
    pub fn attr(&self) -> &AlternatePath {
        &self.request().attr
    }

    /// The path, from this side.
    pub fn record(&self) -> &PathRecord {
        &self.request().path.record
    }

    /// What the peer's program sent along, zero-padded: 168 bytes.
    pub fn private_data(&self) -> &[u8] {
        self.request().lap.private_data.as_bytes()
    }

    /// The queue pair has the path: tells the peer.
    ///
    /// # Errors
    /// [`PathError::Closed`] if the connection has ended meanwhile.
    pub fn accept(mut self) -> Result<(), PathError> {
        self.request = None;
        let (shared, conn) = (self.session.shared(), self.session.slot().handle);
        Ok(shared.command(|engine| engine.endpoint.accept_path(now(), conn, PrivateData::EMPTY))?)
    }

    /// The queue pair will not have the path; the peer is told why.
    pub fn reject(mut self, status: ApStatus) {
        self.refuse(status);
    }

    fn refuse(&mut self, status: ApStatus) {
        if self.request.take().is_none() {
            return;
        }
        let (shared, conn) = (self.session.shared(), self.session.slot().handle);
        let refused = shared.command(|engine| {
            engine.endpoint.reject_path(now(), conn, status, &ApInfo::None, PrivateData::EMPTY)
        });
        if let Err(error) = refused {
            tracing::debug!(%error, "nobody to refuse");
        }
    }
}

impl Drop for PathRequest<'_> {
    fn drop(&mut self) {
        self.refuse(ApStatus::REJECTED);
    }
}
