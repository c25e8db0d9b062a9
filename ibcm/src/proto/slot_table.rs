//! A table from numbers to slots, made for very many entries of which few are touched at a time.

/// Hashing into buckets of one cache line each, so that finding an entry, adding or removing one costs one line that is in no
/// cache (TimeWait can hold hundreds of thousands of connections). What finds its bucket full goes to the next one. Keys are
/// spread by multiplication only: they are drawn at random, come from a keyed hash, or are the device's own. Four keys in a
/// row have one bucket, because queue pairs are numbered in a row. Several entries may have the same key.
#[derive(Debug, Default)]
pub(super) struct SlotTable {
    /// A power of two, or none.
    buckets: Box<[Bucket]>,
    len: usize,
}

#[derive(Debug, Clone)]
#[repr(align(64))]
struct Bucket {
    keys: [u32; PLACES],
    slots: [u32; PLACES],
}

/// No slot has this number: there are far fewer connections.
const FREE: u32 = u32::MAX;
const LEAST: usize = 8;
const PLACES: usize = 8;
/// Keys that lie together.
pub(super) const ROW: u32 = 4;

/// Places of a bucket, a bit for each.
#[derive(Debug, Clone, Copy)]
struct Places(u32);

impl Places {
    #[inline]
    fn with(values: &[u32; PLACES], value: u32) -> Self {
        let bits = values.iter().zip(0..).map(|(&other, place)| u32::from(other == value) << place);
        Self(bits.fold(0, |all, bit| all | bit))
    }

    #[inline]
    fn first(self) -> Option<usize> {
        (self.0 != 0).then(|| self.0.trailing_zeros() as usize)
    }
}

impl Bucket {
    const EMPTY: Self = Self { keys: [0; PLACES], slots: [FREE; PLACES] };

    fn free(&self) -> Places {
        Places::with(&self.slots, FREE)
    }

    fn is_full(&self) -> bool {
        self.free().first().is_none()
    }

    /// Where the key is.
    fn of(&self, key: u32) -> Places {
        Places(Places::with(&self.keys, key).0 & !self.free().0)
    }

    fn place_of(&self, key: u32, slot: u32) -> Option<usize> {
        Places(Places::with(&self.keys, key).0 & Places::with(&self.slots, slot).0).first()
    }

    fn set(&mut self, place: usize, (key, slot): (u32, u32)) {
        (self.keys[place], self.slots[place]) = (key, slot);
    }

    fn entries(&self) -> impl Iterator<Item = (u32, u32)> {
        self.keys.into_iter().zip(self.slots).filter(|&(_, slot)| slot != FREE)
    }
}

/// The slots of a key.
#[derive(Debug)]
struct Run<'a> {
    table: &'a SlotTable,
    key: u32,
    /// How many buckets have been looked at; the last one of them, and where the key is in it.
    looked_at: usize,
    number: usize,
    places: Places,
}

impl Iterator for Run<'_> {
    type Item = u32;

    #[inline]
    fn next(&mut self) -> Option<u32> {
        loop {
            let bucket = self.table.buckets.get(self.number)?;
            if let Some(place) = self.places.first() {
                self.places.0 &= self.places.0 - 1;
                return Some(bucket.slots[place]);
            }
            if self.looked_at > 0 && (!bucket.is_full() || self.looked_at == self.table.buckets.len()) {
                return None;
            }
            self.number = self.table.after(self.number, usize::from(self.looked_at > 0));
            self.looked_at += 1;
            self.places = self.table.buckets[self.number].of(self.key);
        }
    }
}

impl SlotTable {
    /// The slots of `key`.
    #[inline]
    pub(super) fn get(&self, key: u32) -> impl Iterator<Item = u32> {
        Run { table: self, key, looked_at: 0, number: self.home(key), places: Places(0) }
    }

    /// Has the line of `key` brought into the caches. Several lines that are asked for one after the other come at the same time:
    /// a processor does not wait for a line before anything is decided by it.
    #[inline]
    pub(super) fn touch(&self, key: u32) {
        if let Some(bucket) = self.buckets.get(self.home(key)) {
            std::hint::black_box(bucket.slots[0]);
        }
    }

