//! A table from numbers to slots, made for very many entries of which few are touched at a time.

/// Open addressing with linear probing, so that finding an entry, adding or removing one costs about one cache line
/// (TimeWait can hold hundreds of thousands of connections). Keys are spread by multiplication only: they are drawn at
/// random, come from a keyed hash, or are the device's own. Eight keys in a row lie close together, because queue pairs are
/// numbered in a row: those of connections that begin together are on two cache lines. Several entries may have the same
/// key.
#[derive(Debug, Default)]
pub(super) struct SlotTable {
    /// A power of two, or none.
    entries: Box<[Entry]>,
    len: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    key: u32,
    slot: u32,
}

/// No slot has this number: there are far fewer connections.
const FREE: Entry = Entry { key: 0, slot: u32::MAX };
const LEAST: usize = 64;
/// Keys that lie together.
pub(super) const ROW: u32 = 8;
/// Places that they have, and others: with one between two, those that are in each other's way are few.
const PLACES: usize = 2 * ROW as usize;

impl SlotTable {
    /// The slots of `key`.
    pub(super) fn get(&self, key: u32) -> impl Iterator<Item = u32> {
        let run = self.places(key).map(|place| self.entries[place]).take_while(|entry| *entry != FREE);
        run.filter(move |entry| entry.key == key).map(|entry| entry.slot)
    }

    pub(super) fn insert(&mut self, key: u32, slot: u32) {
        if 4 * (self.len + 1) > 3 * self.entries.len() {
            self.grow();
        }
        self.put(Entry { key, slot });
        self.len += 1;
    }

    /// Removes one entry; others move up where it was in their way.
    pub(super) fn remove(&mut self, key: u32, slot: u32) {
        let removed = Entry { key, slot };
        let mut run = self.places(key).take_while(|&place| self.entries[place] != FREE);
        let Some(mut hole) = run.find(|&place| self.entries[place] == removed) else { return };
        let mask = self.entries.len() - 1;
        let mut place = hole;
        loop {
            place = (place + 1) & mask;
            let entry = self.entries[place];
            if entry == FREE {
                break;
            }
            let from_home = place.wrapping_sub(self.home(entry.key)) & mask;
            if from_home >= place.wrapping_sub(hole) & mask {
                self.entries[hole] = entry;
                hole = place;
            }
        }
        self.entries[hole] = FREE;
        self.len -= 1;
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where an entry of `key` can be, best place first.
    fn places(&self, key: u32) -> impl Iterator<Item = usize> + use<> {
        let (home, len) = (self.home(key), self.entries.len());
        (0..len).map(move |step| (home + step) & (len - 1))
    }

    /// Keys in a row have every other place of a block. Which block is the upper bits of their number times the odd number
    /// next to 2^32 divided by the golden ratio (Knuth vol. 3, 6.4).
    fn home(&self, key: u32) -> usize {
        let (row, in_row) = (key / ROW, key % ROW);
        let bits = (self.entries.len() / PLACES).checked_ilog2().unwrap_or(0);
        let block = u64::from(row.wrapping_mul(0x9e37_79b1)) << bits >> 32;
        block as usize * PLACES + 2 * in_row as usize
    }

    fn put(&mut self, entry: Entry) {
        let free = self.places(entry.key).find(|&place| self.entries[place] == FREE);
        self.entries[free.expect("a quarter of the places is free")] = entry;
    }

    fn grow(&mut self) {
        let doubled = vec![FREE; (2 * self.entries.len()).max(LEAST)].into();
        let old = std::mem::replace(&mut self.entries, doubled);
        for entry in old.into_iter().filter(|entry| *entry != FREE) {
            self.put(entry);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn contents(table: &SlotTable, keys: impl IntoIterator<Item = u32>) -> BTreeSet<(u32, u32)> {
        keys.into_iter().flat_map(|key| table.get(key).map(move |slot| (key, slot))).collect()
    }

    #[test]
    fn an_empty_table_has_nothing() {
        let mut table = SlotTable::default();
        assert_eq!(table.get(7).next(), None);
        table.remove(7, 1);
        assert!(table.is_empty());
    }

    #[test]
    fn it_grows_and_empties() {
        let (mut table, keys) = (SlotTable::default(), (0..10_000u32).map(|n| n << 8));
        keys.clone().zip(0..).for_each(|(key, slot)| table.insert(key, slot));
        assert_eq!(contents(&table, keys.clone()), keys.clone().zip(0..).collect());
        keys.clone().zip(0..).for_each(|(key, slot)| table.remove(key, slot));
        assert!(table.is_empty());
        assert!(table.entries.iter().all(|entry| *entry == FREE));
    }

    #[test]
    fn keys_in_a_row_lie_close_together() {
        let mut table = SlotTable::default();
        (0..10_000).for_each(|n| table.insert(n, n));
        for row in (0..10_000).step_by(ROW as usize) {
            let homes: Vec<_> = (row..row + ROW).map(|key| table.home(key)).collect();
            assert!(homes[0].is_multiple_of(PLACES) && homes.is_sorted() && homes[7] < homes[0] + PLACES);
        }
    }

    proptest! {
        /// Few keys and slots, so that runs are long, wrap around and hold equal keys.
        #[test]
        fn it_is_a_set_of_pairs(operations in prop::collection::vec((any::<bool>(), 0..24u32, 0..4u32), 0..400)) {
            let (mut table, mut model) = (SlotTable::default(), BTreeSet::new());
            for (insert, key, slot) in operations {
                if !insert {
                    table.remove(key, slot);
                    model.remove(&(key, slot));
                } else if model.insert((key, slot)) {
                    table.insert(key, slot);
                }
                prop_assert_eq!(&contents(&table, 0..24), &model);
                prop_assert_eq!(table.len, model.len());
            }
        }
    }
}
