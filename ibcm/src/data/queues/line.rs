//! Who waits for a place in a send queue.

use std::collections::VecDeque;
use std::task::Waker;

/// A place in a [`Line`]; `None` as long as there is none.
pub(crate) type Place = Option<u64>;

/// Who waits for a place in the send queue, in order. The first one is woken by completions; the others when they
/// are the first.
#[derive(Debug, Default)]
pub(super) struct Line {
    waiting: VecDeque<Waiting>,
    next: u64,
}

#[derive(Debug)]
struct Waiting {
    place: u64,
    waker: Option<Waker>,
}

impl Line {
    /// Whether nobody has waited longer.
    pub(super) fn is_turn(&self, place: Place) -> bool {
        self.waiting.front().is_none_or(|first| Some(first.place) == place)
    }

    /// Takes a place at the end, unless there is one already.
    pub(super) fn stand(&mut self, place: &mut Place) {
        if place.is_none() {
            *place = Some(self.next);
            self.waiting.push_back(Waiting { place: self.next, waker: None });
            self.next += 1;
        }
    }

    /// Keeps the waker of one in the line; true if it is the first, for which completions count.
    pub(super) fn wait(&mut self, place: Place, waker: &Waker) -> bool {
        let first = self.is_turn(place);
        if !first && let Some(index) = place.and_then(|place| self.index(place)) {
            self.waiting[index].waker = Some(waker.clone());
        }
        first
    }

    /// Gives up a place; gives the waker of the one who is the first now.
    pub(super) fn leave(&mut self, place: &mut Place) -> Option<Waker> {
        let place = place.take()?;
        let index = self.index(place)?;
        self.waiting.remove(index);
        self.waiting.front_mut().filter(|_| index == 0)?.waker.take()
    }

    /// Everyone in the line: there is nothing to wait for any more.
    pub(super) fn take_wakers(&mut self) -> Vec<Waker> {
        self.waiting.iter_mut().filter_map(|waiting| waiting.waker.take()).collect()
    }

    /// Places only grow.
    fn index(&self, place: u64) -> Option<usize> {
        self.waiting.binary_search_by_key(&place, |waiting| waiting.place).ok()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn the_next_one_is_woken_when_the_first_leaves_and_only_then() {
        let (mut line, mut places) = (Line::default(), [None; 4]);
        let counts: [Arc<Count>; 4] = Default::default();
        for (place, count) in places.iter_mut().zip(&counts) {
            assert_eq!(
                line.is_turn(*place),
                counts[0].0.load(Ordering::Relaxed) == 0 && line.waiting.is_empty()
            );
            line.stand(place);
            line.wait(*place, &Waker::from(Arc::clone(count)));
        }
        assert_eq!(places, [Some(0), Some(1), Some(2), Some(3)]);
        // One from the middle: nobody has to know.
        assert!(line.leave(&mut places[1]).is_none());
        line.leave(&mut places[0]).expect("there is a next one").wake();
        assert!(line.is_turn(places[2]) && !line.is_turn(places[3]) && !line.is_turn(None));
        assert_eq!(counts.each_ref().map(|count| count.0.load(Ordering::Relaxed)), [0, 0, 1, 0]);
        // It has been woken; the last one is still to be.
        line.take_wakers().into_iter().for_each(Waker::wake);
        assert_eq!(counts.each_ref().map(|count| count.0.load(Ordering::Relaxed)), [0, 0, 1, 1]);
        assert!(line.leave(&mut places[0]).is_none(), "it has left before");
    }

    #[test]
    fn a_place_is_kept() {
        let (mut line, mut first, mut second) = (Line::default(), None, None);
        line.stand(&mut first);
        line.stand(&mut second);
        line.stand(&mut first);
        assert_eq!((first, second, line.waiting.len()), (Some(0), Some(1), 2));
    }
}
