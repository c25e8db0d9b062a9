//! Services: registered with a lease that is kept alive, and found.

mod keeper;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use ibwire::{PKey, ServiceId};
use pin_project::pin_project;
use tokio::sync::oneshot;

use super::Client;
use super::builder::{self, Running};
use super::keep::{Kept, within};
use super::shared::after;
use super::table::Table;
use crate::proto::client::QueryError;
use crate::record::{IntoField, ServiceRecord, Template, Text};
use keeper::Asked;

pub(super) use keeper::Service;

/// How long a registration is good for unless the program says otherwise.
const LEASE: Duration = Duration::from_secs(60);

/// How to register a service at the port's GID: a builder that is itself the future of the [`Registration`].
///
/// It begins with a lease of 60 s and the port's default partition. A setter's value that does not fit is refused when it is
/// awaited.
///
/// # Errors
/// [`QueryError`]; [`QueryError::Registered`] while this client has the same service in the same partition already,
/// [`QueryError::Lease`] for a lease that is too short or too long.
///
/// # Cancel safety
/// Dropped, the registration is given up in the background.
#[pin_project(!Unpin)]
#[must_use = "nothing is registered before it is awaited"]
pub struct Register {
    plan: Option<Plan>,
    run: Option<Running<Result<Registration, QueryError>>>,
}

#[derive(Debug)]
struct Plan {
    client: Client,
    service_id: ServiceId,
    wanted: Template<ServiceRecord>,
    /// `None`: without end.
    lease: Option<Duration>,
    timeout: Option<Duration>,
}

impl Register {
    fn change(mut self, f: impl FnOnce(&mut Plan)) -> Self {
        if let Some(plan) = &mut self.plan {
            f(plan);
        }
        self
    }

    fn set(self, f: impl FnOnce(Template<ServiceRecord>) -> Template<ServiceRecord>) -> Self {
        self.change(|plan| plan.wanted = f(std::mem::take(&mut plan.wanted)))
    }

    /// For how long the SA keeps the record after it has last heard of it, at least 1 s; parts of seconds round up. It is renewed
    /// at half of it.
    pub fn lease(self, lease: Duration) -> Self {
        self.change(|plan| plan.lease = Some(lease))
    }

    /// The SA keeps the record until it is cancelled.
    pub fn for_ever(self) -> Self {
        self.change(|plan| plan.lease = None)
    }

    /// The partition. Default: 0xFFFF, or what the port has instead.
    pub fn p_key(self, p_key: impl IntoField<PKey>) -> Self {
        self.set(|wanted| wanted.service_p_key(p_key))
    }

    /// Who knows it may change the record, if the SA looks at it.
    pub fn key(self, key: [u8; 16]) -> Self {
        self.set(|wanted| wanted.service_key(key))
    }

    /// A byte of the service's data, 0..=15.
    pub fn data8(self, index: usize, value: u8) -> Self {
        self.set(|wanted| wanted.service_data8(index, value))
    }

    /// A 16-bit word of the service's data, 0..=7.
    pub fn data16(self, index: usize, value: u16) -> Self {
        self.set(|wanted| wanted.service_data16(index, value))
    }

    /// A 32-bit word of the service's data, 0..=3.
    pub fn data32(self, index: usize, value: u32) -> Self {
        self.set(|wanted| wanted.service_data32(index, value))
    }

    /// A 64-bit word of the service's data, 0..=1.
    pub fn data64(self, index: usize, value: u64) -> Self {
        self.set(|wanted| wanted.service_data64(index, value))
    }

    /// How long to try. Default: [`Client::default_timeout`].
    pub fn timeout(self, timeout: Duration) -> Self {
        self.change(|plan| plan.timeout = Some(timeout))
    }
}

impl Plan {
    /// The lease in seconds.
    fn seconds(&self) -> Result<u32, QueryError> {
        let Some(lease) = self.lease else { return Ok(ServiceRecord::FOR_EVER) };
        let seconds = lease.as_secs().saturating_add(u64::from(lease.subsec_nanos() > 0));
        let seconds = u32::try_from(seconds).ok();
        let possible = |seconds: &u32| ![0, ServiceRecord::FOR_EVER].contains(seconds);
        seconds.filter(possible).ok_or(QueryError::Lease(lease))
    }

    async fn run(self) -> Result<Registration, QueryError> {
        const P_KEY: u64 = 1 << 2;
        let lease = self.seconds()?;
        let (record, mask) = self.wanted.clone().checked()?;
        let shared = &self.client.shared;
        shared.open().await?;
        let p_key = if mask & P_KEY == 0 { shared.lock().p_key } else { record.service_p_key };
        let timeout = self.timeout.unwrap_or(shared.timeout);
        let wanted = self.wanted.service_id(self.service_id).service_p_key(p_key).service_lease(lease);
        let (registered, registering) = oneshot::channel();
        let asked = Asked { wanted, lease, deadline: after(timeout), registered };
        keeper::register(shared, &self.client._owner, (self.service_id, p_key), asked)?;
        Ok(Registration(within(shared, timeout, registering).await?))
    }
}

impl Future for Register {
    type Output = Result<Registration, QueryError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        builder::poll(this.plan, this.run, Plan::run, cx)
    }
}

impl fmt::Debug for Register {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Register").field("plan", &self.plan).finish_non_exhaustive()
    }
}

impl Client {
    /// Registers a service at this port, by ID and name; a name is at most 64 bytes.
    pub fn register(&self, service_id: ServiceId, name: impl IntoField<Text<64>>) -> Register {
        let wanted = Template::<ServiceRecord>::new().service_name(name);
        let (lease, client) = (Some(LEASE), self.clone());
        let plan = Plan { client, service_id, wanted, lease, timeout: None };
        Register { plan: Some(plan), run: None }
    }

    /// Who offers a service, by its ID. For other questions, such as by name, use [`table`](Self::table).
    ///
    /// # Errors
    /// [`QueryError`]. If nobody does, that is no error.
    ///
    /// # Cancel safety
    /// Dropped, the request is forgotten.
    pub async fn resolve(&self, service_id: ServiceId) -> Result<Table<ServiceRecord>, QueryError> {
        self.table(Template::<ServiceRecord>::new().service_id(service_id)).await
    }
}

/// A registered service. It is renewed at half of its lease by our own clock, and again after a change of the SM, within a second
/// by chance; if that fails, every 1 to 16 s until it succeeds. It keeps the client open.
///
/// Dropped, it is cancelled in the background within 5 s.
#[derive(Debug)]
#[must_use = "dropped, the service is cancelled"]
pub struct Registration(Kept<Service>);

impl Registration {
    /// The record as the SA gave it last.
    pub fn record(&self) -> ServiceRecord {
        self.0.with(ServiceRecord::clone)
    }

    /// Waits for what is out of the ordinary: the record was registered again after a change of the SM or after failures.
    /// Renewals in time are not told.
    ///
    /// # Errors
    /// Why it could not be renewed; it is tried further. [`QueryError::Closed`] or [`QueryError::Device`] once the client is
    /// over.
    ///
    /// # Cancel safety
    /// Dropped, nothing is lost; of several changes the last is told.
    pub async fn changed(&mut self) -> Result<ServiceRecord, QueryError> {
        self.0.changed().await
    }

    /// Removes the record. Done when the SA has confirmed it.
    ///
    /// # Errors
    /// [`QueryError`] if the SA has not confirmed it within 5 s: it may show the record until the lease ends.
    ///
    /// # Cancel safety
    /// Dropped, it goes on in the background.
    pub async fn cancel(self) -> Result<(), QueryError> {
        self.0.give_up().await
    }
}
