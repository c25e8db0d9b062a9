//! Subscriptions: what happens in the subnet.

use std::collections::{BTreeSet, VecDeque};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_core::Stream;
use ibwire::Gid;
use ibwire::Qpn;
use ibwire::mad::Method;
use rand::RngExt;

use super::Client;
use super::shared::{Owner, Shared};
use crate::proto::client::{QueryError, Request};
use crate::record::{self, InformInfo, NoticeDetails, Template};

/// A trap that IBTA defines (IBTA vol. 1, 14.2.5.1; spec/sa.md 3.19).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Trap(pub u16);

impl Trap {
    /// A port came into service.
    pub const GID_IN: Self = Self(64);
    /// A port went out of service.
    pub const GID_OUT: Self = Self(65);
    /// A multicast group was created.
    pub const GROUP_CREATED: Self = Self(66);
    /// A multicast group was deleted.
    pub const GROUP_DELETED: Self = Self(67);
    /// The link of a switch's port changed its state.
    pub const LINK_STATE: Self = Self(128);
    /// The capabilities of a port changed.
    pub const CAPABILITIES: Self = Self(144);
    /// The GUID of a system changed.
    pub const SYSTEM_IMAGE_GUID: Self = Self(145);
}

/// What a subscription tells.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// A port came into service.
    GidIn(Gid),
    /// A port went out of service.
    GidOut(Gid),
    /// A multicast group was created.
    GroupCreated(Gid),
    /// A multicast group was deleted.
    GroupDeleted(Gid),
    /// Something else; [`details`](record::Notice::details) reads it.
    Other(Box<record::Notice>),
    /// The subnet manager has changed, or asked for it: the subscription was made again. Notices may be missing, so ask
    /// for what they would have told.
    Resubscribed,
    /// The reader was slow: so many notices were dropped here.
    Lagged(u64),
}

/// Notices that wait for one reader, at most.
const WAITING: usize = 256;
/// After a change of the SM subscriptions are made again within so long, by chance, for others do the same.
const SPREAD: Duration = Duration::from_secs(1);

/// A subscription to some traps: a stream of notices, each acknowledged and told once. It lives through changes of the SM.
/// Ends with the client.
///
/// Dropped, the subscription ends in the background, unless others of this port want the same traps.
#[derive(Debug)]
pub struct Notices {
    feed: Arc<Feed>,
    shared: Arc<Shared>,
    _owner: Arc<Owner>,
}

/// What waits for one reader.
#[derive(Debug)]
pub(super) struct Feed {
    traps: BTreeSet<Trap>,
    state: Mutex<FeedState>,
}

#[derive(Debug, Default)]
struct FeedState {
    waiting: VecDeque<Notice>,
    lagged: u64,
    ended: bool,
    waker: Option<Waker>,
}

impl Feed {
    fn change(&self, f: impl FnOnce(&mut FeedState)) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        f(&mut state);
        let waker = state.waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }

    fn push(&self, notice: Notice) {
        self.change(|state| {
            if state.waiting.len() == WAITING {
                state.waiting.pop_front();
                state.lagged += 1;
            }
            state.waiting.push_back(notice);
        });
    }

    pub(super) fn end(&self) {
        self.change(|state| state.ended = true);
    }
}

/// Subscriptions of one client.
#[derive(Debug, Default)]
pub(super) struct Feeds {
    feeds: Vec<Weak<Feed>>,
    /// They are being made again.
    renewing: bool,
    /// And have to be once more.
    again: bool,
}

impl Feeds {
    fn add(&mut self, feed: &Arc<Feed>) {
        self.feeds.retain(|feed| feed.strong_count() > 0);
        self.feeds.push(Arc::downgrade(feed));
    }

    pub(super) fn all(&self) -> Vec<Arc<Feed>> {
        self.feeds.iter().filter_map(Weak::upgrade).collect()
    }

    /// Whether somebody wants this trap.
    fn want(&self, trap: Trap) -> bool {
        self.feeds.iter().filter_map(Weak::upgrade).any(|feed| feed.traps.contains(&trap))
    }

