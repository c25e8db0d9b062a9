//! Groups of a subnet with an SA: joined there, attached at the device, and both again after changes of the SM.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, Weak};

use futures::future::{Either, select};
use ibdev::{AddressVector, DeviceError, GlobalRoute};
use ibwire::{Gid, Lid, Qpn};
use tokio::sync::{Mutex as AsyncMutex, oneshot};

use super::peer::Peer;
use super::queue::Queue;
use crate::error::Error;
use crate::proto::{Invalid, Limit, Value};
use crate::sa::{Client, Group, McMemberRecord, Membership, SaError, failed};
use crate::shared::Counters;
use crate::sync::lock;

/// The groups that a socket has joined at the SA.
#[derive(Debug, Default)]
pub(super) struct Groups {
    joined: Mutex<BTreeMap<Gid, Joined>>,
    /// One attaches or detaches at a time.
    turn: AsyncMutex<()>,
}

/// A group that a task keeps. Dropped, it is left.
#[derive(Debug)]
struct Joined {
    /// As the SA gave it last.
    record: McMemberRecord,
    leave: oneshot::Sender<Leave>,
}

/// To leave a group.
#[derive(Debug)]
struct Leave {
    /// Where it is attached.
    mlid: Lid,
    left: oneshot::Sender<Result<(), Error>>,
}

impl Groups {
    /// The group as it is now.
    pub(super) fn record(&self, mgid: Gid) -> Option<McMemberRecord> {
        lock(&self.joined).get(&mgid).map(|joined| joined.record.clone())
    }

    /// Leaves it, and waits until the SA has confirmed that. Dropped, it goes on in the background.
    pub(super) async fn leave(&self, mgid: Gid) -> Result<(), Error> {
        let joined = lock(&self.joined).remove(&mgid);
        let Some(joined) = joined else { return Ok(()) };
        let (left, leaving) = oneshot::channel();
        _ = joined.leave.send(Leave { mlid: joined.record.mlid, left }); // its task may have ended with the HCA
        leaving.await.unwrap_or(Err(Error::Closed))
    }
}

/// Joins a group, unless that has happened.
pub(super) async fn join(queue: &Arc<Queue>, sa: Client, mgid: Gid) -> Result<McMemberRecord, Error> {
    if let Some(record) = queue.groups.record(mgid) {
        return Ok(record);
    }
    let made = Group::new(queue.qkey).p_key(queue.pkey);
    let membership = sa.join(mgid).or_create(made).await.map_err(|error| failed(error, mgid))?;
    check(queue, &membership.record())?;
    let (attached, attaching) = oneshot::channel();
    queue.shared.spawn(attach(Arc::clone(queue), membership, attached));
    attaching.await.unwrap_or(Err(Error::Closed))
}

/// A group with other keys than the socket's is not heard.
fn check(queue: &Queue, record: &McMemberRecord) -> Result<(), Invalid> {
    if record.q_key != queue.qkey {
        let value = Value::Number(record.q_key.0.into());
        return Err(Invalid::new("the group's Q_Key", value, Limit::Must("that of the socket")));
    }
    if record.p_key.base() != queue.pkey.base() {
        let value = Value::Number(record.p_key.0.into());
        return Err(Invalid::new("the group's P_Key", value, Limit::Must("that of the socket")));
    }
    Ok(())
}

/// Attaches the queue pair to a group that was joined, and keeps it attached.
async fn attach(
    queue: Arc<Queue>,
    membership: Membership,
    attached: oneshot::Sender<Result<McMemberRecord, Error>>,
) {
    let turn = queue.groups.turn.lock().await;
    let record = membership.record();
    if let Some(record) = queue.groups.record(record.mgid) {
        _ = attached.send(Ok(record)); // another call was faster, and this membership is one too many
        return;
    }
    if let Err(error) = queue.qp.attach(record.mgid, record.mlid).await {
        _ = attached.send(Err(error.into())); // who waits no more has not joined
        return;
    }
    let (leave, leaving) = oneshot::channel();
    lock(&queue.groups.joined).insert(record.mgid, Joined { record: record.clone(), leave });
    drop(turn);
    let socket = Arc::downgrade(&queue);
    drop(queue);
    _ = attached.send(Ok(record)); // who waits no more has joined all the same
    keep(socket, membership, leaving).await;
}

