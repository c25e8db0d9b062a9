//! Looking again and again instead of sleeping, for programs to which a microsecond matters more than a core.

use std::hint::spin_loop;
use std::time::{Duration, Instant};

use crate::proto::{Invalid, Limit, Value};

/// The thread does nothing else meanwhile, not even what keeps other connections alive.
const LONGEST: Duration = Duration::from_millis(10);

/// Refuses a time that is out of range.
pub(crate) fn check(time: Duration) -> Result<(), Invalid> {
    match time {
        _ if time > LONGEST => {
            Err(Invalid::new("busy poll", Value::Time(time), Limit::AtMost(Value::Time(LONGEST))))
        }
        _ => Ok(()),
    }
}

/// Looks before the clock is asked for the first time: what comes at once comes without it.
const FIRST: u32 = 8;

/// Looks until there is something, for about so long: an eighth more at most, but for [`FIRST`] looks and the last one. The
/// clock may cost more than a look, on some machines much more, so it is asked a dozen times or so.
pub(crate) fn busy_poll<T>(time: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    if time.is_zero() {
        return None;
    }
    let mut looks = |count| {
        (0..count).find_map(|_| {
            spin_loop();
            look()
        })
    };
    if let Some(found) = looks(FIRST) {
        return Some(found);
    }
    // Real time: virtual time stands still meanwhile.
    let (start, mut elapsed, mut batch) = (Instant::now(), Duration::ZERO, 1);
    while elapsed < time {
        if let Some(found) = looks(batch) {
            return Some(found);
        }
        elapsed = start.elapsed();
        if elapsed < time / 8 {
            batch *= 2;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_ends_with_the_time_or_with_success() {
        let time = Duration::from_micros(100);
        let (start, mut looks) = (Instant::now(), 0);
        let nothing = busy_poll(time, || {
            looks += 1;
            None::<()>
        });
        assert!(nothing.is_none() && start.elapsed() >= time && looks > 0);
        let mut looks = 0;
        let found = busy_poll(LONGEST, || {
            looks += 1;
            (looks == 3).then_some(looks)
        });
        assert_eq!(found, Some(3));
        assert_eq!(busy_poll(Duration::ZERO, || Some(())), None);
    }

    #[test]
    fn it_is_bounded() {
        assert!(check(Duration::ZERO).is_ok() && check(LONGEST).is_ok());
        let refused = check(LONGEST + Duration::from_nanos(1)).unwrap_err();
        assert_eq!(refused.field, "busy poll");
    }
}
