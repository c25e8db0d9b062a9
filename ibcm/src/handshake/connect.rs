//! How to ask for a connection of a program's own queue pair.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use ibwire::PrivateData;
use pin_project::pin_project;
use tracing::Instrument;

use super::active::{Asked, Left, Reply, Terms, Whom};
use super::local_qp::LocalQp;
use crate::clock::now;
use crate::error::{Attempts, ConnectError};
use crate::path::{Path, ServicePath};
use crate::proto::Invalid;
use crate::timing::DEADLINE;

/// Asks for a connection of the program's own queue pair, which is in INIT, by [`Path::qp_init`](crate::Path::qp_init).
pub fn connect(path: ServicePath, qp: LocalQp) -> Connect {
    let terms = Terms { response_timeout: None, max_cm_retries: None, retry_count: 7, rnr_retry_count: 7 };
    let config = Config {
        path,
        qp,
        private_data: PrivateData::EMPTY,
        disconnect_data: PrivateData::EMPTY,
        deadline: DEADLINE,
        terms,
        alternate: None,
    };
    Connect { config: Some(config), run: None }
}

/// How to ask: a builder that is itself the future of the peer's [`Reply`]. One attempt is made.
///
/// # Cancel safety
/// Dropped before it is polled, nothing has happened. Later: REJ 4 goes out. The queue pair's number is free for another
/// attempt then, unless the peer called the connection stale ([`RejReason::STALE_CONNECTION`](crate::RejReason)).
#[pin_project(!Unpin)]
#[must_use = "nothing is sent before it is awaited"]
pub struct Connect {
    config: Option<Config>,
    run: Option<BoxFuture<'static, Result<Reply, ConnectError>>>,
}

#[derive(Debug)]
struct Config {
    path: ServicePath,
    qp: LocalQp,
    private_data: PrivateData<92>,
    disconnect_data: PrivateData<224>,
    deadline: Duration,
    terms: Terms,
    alternate: Option<Path>,
}

impl Connect {
    fn set(mut self, f: impl FnOnce(&mut Config)) -> Self {
        if let Some(config) = &mut self.config {
            f(config);
        }
        self
    }

    /// Another path to the same peer, to which the queue pair can migrate; if the peer takes it, it is in the attributes of
    /// the [`Reply`]. It has the P_Key and at least the MTU of the first path.
    pub fn alternate_path(self, path: &Path) -> Self {
        self.set(|config| config.alternate = Some(path.clone()))
    }

    /// What goes to the peer's program in the REQ.
    pub fn private_data(self, data: impl Into<PrivateData<92>>) -> Self {
        self.set(|config| config.private_data = data.into())
    }

    /// What goes to the peer's program in the DREP, should it disconnect first.
    pub fn disconnect_data(self, data: impl Into<PrivateData<224>>) -> Self {
        self.set(|config| config.disconnect_data = data.into())
    }

    /// How long it may take from the first poll until the REP is there. More than zero; default 10 s. Response timeout and CM
    /// retries follow from it by the rule of [`Connect::deadline`](crate::Connect::deadline) of connections.
    pub fn deadline(self, deadline: Duration) -> Self {
        self.set(|config| config.deadline = deadline)
    }

    /// How long the peer may think before the REQ is repeated; flight time comes on top. Rounded up to 4.096 us
    /// times a power of two. Default: by the rule of the deadline.
    pub fn response_timeout(self, timeout: Duration) -> Self {
        self.set(|config| config.terms.response_timeout = Some(timeout))
    }

    /// How often REQ, REP and DREQ may be repeated, 0..=15. Default: by the rule of the deadline.
    pub fn max_cm_retries(self, retries: u8) -> Self {
        self.set(|config| config.terms.max_cm_retries = Some(retries))
    }

    /// How often the queue pairs of both sides repeat a packet that is not acknowledged before they give up,
    /// 0..=7. Default 7.
    pub fn retry_count(self, count: u8) -> Self {
        self.set(|config| config.terms.retry_count = count)
    }

    /// How often the peer repeats a message that finds no receive posted, 0..=7; 7, the default, is for ever.
    pub fn rnr_retry_count(self, count: u8) -> Self {
        self.set(|config| config.terms.rnr_retry_count = count)
    }
}

impl Config {
    async fn run(self) -> Result<Reply, ConnectError> {
        Invalid::more_than_zero("deadline", self.deadline)?;
        let deadline = now().checked_add(self.deadline);
        let left = Left { left: self.deadline, for_waits: self.deadline, deadline };
        let service_id = self.path.service_id();
        let path = self.path.into_path();
        path.port().hca().shared().has_cm()?;
        let mut request = self.terms.request(&path, service_id, &self.qp, self.private_data, left)?;
        request.alternate = self.alternate.map(|alternate| alternate.beside(&path)).transpose()?;
        let mut all = Attempts { made: 1, ..Attempts::default() };
        let shared = path.port().hca().shared();
        let asked = Asked::new(shared, Whom::Listener, request, self.disconnect_data, None, &mut all)?;
        let span = asked.span().clone();
        let reply = asked.reply(&mut all).instrument(span).await;
        if let Err(ConnectError::Unreachable { .. }) = reply {
            path.was_silent();
        }
        reply
    }
}

impl Future for Connect {
    type Output = Result<Reply, ConnectError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        crate::builder::poll(this.config, this.run, Config::run, cx)
    }
}

impl fmt::Debug for Connect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connect").field("config", &self.config).finish_non_exhaustive()
    }
}
