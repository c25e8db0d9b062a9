//! Hosts in a subnet, and what all their programs share.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use futures::future::{Either, FutureExt as _, poll_fn, select};
use ibcm::sim::Subnet;
use ibcm::{Gid, Hca, Listener, ServiceId};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use super::journal::Journal;
use super::plan::{Call, GiveUp, Incident, Plan};
use super::records::{Outage, Records};
use super::{active, passive};

/// Where every host listens.
pub const SERVICE: ServiceId = ServiceId::new(0x1000_0000_0000_0001);
/// Where nobody does.
pub const NOWHERE: ServiceId = ServiceId::new(0x1000_0000_0000_0002);

/// What a timer may be late: tokio's come up every millisecond, and an exchange has some in a row.
pub const SLACK: Duration = Duration::from_millis(50);

/// When those who wait for the others to settle go on.
const CALM: Duration = Duration::from_secs(40);
/// No simulation takes longer.
const LONGEST: Duration = Duration::from_secs(3_600);

pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// One simulation.
#[derive(Debug)]
pub struct World {
    pub plan: Plan,
    pub journal: Journal,
    net: Subnet,
    start: Instant,
    hosts: Vec<Host>,
    records: Mutex<Records>,
    /// A watch channel would wake in random order.
    calm: Notify,
    is_calm: AtomicBool,
    tasks: Mutex<Vec<(String, JoinHandle<()>)>>,
}

#[derive(Debug)]
struct Host {
    name: &'static str,
    gids: Vec<Gid>,
    /// All that were opened; the last is the one in use.
    hcas: Mutex<Vec<Hca>>,
    /// Ends its listener; whether by closing it.
    no_more: Mutex<Option<bool>>,
    stop: Notify,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl World {
    /// A subnet with all hosts listening.
    pub async fn build(plan: Plan, net: Subnet, journal: Journal) -> Result<Arc<Self>, Error> {
        let weather = &plan.weather;
        net.faults()
            .loss(weather.loss)
            .duplicate(weather.duplicate)
            .reorder(weather.reorder)
            .corrupt(weather.corrupt)
            .delay(weather.delay.clone());
        let mut hosts = Vec::new();
        for &name in plan.names() {
            let host = Host {
                name,
                gids: Vec::new(),
                hcas: Mutex::default(),
                no_more: Mutex::default(),
                stop: Notify::new(),
            };
            hosts.push(host);
        }
        let mut world = Self {
            plan,
            journal,
            net,
            start: Instant::now(),
            hosts,
            records: Mutex::default(),
            calm: Notify::new(),
            is_calm: AtomicBool::new(false),
            tasks: Mutex::default(),
        };
        for host in 0..world.hosts.len() {
            let hca = world.open(host).await?;
            world.hosts[host].gids = hca.ports().iter().map(|port| port.gid()).collect();
        }
        let world = Arc::new(world);
        for host in 0..world.hosts.len() {
            world.listen(host).await?;
        }
        Ok(world)
    }

    async fn open(&self, host: usize) -> Result<Hca, ibcm::OpenError> {
        let Host { name, hcas, .. } = &self.hosts[host];
        let hca = Hca::open(self.net.device(name)).await?;
        lock(hcas).push(hca.clone());
        Ok(hca)
    }

    pub fn name(&self, host: usize) -> &'static str {
        self.hosts[host].name
    }

    pub fn hca(&self, host: usize) -> Hca {
        lock(&self.hosts[host].hcas).last().expect("opened when the world was built").clone()
    }

    /// Every HCA that the host has had.
    pub fn hcas(&self, host: usize) -> Vec<Hca> {
        lock(&self.hosts[host].hcas).clone()
    }

    pub fn gid(&self, host: usize, port: u8) -> Gid {
        self.hosts[host].gids[usize::from(port) - 1]
    }

