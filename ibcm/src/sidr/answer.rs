//! What a request is answered with.

use std::sync::Arc;

use ibwire::mad::ClassPortInfo;
use ibwire::{Gid, PrivateData};

use super::Status;
use crate::proto::SidrAnswer;
use crate::shared::Shared;
use crate::ud::Socket;

/// An answer to a request: a socket, a refusal or a redirection, each with private data.
#[derive(Debug, Clone)]
pub struct Answer {
    pub(super) inner: SidrAnswer,
    /// Of which HCA and port the socket is.
    pub(super) at: Option<(Arc<Shared>, u8)>,
}

impl Answer {
    /// This socket serves it.
    pub fn socket(socket: &Socket) -> Self {
        let at = (Arc::clone(socket.hca().shared()), socket.port());
        Self { inner: SidrAnswer::resolved(socket.qpn(), socket.qkey()), at: Some(at) }
    }

    /// No. [`Status::VALID`] says nothing without a socket, so that is [`Status::REJECTED`].
    pub fn refusal(status: Status) -> Self {
        let status = if status == Status::VALID { Status::REJECTED } else { status };
        Self { inner: SidrAnswer::refusal(status), at: None }
    }

    /// Ask there instead. [`ClassPortInfo::redirect`] is what counts: the GID, within an InfiniBand subnet the LID besides, and
    /// a queue pair if it is not that of the CM.
    pub fn redirect(to: impl Into<ClassPortInfo>) -> Self {
        Self { inner: SidrAnswer::redirect(to.into()), at: None }
    }

    /// Ask the CM at this GID instead. On RoCE that is all it takes.
    pub fn redirect_to(gid: Gid) -> Self {
        let mut to = ClassPortInfo { base_version: 1, class_version: 2, ..ClassPortInfo::default() };
        to.redirect.gid = gid;
        Self::redirect(to)
    }

    /// What goes to the peer's program, at most 136 bytes; it sees them zero-padded.
    #[must_use]
    pub fn private_data(mut self, data: impl Into<PrivateData<136>>) -> Self {
        self.inner.private_data = data.into();
        self
    }
}

impl From<&Socket> for Answer {
    fn from(socket: &Socket) -> Self {
        Self::socket(socket)
    }
}

impl From<Status> for Answer {
    fn from(status: Status) -> Self {
        Self::refusal(status)
    }
}
