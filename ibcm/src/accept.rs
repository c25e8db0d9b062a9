//! From a request to a connection.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use ibdev::DeviceError;
use ibwire::{PrivateData, RejReason, ServiceId};
use pin_project::pin_project;
use tracing::Instrument;

use crate::backlog::Place;
use crate::clock::now;
use crate::closed::owned_area;
use crate::connection::Connection;
use crate::data::{Fresh, SetupError, to_rts};
use crate::error::{AcceptError, QpStep, Rejection};
use crate::established::Parts;
use crate::handshake::{Handshake, before};
use crate::incoming::Waiting;
use crate::keepalive;
use crate::options::{Options, option_setters};
use crate::peer::Peer;
use crate::proto::message::IpHeader;
use crate::proto::{self, CommandError, Invalid, Reject, Request, Role};
use crate::shared::{Shared, Unavailable};
use crate::slot::End;
use crate::timing::DEADLINE;

/// How to accept a request: a builder that is itself the future of the [`Connection`].
///
/// Awaited, it makes a queue pair with its receives posted, sends the REP and waits for the RTU or the peer's
/// first data.
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
    handshake: Handshake,
    place: Place,
    request: Box<Request>,
    peer: Peer,
    service_id: ServiceId,
    by_ip: bool,
    private_data: PrivateData<196>,
    options: Options,
    deadline: Duration,
}

impl Accept {
    pub(crate) fn new(
        shared: Arc<Shared>,
        waiting: Waiting,
        place: Place,
        peer: Peer,
        service_id: ServiceId,
        by_ip: bool,
    ) -> Self {
        let config = AcceptConfig {
            handshake: Handshake::new(shared, waiting.slot),
            place,
            request: waiting.request,
            peer,
            service_id,
            by_ip,
            private_data: PrivateData::EMPTY,
            options: Options::default(),
            deadline: DEADLINE,
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
        let span = self.handshake.slot().span.clone();
        self.accept().instrument(span)
    }

    #[expect(clippy::manual_async_fn, reason = "an async function holds what it is given twice")]
    fn accept(self) -> impl Future<Output = Result<Connection, AcceptError>> {
        async move {
            Invalid::more_than_zero("deadline", self.deadline)?;
            let started = now();
            let deadline = started.checked_add(self.deadline);
            let shared = Arc::clone(self.handshake.shared());
            let conn = self.handshake.slot().handle;

            let mut accept = proto::Accept::new(ibwire::Qpn::default());
            accept.responder_resources = self.options.responder_resources;
            accept.initiator_depth = self.options.initiator_depth;
            accept.rnr_retry_count = self.options.rnr_retry_count;
            accept.srq = self.options.recv.is_shared();
            accept.private_data = self.private_data;
            accept.deadline = deadline;

            let device = shared.device()?;
            let memory = self.options.memory::<AcceptError>(&shared, device.attr())?;
            let setup = async {
                let fresh = Fresh::create(&*device, memory, &self.options).await.map_err(Failed::Setup)?;
                let qp = fresh.qp();
                accept.qpn = fresh.qpn();
                let attrs = shared.engine().endpoint.accept_attrs(conn, &accept).map_err(Failed::Command)?;
                let parked = &self.handshake.slot().parked;
                let mut queues = fresh.init(attrs.init, parked, &shared).await.map_err(Failed::Setup)?;
                queues.attach(&shared, conn);
                queues.set_initiator_depth(attrs.rts.max_rd_atomic);
                let rts = keepalive::adapt(attrs.rts, self.options.keepalive);
                to_rts(&*qp, attrs.rtr, rts).await.map_err(Failed::Setup)?;
                Ok(queues)
            };
            let made = match before(started, deadline, setup).await {
                Ok(made) => made,
                Err(waited) => return Err(AcceptError::Deadline { waited }),
            };
            let result = made.and_then(|queues| {
                self.handshake.slot().with(&shared, |state| state.queues = Some(queues));
                shared.command(|engine| {
                    engine.endpoint.set_disconnect_data(conn, self.options.disconnect_data)?;
                    engine.endpoint.accept(now(), conn, accept)
                })?;
                Ok(())
            });
            match result {
                Ok(()) => self.place.accepted(),
                Err(Failed::Setup(SetupError { step, source })) => {
                    let reason = match step {
                        QpStep::Create => RejReason::NO_QP,
                        _ => RejReason::NO_RESOURCES,
                    };
                    reject(self.handshake, reason);
                    return Err(AcceptError::Qp { step, source });
                }
                Err(Failed::Command(error)) => {
                    if matches!(error, CommandError::Gone) {
                        self.place.withdrawn();
                    }
                    return Err(refused(&self.handshake, error));
                }
            }
            self.handshake.established().await?;
            shared.start_keepalive(self.handshake.slot(), self.options.keepalive);
            let req = &self.request.req;
            let private_data = match self.by_ip {
                true => &req.private_data[IpHeader::LEN..],
                false => &req.private_data[..],
            };
            Ok(Connection::new(
                self.handshake,
                Parts {
                    role: Role::Passive,
                    peer: self.peer,
                    service_id: self.service_id,
                    private_data: owned_area(private_data),
                },
            ))
        }
    }
}

/// Why there is no REP.
enum Failed {
    Setup(SetupError),
    Command(CommandError),
}

impl From<CommandError> for Failed {
    fn from(error: CommandError) -> Self {
        Self::Command(error)
    }
}

/// Tells the peer that it is not its fault.
fn reject(handshake: Handshake, reason: RejReason) {
    let (shared, slot) = handshake.finish();
    let result = shared.command(|engine| engine.endpoint.reject(now(), slot.handle, Reject::new(reason)));
    if let Err(error) = result {
        tracing::debug!(%error, "no rejection sent");
    }
    slot.end(&shared, End::Closed);
}

fn refused(handshake: &Handshake, error: CommandError) -> AcceptError {
    match error {
        CommandError::Invalid(invalid) => invalid.into(),
        CommandError::QpInUse(_) => {
            let what = "the queue pair's number";
            let source = DeviceError::InUse { what, holder: "a connection in TimeWait" };
            AcceptError::Qp { step: QpStep::Create, source }
        }
        _ => {
            let end = handshake.slot().with(handshake.shared(), |state| state.end.clone());
            end.map_or(AcceptError::Withdrawn, AcceptError::from)
        }
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
