//! Multicast groups: joining, making, leaving, and memberships that live through changes of the SM.

mod entry;
mod keeper;
#[cfg(test)]
mod tests;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use ibwire::{FlowLabel, Gid, Lid, Mtu, PKey, PacketLifeTime, QKey, Rate, ServiceLevel};
use pin_project::pin_project;
use tokio::sync::oneshot;

use super::Client;
use super::builder::{self, Running};
use super::keep::{Kept, within};
use super::shared::after;
use crate::proto::client::QueryError;
use crate::record::{IntoField, InvalidField, Is, JoinState, McMemberRecord, Template};
use entry::Joiner;

pub(super) use entry::PortGroup;

/// How to make a multicast group that does not exist: for [`Join::or_create`].
///
/// It begins with the default partition, and 0 for traffic class, flow label and service level. What is not set is the
/// SM's choice.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct Group(Template<McMemberRecord>);

impl Group {
    /// A group with this Q_Key.
    pub fn new(q_key: impl IntoField<QKey>) -> Self {
        let template = Template::<McMemberRecord>::new().q_key(q_key).p_key(PKey::DEFAULT);
        Self(template.traffic_class(0).sl(0u8).flow_label(0u32))
    }

    /// The partition. Default 0xFFFF.
    pub fn p_key(self, p_key: impl IntoField<PKey>) -> Self {
        Self(self.0.p_key(p_key))
    }

    /// The service level, 0..=15.
    pub fn sl(self, sl: impl IntoField<ServiceLevel>) -> Self {
        Self(self.0.sl(sl))
    }

    /// Traffic class.
    pub fn traffic_class(self, class: u8) -> Self {
        Self(self.0.traffic_class(class))
    }

    /// Flow label.
    pub fn flow_label(self, label: impl IntoField<FlowLabel>) -> Self {
        Self(self.0.flow_label(label))
    }

    /// Hop limit.
    pub fn hop_limit(self, limit: u8) -> Self {
        Self(self.0.hop_limit(limit))
    }

    /// The MTU.
    pub fn mtu(self, wanted: Is<Mtu>) -> Self {
        Self(self.0.mtu(wanted))
    }

    /// The rate.
    pub fn rate(self, wanted: Is<Rate>) -> Self {
        Self(self.0.rate(wanted))
    }

    /// How long a packet may live on the way.
    pub fn packet_life_time(self, wanted: Is<PacketLifeTime>) -> Self {
        Self(self.0.packet_life_time(wanted))
    }

    /// Scope of a group for which the SA chooses the MGID, 4 bits: 2 for the link, 5 for the site, 8 for the organisation, 14
    /// for all. Default: 2.
    pub fn scope(self, scope: u8) -> Self {
        Self(self.0.scope(scope))
    }

    fn template(&self) -> Template<McMemberRecord> {
        self.0.clone()
    }

    fn check(&self) -> Result<(), InvalidField> {
        self.template().checked().map(drop)
    }
}

/// How to join a multicast group: a builder that is itself the future of the [`Membership`].
///
/// It begins as a full member. The group's partition, Q_Key, MTU and rate are what the SA answers.
///
/// # Errors
/// [`QueryError`]. [`QueryError::Status`] with [`REQUEST_INVALID`](crate::SaStatus::REQUEST_INVALID) or
/// [`INSUFFICIENT_COMPONENTS`](crate::SaStatus::INSUFFICIENT_COMPONENTS) if there is no such group, or the port does not
/// fit it.
///
/// # Cancel safety
/// Dropped, the group is left again in the background, unless others of this port are in it.
#[pin_project(!Unpin)]
#[must_use = "nothing is joined before it is awaited"]
pub struct Join {
    plan: Option<Plan>,
    run: Option<Running<Result<Membership, QueryError>>>,
}

#[derive(Debug)]
struct Plan {
    client: Client,
    mgid: Gid,
    kind: JoinState,
    create: Option<Group>,
    timeout: Option<Duration>,
}

impl Join {
    fn change(mut self, f: impl FnOnce(&mut Plan)) -> Self {
        if let Some(plan) = &mut self.plan {
            f(plan);
        }
        self
    }

    /// Only to send; the port does not count as a member. Where there is no full member yet it waits for one a little.
    pub fn send_only(self) -> Self {
        self.change(|plan| plan.kind = JoinState::SEND_ONLY_NON_MEMBER)
    }

    /// Only to send, but as a member that keeps the group alive. Not every SA knows that.
    pub fn send_only_full(self) -> Self {
        self.change(|plan| plan.kind = JoinState::SEND_ONLY_FULL_MEMBER)
    }