    pub fn records(&self) -> MutexGuard<'_, Records> {
        lock(&self.records)
    }

    pub fn note(&self, host: usize, line: fmt::Arguments<'_>) {
        self.journal.note(format_args!("{} {line}", self.name(host)));
    }

    /// Runs a task whose end and panics the simulation waits for.
    pub fn spawn(&self, name: String, task: impl Future<Output = ()> + Send + 'static) {
        lock(&self.tasks).push((name, tokio::spawn(task)));
    }

    /// Waits until `at`, counted from the beginning, or for the calm at the end.
    pub async fn moment(&self, at: Option<Duration>) {
        let calm = pin!(self.calm.notified());
        if self.is_calm.load(Ordering::Relaxed) {
            return;
        }
        match at {
            Some(at) => {
                let at = pin!(tokio::time::sleep_until(self.start + at));
                select(at, calm).await;
            }
            None => calm.await,
        }
    }

    /// Waits so long, or for the calm at the end.
    pub async fn pause(&self, time: Duration) {
        self.moment(Some(self.start.elapsed() + time)).await;
    }

    /// Everything that is planned, until nothing is left.
    pub async fn run(self: &Arc<Self>) -> Result<(), Error> {
        for (at, incident) in self.plan.incidents.iter().copied() {
            let world = Arc::clone(self);
            self.spawn(format!("{incident:?}"), async move {
                world.moment(Some(at)).await;
                world.happen(incident).await;
            });
        }
        for number in 0..self.plan.calls.len() {
            self.spawn(format!("call {number}"), active::run(Arc::clone(self), number));
        }
        sleep(CALM).await;
        self.journal.note(format_args!("now the last connections end"));
        if self.plan.clears_up {
            self.net.faults().clear();
        }
        self.is_calm.store(true, Ordering::Relaxed);
        self.calm.notify_waiters();
        timeout(LONGEST, self.join(|name| !is_listener(name)))
            .await
            .map_err(|_| format!("after {LONGEST:?} there are still {:?}", self.running()))??;

        let bound = self.plan.exchange_bound() + SLACK;
        let begun = self.journal.now();
        self.net.quiet().await?;
        let took = self.journal.now() - begun;
        if took > bound {
            return Err(format!("quiet only after {took:?}, exchanges take {bound:?} at most").into());
        }
        self.join(|name| !is_listener(name)).await
    }

    /// Ends the hosts: nothing of them is left.
    pub async fn end(self: Arc<Self>) -> Result<(), Error> {
        for host in &self.hosts {
            if self.plan.closes {
                let hca = lock(&host.hcas).last().expect("opened when the world was built").clone();
                within("closing an idle HCA", Duration::ZERO, hca.close()).await;
            } else {
                host.stop.notify_one();
            }
        }
        timeout(LONGEST, self.join(|_| true)).await.map_err(|_| "a listener outlives its HCA")??;
        drop(self);
        sleep(SLACK).await;
        // One task is the subnet's own.
        let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks() - 1;
        if tasks > 0 { Err(format!("{tasks} tasks are left").into()) } else { Ok(()) }
    }

    fn running(&self) -> Vec<String> {
        lock(&self.tasks).iter().map(|(name, _)| name.clone()).collect()
    }

    /// Waits for the tasks of these names, and for those that they begin.
    async fn join(&self, which: impl Fn(&str) -> bool) -> Result<(), Error> {
        loop {
            let next = lock(&self.tasks).iter().position(|(name, _)| which(name));
            let Some(next) = next else { return Ok(()) };
            // It stays on the list while it runs; others only add to the end.
            let ended = poll_fn(|cx| lock(&self.tasks)[next].1.poll_unpin(cx)).await;
            let (name, _) = lock(&self.tasks).remove(next);
            if let Err(error) = ended {
                let why = error.try_into_panic().map_or("it was cancelled".into(), |payload| text(&*payload));
                return Err(format!("{name}: {why}").into());
            }
        }
    }

    async fn happen(self: &Arc<Self>, incident: Incident) {
        self.journal.note(format_args!("{incident:?}"));
        match incident {
            Incident::Partition { host, lasts } => {
                let name = self.name(host);
                let others: Vec<_> =
                    self.plan.names().iter().copied().filter(|other| *other != name).collect();
                self.net.partition(&[name], &others);
                self.pause(lasts).await;
                self.net.heal();
            }
            Incident::LinkDown { host, lasts } => {
                self.net.link_down(self.name(host));
                self.pause(lasts).await;
                self.net.link_up(self.name(host));
            }
            Incident::PortDown { host, port, lasts } => {
                self.net.port_down(self.name(host), port);
                self.pause(lasts).await;
                self.net.port_up(self.name(host), port);
            }
            Incident::Removal { host } => {
                let now = self.journal.now();
                self.records().outages.push(Outage { host, removed: true, began: now, over: now });
                self.net.remove(self.name(host));
            }
            Incident::ListenerGone { host, closed, lasts } => {
                *lock(&self.hosts[host].no_more) = Some(closed);
                self.hosts[host].stop.notify_one();
                // Time passes only when the listener has heard that.
                self.pause(lasts.max(Duration::from_millis(1))).await;
                self.listen_again(host).await;
            }
            Incident::Restart { host } => {
                let began = self.journal.now();
                let bound = self.plan.exchange_bound();
                within("closing an HCA", bound, self.hca(host).close()).await;
                let over = self.journal.now();
                self.records().outages.push(Outage { host, removed: false, began, over });
                match self.open(host).await {
                    Ok(_) => self.listen_again(host).await,
                    Err(error) => self.must_be_removed(host, &error),
                }
            }
        }
        self.journal.note(format_args!("{incident:?} is over"));
    }

    async fn listen_again(self: &Arc<Self>, host: usize) {
        match self.listen(host).await {
            Ok(()) => {}
            // Another incident may have made one.
            Err(ibcm::ListenError::InUse { .. }) if self.plan.incidents.len() > 1 => {}
            Err(error) => self.must_be_removed(host, &error),
        }
    }

    /// A failure that only an incident explains.
    fn must_be_removed(&self, host: usize, error: &dyn std::error::Error) {
        self.note(host, format_args!("cannot go on: {error}"));
        let outages = &self.records().outages;
        let explained = self.plan.incidents.len() > 1 || outages.iter().any(|outage| outage.host == host);
        assert!(explained, "{} cannot go on: {error}", self.name(host));
    }

    async fn listen(self: &Arc<Self>, host: usize) -> Result<(), ibcm::ListenError> {
        let (hca, undecided) = (self.hca(host), self.plan.hosts[host].backlog);
        let listener = Listener::bind(SERVICE).device(&hca).window(undecided).backlog(0).await?;
        let world = Arc::clone(self);
        self.spawn(format!("{LISTENER} of {}", self.name(host)), world.serve(host, listener));
        Ok(())
    }

    async fn serve(self: Arc<Self>, host: usize, listener: Listener) {
        let mut pause = Duration::ZERO;
        loop {
            let stop = pin!(self.hosts[host].stop.notified());
            let paused = self.pause(pause);
            let next = pin!(async {
                paused.await;
                listener.accept().await
            });
            match select(stop, next).await {
                Either::Left(_) => break,
                Either::Right((Ok(request), _)) => {
                    pause = self.plan.hosts[host].pause;
                    let task = passive::run(Arc::clone(&self), host, request);
                    self.spawn(format!("request to {}", self.name(host)), task);
                }
                Either::Right((Err(error), _)) => {
                    return self.note(host, format_args!("listens no more: {error}"));
                }
            }
        }
        if lock(&self.hosts[host].no_more).take() == Some(true) {
            listener.close().await;
            let after = within("accept on a closed listener", Duration::ZERO, listener.accept()).await;
            assert!(after.is_err(), "a request on a closed listener");
        }
        self.note(host, format_args!("listens no more"));
    }

    pub fn call(&self, number: usize) -> Option<&Call> {
        self.plan.calls.get(number)
    }
}

const LISTENER: &str = "listener";

fn is_listener(task: &str) -> bool {
    task.starts_with(LISTENER)
}

/// What a panic says.
pub fn text(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref().copied()).unwrap_or("a panic without words").to_owned()
}

/// Waits for something that has a bound.
///
/// # Panics
/// If it takes longer.
pub async fn within<T>(what: &str, bound: Duration, future: impl Future<Output = T>) -> T {
    let Ok(result) = timeout(bound + SLACK, future).await else {
        panic!("{what} takes longer than its bound of {bound:?}");
    };
    result
}

/// What comes of a future, unless it is dropped before.
pub async fn unless<T>(give_up: Option<GiveUp>, future: impl Future<Output = T>) -> Option<T> {
    match give_up {
        None => Some(future.await),
        Some(GiveUp::After(time)) => timeout(time, future).await.ok(),
        Some(GiveUp::AtPoll(n)) => {
            let (mut future, mut polls) = (pin!(future), n);
            poll_fn(|cx| {
                if polls == 0 {
                    return Poll::Ready(None);
                }
                polls -= 1;
                future.as_mut().poll(cx).map(Some)
            })
            .await
        }
    }
}