    pub(super) fn insert(&mut self, key: u32, slot: u32) {
        // At five of eight places one bucket in seven has had too many.
        if 8 * (self.len + 1) > 5 * PLACES * self.buckets.len() {
            self.grow();
        }
        self.put(key, slot);
        self.len += 1;
    }

    /// Removes one entry; one moves up for which its bucket was full.
    pub(super) fn remove(&mut self, key: u32, slot: u32) {
        let mut number = self.home(key);
        let mut looked_at = 1;
        let mut place = loop {
            let Some(bucket) = self.buckets.get(number) else { return };
            if let Some(place) = bucket.place_of(key, slot) {
                break place;
            }
            if !bucket.is_full() || looked_at == self.buckets.len() {
                return;
            }
            number = self.after(number, 1);
            looked_at += 1;
        };
        let mut hole = number;
        // While the bucket that was looked at last was full, the next one may hold what belongs before it.
        while self.buckets[number].is_full() {
            number = self.after(number, 1);
            if number == hole {
                break;
            }
            let distance = self.distance(hole, number);
            let Bucket { keys, slots } = &self.buckets[number];
            let belongs = |other: &usize| {
                slots[*other] != FREE && self.distance(self.home(keys[*other]), number) >= distance
            };
            if let Some(other) = (0..PLACES).find(belongs) {
                let moved = (keys[other], slots[other]);
                self.buckets[hole].set(place, moved);
                (hole, place) = (number, other);
            }
        }
        self.buckets[hole].slots[place] = FREE;
        self.len -= 1;
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn after(&self, number: usize, steps: usize) -> usize {
        (number + steps) & (self.buckets.len() - 1)
    }

    fn distance(&self, from: usize, to: usize) -> usize {
        to.wrapping_sub(from) & (self.buckets.len() - 1)
    }

    /// The upper bits of the number of the row times the odd number next to 2^32 divided by the golden ratio (Knuth vol. 3,
    /// 6.4).
    fn home(&self, key: u32) -> usize {
        let bits = self.buckets.len().checked_ilog2().unwrap_or(0);
        (u64::from((key / ROW).wrapping_mul(0x9e37_79b1)) << bits >> 32) as usize
    }

    /// There is a free place.
    fn put(&mut self, key: u32, slot: u32) {
        let mut number = self.home(key);
        loop {
            if let Some(place) = self.buckets[number].free().first() {
                return self.buckets[number].set(place, (key, slot));
            }
            number = self.after(number, 1);
        }
    }

    fn grow(&mut self) {
        let doubled = vec![Bucket::EMPTY; (2 * self.buckets.len()).max(LEAST)].into();
        let old = std::mem::replace(&mut self.buckets, doubled);
        for (key, slot) in old.iter().flat_map(Bucket::entries) {
            self.put(key, slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;
    use rand::SeedableRng as _;
    use rand::rngs::ChaCha8Rng;

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
        assert_eq!(table.buckets.iter().flat_map(Bucket::entries).count(), 0);
    }

    #[test]
    fn keys_in_a_row_lie_together() {
        let mut table = SlotTable::default();
        (0..10_000).for_each(|n| table.insert(n, n));
        for row in (0..10_000).step_by(ROW as usize) {
            assert!((row..row + ROW).all(|key| table.home(key) == table.home(row)));
        }
    }

    /// Hardly an entry is where it does not belong, and none is far away, at the most that there may be before the table
    /// grows: random keys, and rows of them.
    #[test]
    fn entries_lie_where_they_are_looked_for() {
        let most = 5 * PLACES * 1024 / 8;
        let mut rng = ChaCha8Rng::from_seed([1; 32]);
        let random: Vec<u32> = (0..most).map(|_| rng.next_u32()).collect();
        let rows: Vec<u32> = (0..most as u32).map(|n| 0x1234 + n).collect();
        for keys in [random, rows] {
            let mut table = SlotTable::default();
            keys.iter().for_each(|&key| table.insert(key, key));
            assert_eq!(table.buckets.len(), 1024);
            let away: Vec<_> = (0..1024)
                .flat_map(|number| table.buckets[number].entries().map(move |(key, _)| (number, key)))
                .map(|(number, key)| table.distance(table.home(key), number))
                .collect();
            assert!(away.iter().filter(|&&distance| distance > 0).count() < most / 10);
            assert!(away.iter().all(|&distance| distance < 10));
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
