//! How far many connections have got.

use std::fmt;

/// How far a [`ConnectAll`](crate::ConnectAll) has got. Displayed, it is a line such as
/// `731 of 1000 up, 0 failed, 64 in flight, 205 waiting`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Progress {
    /// Connections that were handed out, whatever became of them since.
    pub up: usize,
    /// Peers that could not be connected.
    pub failed: usize,
    /// Connections in the making.
    pub in_flight: usize,
    /// Peers whose turn has not come, or comes again. `None` if the iterator does not know how many it has.
    pub waiting: Option<usize>,
}

impl Progress {
    /// How many peers there are in all, if that is known.
    pub fn total(&self) -> Option<usize> {
        self.waiting.map(|waiting| self.up + self.failed + self.in_flight + waiting)
    }

    /// How many are up or have failed.
    pub const fn done(&self) -> usize {
        self.up + self.failed
    }
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { up, failed, in_flight, waiting } = self;
        match (self.total(), waiting) {
            (Some(total), Some(waiting)) => {
                write!(f, "{up} of {total} up, {failed} failed, {in_flight} in flight, {waiting} waiting")
            }
            _ => write!(f, "{up} up, {failed} failed, {in_flight} in flight"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line() {
        let known = Progress { up: 731, failed: 0, in_flight: 64, waiting: Some(205) };
        assert_eq!(known.to_string(), "731 of 1000 up, 0 failed, 64 in flight, 205 waiting");
        let unknown = Progress { failed: 2, waiting: None, ..known };
        assert_eq!(unknown.to_string(), "731 up, 2 failed, 64 in flight");
        assert_eq!((known.total(), unknown.total(), unknown.done()), (Some(1000), None, 733));
    }
}
