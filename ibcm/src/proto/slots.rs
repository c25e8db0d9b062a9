//! Slots for the connections of an endpoint.

/// Numbered places, of which the one freed last is filled first: it is in the caches. They lie in blocks, so that one more
/// never moves the others, and what leaves a slot is dropped where it is: nothing of it is read that its end does not need.
#[derive(Debug)]
pub(super) struct Slots<T> {
    blocks: Vec<Box<[Option<T>]>>,
    vacant: Vec<u32>,
    len: usize,
}

const BLOCK: usize = 64;

impl<T> Slots<T> {
    pub(super) const fn new() -> Self {
        Self { blocks: Vec::new(), vacant: Vec::new(), len: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The slot that [`Slots::insert`] fills next.
    pub(super) fn next(&mut self) -> u32 {
        if self.vacant.is_empty() {
            let first = (self.blocks.len() * BLOCK) as u32;
            self.blocks.push((0..BLOCK).map(|_| None).collect());
            self.vacant.extend((first..first + BLOCK as u32).rev());
        }
        *self.vacant.last().expect("a new block has vacant slots")
    }

    pub(super) fn insert(&mut self, value: T) {
        let slot = self.next();
        self.vacant.pop();
        self.blocks[slot as usize / BLOCK][slot as usize % BLOCK] = Some(value);
        self.len += 1;
    }

    pub(super) fn remove(&mut self, slot: u32) {
        if let Some(place) = self.place(slot)
            && place.is_some()
        {
            *place = None;
            self.vacant.push(slot);
            self.len -= 1;
        }
    }

    pub(super) fn get(&self, slot: u32) -> Option<&T> {
        self.blocks.get(slot as usize / BLOCK)?[slot as usize % BLOCK].as_ref()
    }

    pub(super) fn get_mut(&mut self, slot: u32) -> Option<&mut T> {
        self.place(slot)?.as_mut()
    }

    /// Empties all slots, in their order.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = T> {
        let Self { blocks, .. } = std::mem::replace(self, Self::new());
        blocks.into_iter().flatten().flatten()
    }

    fn place(&mut self, slot: u32) -> Option<&mut Option<T>> {
        Some(&mut self.blocks.get_mut(slot as usize / BLOCK)?[slot as usize % BLOCK])
    }
}

impl<T> std::ops::Index<u32> for Slots<T> {
    type Output = T;

    fn index(&self, slot: u32) -> &T {
        self.get(slot).expect("tables name filled slots")
    }
}

impl<T> std::ops::IndexMut<u32> for Slots<T> {
    fn index_mut(&mut self, slot: u32) -> &mut T {
        self.get_mut(slot).expect("tables name filled slots")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_filled_again() {
        let mut slots = Slots::new();
        for n in 0..3 * BLOCK as u32 {
            assert_eq!(slots.next(), n);
            slots.insert(n);
        }
        slots.remove(7);
        slots.remove(7);
        assert_eq!((slots.get(7), slots.len()), (None, 3 * BLOCK - 1));
        assert_eq!(slots.next(), 7);
        slots.insert(1000);
        slots[8] += 1;
        assert_eq!((slots[7], slots[8], slots.get(3 * BLOCK as u32)), (1000, 9, None));
        slots.remove(3 * BLOCK as u32);
        assert_eq!((slots.drain().count(), slots.len()), (3 * BLOCK, 0));
    }
}
