//! What happens to links, nodes and managers by chance, decided by the seed.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use ibsa::proto::after;
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use super::fabric::{Fabric, Owner, PortId};
use super::subnet::{Faults, Inner};
use crate::manager::SmConfig;

/// Something that happens to a subnet, and ends after a while: [`Faults::happen`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Mishap {
    /// A link goes down, and comes up again.
    Link,
    /// An HCA is taken out, and put back: another device by the same name.
    Hca,
    /// A switch is taken out, and put back. A subnet manager on it ends, and starts anew.
    Switch,
    /// Some of the HCAs and switches do not reach the others, until that is healed.
    Partition,
    /// A subnet manager is killed, and started again; by chance it gives new LIDs.
    Manager,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Mishaps {
    rng: ChaCha8Rng,
    plans: BTreeMap<Mishap, Plan>,
    /// What is to be undone, and when.
    ends: BTreeMap<(Instant, u64), Deed>,
    count: u64,
}

#[derive(Debug)]
struct Plan {
    every: RangeInclusive<Duration>,
    lasting: RangeInclusive<Duration>,
    next: Instant,
}

/// What is done to a subnet, by the mishap of this number. An end undoes only what its own beginning did.
#[derive(Debug)]
enum Deed {
    Plug(u64, PortId, bool),
    Node(u64, usize, bool),
    Cut(u64, BTreeSet<usize>, BTreeSet<usize>),
    Heal(u64),
    Kill(u64, usize, Box<SmConfig>),
    Start(u64, usize),
}

impl Mishaps {
    pub(super) fn new(seed: u64) -> Self {
        // Other numbers than those that decide the fate of packets.
        let rng = ChaCha8Rng::seed_from_u64(seed.wrapping_add(0x6d69_7368_6170));
        Self { rng, plans: BTreeMap::new(), ends: BTreeMap::new(), count: 0 }
    }

    fn due(&self) -> Option<Instant> {
        let end = self.ends.first_key_value().map(|((at, _), _)| *at);
        self.plans.values().map(|plan| plan.next).chain(end).min()
    }

    fn time(rng: &mut ChaCha8Rng, range: &RangeInclusive<Duration>) -> Duration {
        rng.random_range(range.clone())
    }
}

impl Fabric {
    fn arm_mishaps(&mut self) {
        let due = self.mishaps.due();
        self.set_timer(Owner::Mishaps, due);
    }

    /// The next thing to do, if one is due.
    fn next_deed(&mut self, now: Instant) -> Option<Deed> {
        if let Some(end) = self.mishaps.ends.first_entry().filter(|end| end.key().0 <= now) {
            return Some(end.remove());
        }
        loop {
            let mut plans = self.mishaps.plans.iter_mut();
            let (what, plan) = plans.find(|(_, plan)| plan.next <= now)?;
            let what = *what;
            let pause = Mishaps::time(&mut self.mishaps.rng, &plan.every).max(Duration::from_micros(1));
            plan.next = after(plan.next, pause);
            let lasting = Mishaps::time(&mut self.mishaps.rng, &plan.lasting);
            let Some((deed, end)) = self.choose(what) else { continue };
            self.mishaps.count += 1;
            let at = (after(now, lasting), self.mishaps.count);
            self.mishaps.ends.insert(at, end);
            return Some(deed);
        }
    }

    /// What happens to whom, and how it ends. `None` if nobody is left.
    fn choose(&mut self, what: Mishap) -> Option<(Deed, Deed)> {
        let nodes = 0..self.nodes.len();
        let there = |node: &usize| !self.removed[*node];
        let candidates: Vec<PortId> = match what {
            Mishap::Link => {
                let ports = nodes.flat_map(|node| {
                    (1..=self.nodes[node].port_count()).map(move |port| PortId { node, port })
                });
                ports.filter(|id| self.linked(*id).is_some_and(|peer| *id < peer)).collect()
            }
            Mishap::Hca => {
                nodes.filter(there).filter(|node| !self.nodes[*node].is_switch()).map(whole).collect()
            }
            Mishap::Switch => {
                nodes.filter(there).filter(|node| self.nodes[*node].is_switch()).map(whole).collect()
            }
            Mishap::Partition => nodes.map(whole).collect(),
            Mishap::Manager => self.managers.keys().copied().map(whole).collect(),
        };
        if candidates.is_empty() {
            return None;
        }
        let number = self.mishaps.count + 1;
        let rng = &mut self.mishaps.rng;
        let id = candidates[rng.random_range(0..candidates.len())];
        Some(match what {
            Mishap::Link => (Deed::Plug(number, id, false), Deed::Plug(number, id, true)),
            Mishap::Hca | Mishap::Switch => {
                (Deed::Node(number, id.node, false), Deed::Node(number, id.node, true))
            }
            Mishap::Partition => {
                let (a, b) = candidates.iter().map(|id| id.node).partition(|_| rng.random());
                (Deed::Cut(number, a, b), Deed::Heal(number))
            }
            Mishap::Manager => {
                let config = self.managers.get(&id.node)?.sm()?.config().clone();
                let config = match rng.random() {
                    true => self.with_new_lids(id.node, config),
                    false => Self::with_old_lids(config),
                };
                (Deed::Kill(number, id.node, Box::new(config)), Deed::Start(number, id.node))
            }
        })
    }
}