    /// To send and to receive, but not as a member that keeps the group alive.
    pub fn non_member(self) -> Self {
        self.change(|plan| plan.kind = JoinState::NON_MEMBER)
    }

    /// Makes the group if there is none. One that exists keeps its own parameters.
    pub fn or_create(self, group: Group) -> Self {
        self.change(|plan| plan.create = Some(group))
    }

    /// How long to try. Default: [`Client::default_timeout`].
    pub fn timeout(self, timeout: Duration) -> Self {
        self.change(|plan| plan.timeout = Some(timeout))
    }
}

impl Plan {
    fn check(&self) -> Result<(), QueryError> {
        let chosen = self.mgid.is_unspecified() && self.create.is_some();
        if !chosen && !self.mgid.is_multicast() {
            return Err(QueryError::NoGroup(self.mgid));
        }
        let Some(group) = &self.create else { return Ok(()) };
        if !(JoinState::FULL_MEMBER | JoinState::SEND_ONLY_FULL_MEMBER).contains(self.kind) {
            return Err(QueryError::NoMember(self.kind));
        }
        Ok(group.check()?)
    }

    async fn run(self) -> Result<Membership, QueryError> {
        self.check()?;
        let shared = &self.client.shared;
        shared.open().await?;
        let timeout = self.timeout.unwrap_or(shared.timeout);
        let (joined, joining) = oneshot::channel();
        let joiner = Joiner { kind: self.kind, deadline: after(timeout), tries: 0, joined };
        keeper::join(shared, &self.client._owner, self.mgid, joiner, self.create)?;
        Ok(Membership(within(shared, timeout, joining).await?))
    }
}

impl Future for Join {
    type Output = Result<Membership, QueryError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        builder::poll(this.plan, this.run, Plan::run, cx)
    }
}

impl fmt::Debug for Join {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Join").field("plan", &self.plan).finish_non_exhaustive()
    }
}

impl Client {
    /// Joins a multicast group. With the unspecified GID the SA chooses the group's, see [`Join::or_create`].
    ///
    /// Memberships are counted: for the SA the port is in a group once, whoever joins it by this client. The last that
    /// leaves makes the port leave.
    pub fn join(&self, mgid: Gid) -> Join {
        let kind = JoinState::FULL_MEMBER;
        let plan = Plan { client: self.clone(), mgid, kind, create: None, timeout: None };
        Join { plan: Some(plan), run: None }
    }
}

/// A place in a multicast group. After a change of the SM the group is joined again, within a second by chance, and then every
/// 1 to 16 s until that succeeds: [`changed`](Self::changed) tells. It keeps the client open.
///
/// Dropped, the group is left in the background within 5 s, unless others of this port are in it the same way.
#[derive(Debug)]
#[must_use = "dropped, the group is left"]
pub struct Membership(Kept<PortGroup>);

impl Membership {
    /// The group as the SA gave it last: with its partition, Q_Key, MTU, rate and service level a queue pair is attached. The
    /// join state is that of the port.
    pub fn record(&self) -> McMemberRecord {
        self.0.with(McMemberRecord::clone)
    }

    /// The group.
    pub fn mgid(&self) -> Gid {
        self.0.with(|record| record.mgid)
    }

    /// The LID of the group, which it may share with others: filter by MGID.
    pub fn mlid(&self) -> Lid {
        self.0.with(|record| record.mlid)
    }

    /// How it was joined.
    pub const fn kind(&self) -> JoinState {
        self.0.claim()
    }

    /// Waits until the group has been joined again after a change of the SM. The LID is perhaps another one, so is the MGID if
    /// the SA had chosen it, and so are all parameters.
    ///
    /// # Errors
    /// Why the group could not be joined again; it is tried further. [`QueryError::Closed`] or [`QueryError::Device`] once the
    /// client is over.
    ///
    /// # Cancel safety
    /// Dropped, nothing is lost; of several changes the last is told.
    pub async fn changed(&mut self) -> Result<McMemberRecord, QueryError> {
        self.0.changed().await
    }

    /// Leaves the group. Done when the SA has confirmed it, or at once while others of this port are in it the same way.
    ///
    /// # Errors
    /// [`QueryError`] if the SA has not confirmed it within 5 s: it may believe that the port is in the group until that
    /// goes down.
    ///
    /// # Cancel safety
    /// Dropped, it goes on in the background.
    pub async fn leave(self) -> Result<(), QueryError> {
        self.0.give_up().await
    }
}