/// Keeps the queue pair attached to the group's LID of the time, until it is left or the socket is gone.
async fn keep(queue: Weak<Queue>, mut membership: Membership, mut leaving: oneshot::Receiver<Leave>) {
    let mgid = membership.mgid();
    let leave = loop {
        let news = match select(pin!(membership.changed()), &mut leaving).await {
            Either::Left((news, _)) => news,
            Either::Right((leave, _)) => break leave,
        };
        let Some(queue) = queue.upgrade() else { return };
        match news {
            Ok(record) => moved(&queue, record).await,
            Err(error @ (SaError::Closed | SaError::Device(_))) => match lost(&queue, mgid, &error).await {
                true => return,
                // It is being left: what says so has come, or comes at once.
                false => break (&mut leaving).await,
            },
            Err(error) => tracing::warn!(%mgid, %error, "a group was not joined again"),
        }
    };
    // Where the socket is gone its queue pair is, too.
    let (Ok(Leave { mlid, left }), Some(queue)) = (leave, queue.upgrade()) else { return };
    let detached = {
        let _turn = queue.groups.turn.lock().await;
        match queue.groups.record(mgid).is_some_and(|again| again.mlid == mlid) {
            true => Ok(()), // joined again meanwhile
            false => queue.qp.detach(mgid, mlid).await.map_err(Error::from),
        }
    };
    let gone = membership.leave().await.map_err(|error| failed(error, mgid).into());
    _ = left.send(detached.and(gone)); // who waits no more has left all the same
}

/// The client of the SA is over, and with it the membership: the socket is not in the group any more. False if the program leaves
/// it at that moment.
async fn lost(queue: &Queue, mgid: Gid, error: &SaError) -> bool {
    let _turn = queue.groups.turn.lock().await;
    let Some(Joined { record, .. }) = lock(&queue.groups.joined).remove(&mgid) else { return false };
    if queue.end().is_some() {
        return true; // the HCA has ended, which the socket tells
    }
    Counters::add(&queue.shared.counters.groups_unheard, 1);
    tracing::warn!(%mgid, %error, "a group is left: the client of its SA is over");
    if let Err(error) = queue.qp.detach(mgid, record.mlid).await {
        tracing::warn!(%mgid, mlid = %record.mlid, %error, "a group was not detached");
    }
    true
}

/// The SA has taken the port into the group again, perhaps with another LID.
async fn moved(queue: &Queue, record: McMemberRecord) {
    let _turn = queue.groups.turn.lock().await;
    let (mgid, now) = (record.mgid, record.mlid);
    let mut unheard = check(queue, &record).err().map(Error::from);
    let before = match lock(&queue.groups.joined).get_mut(&mgid) {
        Some(joined) => std::mem::replace(&mut joined.record, record).mlid,
        None => return, // it is being left
    };
    if now != before
        && let Err(error) = move_over(queue, mgid, before, now).await
    {
        unheard.get_or_insert(error.into());
    }
    if let Some(error) = unheard {
        Counters::add(&queue.shared.counters.groups_unheard, 1);
        tracing::warn!(%mgid, mlid = %now, %error, "a group was joined again, but is not heard");
    }
}

/// Attaches the queue pair where a group is now instead of where it was.
async fn move_over(queue: &Queue, mgid: Gid, before: Lid, now: Lid) -> Result<(), DeviceError> {
    let attached = queue.qp.attach(mgid, now).await;
    // At the LID of before there may be another group by now: it is not heard, whatever has become of the new one.
    if let Err(error) = queue.qp.detach(mgid, before).await {
        tracing::warn!(%mgid, mlid = %before, %error, "a group was not detached where it was before");
    }
    match attached {
        Ok(()) => Ok(()),
        // That has made room in a device whose groups are used up.
        Err(_) => queue.qp.attach(mgid, now).await,
    }
}

/// The group to send to. Packets to a group always carry a GRH.
pub(super) fn peer(queue: &Queue, sgid: Option<Gid>, record: &McMemberRecord) -> Peer {
    let av = AddressVector {
        port: queue.port,
        dlid: record.mlid,
        sl: record.sl,
        path_bits: 0,
        rate: record.rate,
        grh: Some(GlobalRoute {
            dgid: record.mgid,
            sgid_index: 0,
            flow_label: record.flow_label,
            hop_limit: record.hop_limit,
            traffic_class: record.traffic_class,
        }),
    };
    queue.peer(sgid, av, Qpn::MULTICAST, record.q_key)
}