const fn whole(node: usize) -> PortId {
    PortId { node, port: 0 }
}

impl Inner {
    /// Does what is due.
    pub(super) fn mishaps(&self, now: Instant) {
        let _turn = self.mishap.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let deed = self.wires.fabric().next_deed(now);
            match deed {
                Some(deed) => self.carry_out(now, deed),
                None => break,
            }
        }
        self.wires.fabric().arm_mishaps();
    }

    fn carry_out(&self, now: Instant, deed: Deed) {
        match deed {
            Deed::Node(number, node, true) => self.put_back(now, node, number),
            Deed::Node(number, node, false) => self.remove(now, node, number),
            Deed::Plug(number, id, up) => {
                self.change(now, |fabric, now| fabric.set_plugged(now, id, number, up));
            }
            Deed::Cut(number, a, b) => self.wires.fabric().partition(number, a, b),
            Deed::Heal(number) => self.wires.fabric().heal_one(number),
            Deed::Kill(number, node, config) => self.change(now, |fabric, now| {
                fabric.suspend_manager(now, node, *config, number);
            }),
            Deed::Start(number, node) => self.change(now, |fabric, now| {
                fabric.resume_manager(now, node, number);
            }),
        }
    }
}

impl Faults {
    /// From now on this happens again and again: for the first time after one of the times in `every`, and then after another
    /// one, each time to whom the seed decides and for one of the times in `lasting`. Each kind has its own times; naming it
    /// again changes them. [`clear`](Self::clear) ends all at once, also what is going on. The end undoes what happened, and
    /// nothing that was done by hand meanwhile.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use ibsoft::sim::{Mishap, Subnet};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), ibdev::DeviceError> {
    /// let net = Subnet::star(["a", "b", "c"]).seed(7).await?;
    /// let (every, lasting) = (Duration::from_secs(1)..=Duration::from_secs(9), Duration::ZERO..=Duration::from_secs(2));
    /// net.faults().happen(Mishap::Link, every, lasting);
    /// # net.faults().clear();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    /// If one of the ranges is empty.
    pub fn happen(
        self,
        what: Mishap,
        every: RangeInclusive<Duration>,
        lasting: RangeInclusive<Duration>,
    ) -> Self {
        assert!(!every.is_empty() && !lasting.is_empty(), "an empty range of times");
        let now = tokio::time::Instant::now().into_std();
        {
            let mut fabric = self.0.0.wires.fabric();
            let next = after(now, Mishaps::time(&mut fabric.mishaps.rng, &every));
            fabric.mishaps.plans.insert(what, Plan { every, lasting, next });
            fabric.arm_mishaps();
        }
        self.0.0.wires.wake_driver();
        self
    }

    /// Ends what is going on, and lets nothing happen any more.
    pub(super) fn end_mishaps(&self) {
        let _turn = self.0.0.mishap.lock().unwrap_or_else(PoisonError::into_inner);
        let now = tokio::time::Instant::now().into_std();
        let ends: Vec<Deed> = {
            let mut fabric = self.0.0.wires.fabric();
            fabric.mishaps.plans.clear();
            std::mem::take(&mut fabric.mishaps.ends).into_values().collect()
        };
        ends.into_iter().for_each(|deed| self.0.0.carry_out(now, deed));
        self.0.0.wires.fabric().arm_mishaps();
    }
}
