//! From a request to a connection.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use ibdev::DeviceError;
use ibwire::{PrivateData, RejReason};
use pin_project::pin_project;
use tracing::Instrument;

use crate::clock::now;
use crate::connection::Connection;
use crate::data::{Fresh, SetupError};
use crate::error::{AcceptError, QpStep, Rejection};
use crate::handshake::before;
use crate::incoming::IncomingRequest;
use crate::keepalive;
use crate::options::{Options, option_setters};
use crate::proto::{Invalid, Transport};
use crate::shared::Unavailable;
use crate::slot::End;
use crate::timing::DEADLINE;

/// How to accept a request: a builder that is itself the future of the [`Connection`], which is of the transport that the
/// peer asked for. One that asks for another than RC and UC is rejected: only
/// [`prepare`](crate::IncomingRequest::prepare) takes those.
///
/// Awaited, it makes a queue pair with its receives posted, sends the REP and waits for the RTU or the peer's
/// first data.
///
/// # Errors
/// [`AcceptError`]. It concerns this one peer, who was rejected if it is still there; the listener goes on.
///
/// # Cancel safety
/// Dropped at any time, the peer is rejected with reason 28, and the queue pair is freed when no packet of it
/// can be alive. If the peer had confirmed already, the connection is closed with the whole DREQ exchange in
/// the background.
#[pin_project(!Unpin)]
#[must_use = "dropped, the request is rejected"]
pub struct Accept {
    config: Option<AcceptConfig>,
    run: Option<BoxFuture<'static, Result<Connection, AcceptError>>>,
}

struct AcceptConfig {
    request: IncomingRequest,
    private_data: PrivateData<196>,
    options: Options,
    deadline: Duration,
    failover: bool,
}

impl Accept {
    pub(crate) fn new(request: IncomingRequest) -> Self {
        let config = AcceptConfig {
            request,
            private_data: PrivateData::EMPTY,
            options: Options::default(),
            deadline: DEADLINE,
            failover: true,
        };
        Self { config: Some(config), run: None }
    }

    fn set(mut self, f: impl FnOnce(&mut AcceptConfig)) -> Self {
        if let Some(config) = &mut self.config {
            f(config);
        }
        self
    }

    fn option(self, f: impl FnOnce(&mut Options)) -> Self {
        self.set(|config| f(&mut config.options))
    }

    option_setters!();

    /// What goes to the peer's program in the REP.
    pub fn private_data(self, data: impl Into<PrivateData<196>>) -> Self {
        self.set(|config| config.private_data = data.into())
    }

    /// Whether alternate paths are taken: that of the request, if it ends at a port of this device, and those that the peer
    /// asks for later. They are loaded without further ado; [`Connection::events`] tells. Without, or if the device can't
    /// migrate paths, they are declined, which is no obstacle to the connection. Default true.
    pub fn failover(self, takes: bool) -> Self {
        self.set(|config| config.failover = takes)
    }

    /// How long everything may take, from the first poll until the peer has confirmed. More than zero; default 10 s, as
    /// for [`Connect`](crate::Connect::deadline).
    ///
    /// How often and at which intervals the REP is repeated is the peer's choice, in its REQ. If that lasts shorter, it is
    /// over before the deadline; never later, whatever the peer asks for and however busy it says it is.
    pub fn deadline(self, deadline: Duration) -> Self {
        self.set(|config| config.deadline = deadline)
    }
}

impl AcceptConfig {
    fn run(self) -> impl Future<Output = Result<Connection, AcceptError>> {
        let span = self.request.span().clone();
        self.accept().instrument(span)
    }

    #[expect(clippy::manual_async_fn, reason = "an async function holds what it is given twice")]
    fn accept(self) -> impl Future<Output = Result<Connection, AcceptError>> {
        async move {
            Invalid::more_than_zero("deadline", self.deadline)?;
            let started = now();
            let deadline = started.checked_add(self.deadline);
            let (request, options) = (self.request, self.options);
            let shared = Arc::clone(request.shared());
            let device = shared.device()?;
            let memory = options.memory::<AcceptError>(&shared, device.attr())?;
            let transport = request.transport();
            let kind = match options.qp_type(transport) {
                Ok(kind) => kind,
                Err(invalid) => {
                    request.reject(lacking(transport));
                    return Err(invalid.into());
                }
            };

            let create = Fresh::create(&*device, kind, memory, &options);
            let fresh = match before(started, deadline, create).await {
                Ok(Ok(fresh)) => fresh,
                Ok(Err(error)) => {
                    request.reject(error.reason());
                    return Err(error.into());
                }
                Err(waited) => return Err(AcceptError::Deadline { waited }),
            };
            let qp = options.local_qp(kind, fresh.qpn()).failover(self.failover);
            let offer = request.prepare(qp)?;
            let attrs = offer.attrs();
            let move_qp = async {
                let rts = keepalive::adapt(attrs.rts, options.keepalive);
                fresh.into_rts(attrs.init, attrs.rtr, rts, offer.parked(), &shared).await
            };
            match before(started, deadline, move_qp).await {
                Ok(Ok(queues)) => offer.attach(queues),
                Ok(Err(error)) => {
                    offer.reject(error.reason());
                    return Err(error.into());
                }
                Err(waited) => return Err(AcceptError::Deadline { waited }),
            }
            let offer = offer
                .private_data(self.private_data)
                .disconnect_data(options.disconnect_data)
                .rnr_retry_count(options.rnr_retry_count);
            let session = offer.reply_until(deadline).await?;
            shared.start_keepalive(session.slot(), options.keepalive);
            Ok(Connection::new(session))
        }
    }
}

/// What a peer is told whose transport no connection here has.
const fn lacking(transport: Transport) -> RejReason {
    match transport {
        Transport::Rd => RejReason::NO_EEC,
        Transport::Xrc => RejReason::NO_QP,
        Transport::Rc | Transport::Uc => RejReason::CONSUMER,
    }
}

impl SetupError {
    /// Tells the peer that it is not its fault.
    fn reason(&self) -> RejReason {
        match self.step {
            QpStep::Create => RejReason::NO_QP,
            _ => RejReason::NO_RESOURCES,
        }
    }
}

impl From<SetupError> for AcceptError {
    fn from(SetupError { step, source }: SetupError) -> Self {
        Self::Qp { step, source }
    }
}

impl From<End> for AcceptError {
    fn from(end: End) -> Self {
        match end {
            End::Rejected(rejection, effort) => Self::Rejected(Box::new(Rejection::new(&rejection, effort))),
            End::Timeout(effort) => Self::Unconfirmed { sent: effort.sent, waited: effort.waited },
            End::DeviceRemoved => Self::Device(DeviceError::Gone),
            End::Closed => Self::Closed,
            End::Withdrawn | End::ReplyRefused(..) | End::Disconnected(_) => Self::Withdrawn,
        }
    }
}

impl From<Unavailable> for AcceptError {
    fn from(unavailable: Unavailable) -> Self {
        match unavailable {
            Unavailable::Gone => Self::Device(DeviceError::Gone),
            Unavailable::Closed => Self::Closed,
        }
    }
}

impl Future for Accept {
    type Output = Result<Connection, AcceptError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        crate::builder::poll(this.config, this.run, AcceptConfig::run, cx)
    }
}

impl std::fmt::Debug for Accept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Accept").finish_non_exhaustive()
    }
}
