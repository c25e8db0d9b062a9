//! What waits in a completion queue.

use std::collections::{BTreeMap, VecDeque};

use ibdev::{Buf, Completion};
use ibwire::Qpn;

/// Room for completions, each with the slot of its QP.
pub(super) type Room = VecDeque<Option<(u32, Completion)>>;

/// Completions in their order. Those of one QP are taken out without a look at all others for each QP anew: a thousand QPs
/// with a hundred flushed receives each may be destroyed one after the other.
#[derive(Debug, Default)]
pub(super) struct Completions {
    /// Where one was taken out there is nothing; not at the front.
    entries: Room,
    /// How many wait.
    waiting: usize,
    /// The number of the first entry; each has one more than the one before.
    first: u64,
    index: Index,
}

/// Where the completions of each QP are, as far as they were looked through for that.
#[derive(Debug, Default)]
struct Index {
    of_qp: BTreeMap<Qpn, Vec<u64>>,
    /// The number of the first entry that is not in it.
    end: u64,
    /// How many entries were put into it, those that are gone included.
    len: usize,
}

/// So few are looked through as they are.
const FEW: usize = 64;

impl Completions {
    /// None, in this room.
    pub(super) fn new(room: Room) -> Self {
        Self { entries: room, ..Self::default() }
    }

    /// The room of those that wait, of which there are none.
    pub(super) fn into_room(self) -> Room {
        debug_assert!(self.waiting == 0);
        self.entries
    }

    pub(super) fn len(&self) -> usize {
        self.waiting
    }

    pub(super) fn reserve(&mut self, more: usize) {
        self.entries.reserve(more);
    }

    pub(super) fn push(&mut self, slot: u32, completion: Completion) {
        self.entries.push_back(Some((slot, completion)));
        self.waiting += 1;
    }

    pub(super) fn pop(&mut self) -> Option<(u32, Completion)> {
        let taken = self.entries.pop_front().flatten()?;
        self.first += 1;
        self.waiting -= 1;
        self.trim();
        Some(taken)
    }

    /// Takes out the completions of one QP, and returns how many of them were receives.
    pub(super) fn purge(&mut self, qpn: Qpn, into: &mut Vec<Buf>) -> u32 {
        let mut receives = 0;
        let mut take = |entry: &mut Option<(u32, Completion)>| {
            let is_own = |entry: &mut (u32, Completion)| entry.1.qpn == qpn;
            let Some((_, completion)) = entry.take_if(is_own) else { return 0 };
            receives += u32::from(completion.op.is_recv());
            into.extend(completion.sg);
            1
        };
        let taken: usize = if self.entries.len() <= FEW {
            self.entries.iter_mut().map(take).sum()
        } else {
            self.index.go_on(self.first, &self.entries);
            let numbers = self.index.of_qp.remove(&qpn).unwrap_or_default();
            let places = numbers.iter().filter_map(|number| number.checked_sub(self.first));
            places.filter_map(|at| self.entries.get_mut(at as usize).map(&mut take)).sum()
        };
        self.waiting -= taken;
        self.trim();
        receives
    }

    /// Keeps no more room for what was taken out than for what waits.
    fn trim(&mut self) {
        while let Some(None) = self.entries.front() {
            self.entries.pop_front();
            self.first += 1;
        }
        if self.entries.len() > 2 * self.waiting + FEW {
            self.entries.retain(Option::is_some);
            self.index = Index { end: self.first, ..Index::default() };
        }
    }
}

impl Index {
    /// Adds the entries that are not in it; the first one has this number.
    fn go_on(&mut self, first: u64, entries: &Room) {
        if self.len > 2 * entries.len() {
            *self = Self::default();
        }
        self.end = self.end.max(first);
        let known = (self.end - first) as usize;
        for entry in entries.iter().skip(known) {
            if let Some((_, completion)) = entry {
                self.of_qp.entry(completion.qpn).or_default().push(self.end);
            }
            self.end += 1;
        }
        self.len += entries.len() - known;
    }
}

#[cfg(test)]
mod tests {
    use ibdev::{CompletionOp, Status};
    use proptest::prelude::*;

    use super::*;

    fn completion(qpn: u32, id: u64) -> Completion {
        let (op, qpn) =
            (if id.is_multiple_of(3) { CompletionOp::Send } else { CompletionOp::Recv }, Qpn::truncate(qpn));
        let sg = [Buf::unregistered(4)].into();
        Completion { id, qpn, status: Status::SUCCESS, op, len: 0, imm: None, sg, from: None, raw: None }
    }

    /// Each is looked at a few times, however many QPs go.
    #[test]
    fn many_queue_pairs_go_one_after_the_other() {
        for backwards in [false, true] {
            let mut queue = Completions::default();
            (0..500 * 64).for_each(|id| queue.push(0, completion(id % 500, id.into())));
            let mut looked_at = 0;
            for qp in 0..500 {
                let (before, mut bufs) = (queue.index.len, Vec::new());
                queue.purge(Qpn::truncate(if backwards { 499 - qp } else { qp }), &mut bufs);
                assert_eq!(bufs.len(), 64);
                looked_at += queue.index.len.checked_sub(before).unwrap_or(queue.index.len);
            }
            assert!(looked_at < 3 * 500 * 64, "{looked_at}");
            assert_eq!((queue.len(), queue.entries.len()), (0, 0));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

        /// Against a plain list.
        #[test]
        fn it_is_a_list(steps in prop::collection::vec((0u8..4, 0u32..8, 1usize..90), 0..120)) {
            let (mut queue, mut model, mut id) = (Completions::default(), VecDeque::new(), 0);
            for (what, qpn, count) in steps {
                match what {
                    0 | 1 => for n in 0..count as u32 {
                        let qpn = if what == 0 { qpn } else { n % 8 };
                        queue.push(qpn, completion(qpn, id));
                        model.push_back((qpn, id));
                        id += 1;
                    },
                    2 => for _ in 0..count {
                        let popped = queue.pop().map(|(slot, completion)| (slot, completion.id));
                        prop_assert_eq!(popped, model.pop_front());
                    },
                    _ => {
                        let mut bufs = Vec::new();
                        let receives = queue.purge(Qpn::truncate(qpn), &mut bufs);
                        let (own, others): (VecDeque<_>, _) = model.into_iter().partition(|(of, _)| *of == qpn);
                        model = others;
                        prop_assert_eq!(bufs.len(), own.len());
                        prop_assert_eq!(receives as usize, own.iter().filter(|(_, id)| !id.is_multiple_of(3)).count());
                    }
                }
                prop_assert_eq!(queue.len(), model.len());
                prop_assert!(queue.entries.len() <= 2 * queue.len() + FEW);
                prop_assert!(!matches!(queue.entries.front(), Some(None)));
            }
        }
    }
}