    /// Tells a notice to those who want it.
    pub(super) fn tell(&self, notice: &record::Notice) {
        let trap = Trap(notice.trap_or_device);
        for feed in self.all().into_iter().filter(|feed| notice.is_generic && feed.traps.contains(&trap)) {
            feed.push(match notice.details() {
                NoticeDetails::GidIn(gid) => Notice::GidIn(gid),
                NoticeDetails::GidOut(gid) => Notice::GidOut(gid),
                NoticeDetails::GroupCreated(gid) => Notice::GroupCreated(gid),
                NoticeDetails::GroupDeleted(gid) => Notice::GroupDeleted(gid),
                _ => Notice::Other(Box::new(notice.clone())),
            });
        }
    }
}

impl Client {
    /// Subscribes to traps. Done when the SA has confirmed all of them.
    ///
    /// # Errors
    /// [`QueryError`]; then there is no subscription.
    ///
    /// # Cancel safety
    /// Dropped, what was subscribed to is given up in the background.
    pub async fn subscribe(&self, traps: impl IntoIterator<Item = Trap>) -> Result<Notices, QueryError> {
        self.shared.open().await?;
        let feed = Arc::new(Feed { traps: traps.into_iter().collect(), state: Mutex::default() });
        self.shared.lock().feeds.add(&feed);
        let (shared, owner) = (Arc::clone(&self.shared), Arc::clone(&self._owner));
        let notices = Notices { feed, shared, _owner: owner };
        for trap in &notices.feed.traps {
            inform(&notices.shared, *trap, true).await?;
        }
        Ok(notices)
    }
}

/// Subscribes to a trap, or ends that. Again what is there already, it changes nothing.
async fn inform(shared: &Arc<Shared>, trap: Trap, subscribe: bool) -> Result<(), QueryError> {
    let info = InformInfo { subscribe: subscribe.into(), qpn: Qpn::GSI, ..InformInfo::trap(trap.0) };
    let request = Request::new(Method::SET, Template::with_mask(info, 0), shared.deadline())?;
    shared.request(request).await.map(drop)
}

/// Makes all subscriptions again after the SM has changed, one run at a time.
pub(super) async fn renew(shared: Arc<Shared>) {
    {
        let feeds = &mut shared.lock().feeds;
        feeds.again = true;
        if std::mem::replace(&mut feeds.renewing, true) {
            return;
        }
    }
    loop {
        let (feeds, spread) = {
            let mut state = shared.lock();
            let feeds = state.feeds.all();
            if !std::mem::take(&mut state.feeds.again) || feeds.is_empty() || state.end.is_some() {
                state.feeds.renewing = false;
                return;
            }
            (feeds, SPREAD.mul_f64(state.rng.random_range(0.0..1.0)))
        };
        tokio::time::sleep(spread).await;
        let traps: BTreeSet<Trap> = feeds.iter().flat_map(|feed| feed.traps.iter().copied()).collect();
        for trap in traps {
            if let Err(error) = inform(&shared, trap, true).await {
                tracing::warn!(port = shared.port, trap = trap.0, %error, "a subscription was not made again");
            }
        }
        feeds.iter().for_each(|feed| feed.push(Notice::Resubscribed));
    }
}

impl Stream for Notices {
    type Item = Notice;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Notice>> {
        let mut state = self.feed.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.lagged > 0 {
            return Poll::Ready(Some(Notice::Lagged(std::mem::take(&mut state.lagged))));
        }
        if let Some(notice) = state.waiting.pop_front() {
            return Poll::Ready(Some(notice));
        }
        if state.ended {
            return Poll::Ready(None);
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Notices {
    fn drop(&mut self) {
        let traps = self.feed.traps.clone();
        let gone = Arc::new(Feed { traps: BTreeSet::new(), state: Mutex::default() });
        drop(std::mem::replace(&mut self.feed, gone));
        let Some(runtime) = self.shared.runtime() else { return };
        let (shared, owner) = (Arc::clone(&self.shared), Arc::clone(&self._owner));
        runtime.spawn(async move {
            for trap in traps {
                if shared.lock().feeds.want(trap) {
                    continue;
                }
                // An SA that does not hear it repeats its reports, which are acknowledged, a few times.
                let ended = tokio::time::timeout(LEAVE, inform(&shared, trap, false)).await;
                tracing::debug!(port = shared.port, trap = trap.0, ?ended, "a subscription ends");
                // Who has come meanwhile may have been overtaken.
                if shared.lock().feeds.want(trap) {
                    _ = inform(&shared, trap, true).await;
                }
            }
            drop(owner);
        });
    }
}

/// How long giving up a subscription may take.
const LEAVE: Duration = Duration::from_secs(5);
