//! Who receives what on the links of this machine, so that a socket may have something to itself in this process.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::RawError;
use crate::link::LinkId;

/// One claim: link, kind of socket, EtherType or next header.
pub(super) type What = (LinkId, Kind, u16);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    EtherType,
    NextHeader,
}

#[derive(Debug, Default)]
struct Claim {
    holders: usize,
    is_exclusive: bool,
}

static CLAIMS: Mutex<Option<HashMap<What, Claim>>> = Mutex::new(None);

fn claims() -> MutexGuard<'static, Option<HashMap<What, Claim>>> {
    CLAIMS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a socket holds, until it is dropped.
#[derive(Debug)]
pub(super) struct Claims(Vec<What>);

impl Claims {
    /// # Errors
    /// [`RawError::FilterConflict`] with the first that another socket holds.
    pub(super) fn new(what: Vec<What>, is_exclusive: bool) -> Result<Self, RawError> {
        let mut claims = claims();
        let claims = claims.get_or_insert_default();
        let taken = |claim: &Claim| is_exclusive || claim.is_exclusive;
        if let Some((_, kind, number)) = what.iter().find(|what| claims.get(what).is_some_and(taken)) {
            return Err(RawError::FilterConflict(match kind {
                Kind::EtherType => format!("EtherType {number:#06x}"),
                Kind::NextHeader => format!("next header {number}"),
            }));
        }
        for what in &what {
            let claim = claims.entry(*what).or_default();
            claim.holders += 1;
            claim.is_exclusive = is_exclusive;
        }
        Ok(Self(what))
    }
}

impl Drop for Claims {
    fn drop(&mut self) {
        let mut claims = claims();
        let claims = claims.get_or_insert_default();
        for what in &self.0 {
            if let Some(claim) = claims.get_mut(what) {
                claim.holders -= 1;
                if claim.holders == 0 {
                    claims.remove(what);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_t15_a_claim_is_exclusive_until_it_is_dropped() {
        let what = |number| vec![(LinkId { space: 0, index: u32::MAX }, Kind::EtherType, number)];
        let [one, two] = [0, 1].map(|_| Claims::new(what(1), false).unwrap());
        assert!(matches!(Claims::new(what(1), true), Err(RawError::FilterConflict(_))));
        drop((one, two));
        let mine = Claims::new(what(1), true).unwrap();
        for is_exclusive in [false, true] {
            assert!(matches!(Claims::new(what(1), is_exclusive), Err(RawError::FilterConflict(_))));
        }
        Claims::new(what(2), true).unwrap();
        drop(mine);
        Claims::new(what(1), false).unwrap();
    }
}
