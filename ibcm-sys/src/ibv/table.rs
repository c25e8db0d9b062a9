//! What is posted, by the number that libibverbs knows it by.

/// Values by numbers of 63 bits. A number is a place and how often that was used before, so what comes late for a value that
/// was taken out finds nothing.
#[derive(Debug)]
pub(super) struct Table<T> {
    places: Vec<Place<T>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Place<T> {
    /// 31 bits.
    generation: u32,
    value: Option<T>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { places: Vec::new(), free: Vec::new() }
    }
}

impl<T> Table<T> {
    /// The bit that no number has.
    pub(super) const SPARE_BIT: u64 = 1 << 63;

    pub(super) fn insert(&mut self, value: T) -> u64 {
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                self.places.push(Place { generation: 0, value: None });
                self.places.len() as u32 - 1
            }
        };
        let place = &mut self.places[index as usize];
        place.value = Some(value);
        u64::from(place.generation) << 32 | u64::from(index)
    }

    pub(super) fn remove(&mut self, number: u64) -> Option<T> {
        let place = self.places.get_mut(number as u32 as usize)?;
        if u64::from(place.generation) != number >> 32 {
            return None;
        }
        let value = place.value.take()?;
        place.generation = (place.generation + 1) & (u32::MAX >> 1);
        self.free.push(number as u32);
        Some(value)
    }

    /// Takes out all values that `is_wanted`, in the order in which they were not necessarily put in.
    pub(super) fn remove_all(&mut self, is_wanted: impl Fn(&T) -> bool) -> Vec<T> {
        let numbers: Vec<_> = (0..)
            .zip(&self.places)
            .filter(|(_, place)| place.value.as_ref().is_some_and(&is_wanted))
            .map(|(index, place): (u64, _)| u64::from(place.generation) << 32 | index)
            .collect();
        numbers.into_iter().filter_map(|number| self.remove(number)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_never_anothers() {
        let mut table = Table::default();
        let (a, b) = (table.insert('a'), table.insert('b'));
        assert_eq!((table.remove(a), table.remove(a)), (Some('a'), None));
        let c = table.insert('c');
        assert!(c != a && c != b);
        assert_eq!((table.remove(a), table.remove(b), table.remove(c)), (None, Some('b'), Some('c')));
        assert_eq!(table.remove(u64::MAX), None);
    }

    #[test]
    fn some_are_taken_out_and_the_rest_stays() {
        let mut table = Table::default();
        let numbers: Vec<_> = (0..10).map(|n| table.insert(n)).collect();
        assert_eq!(table.remove_all(|n| n % 3 == 0), [0, 3, 6, 9]);
        assert_eq!((table.remove(numbers[3]), table.remove(numbers[4])), (None, Some(4)));
    }
}
