use std::time::{Duration, Instant};

use ibwire::mad::MadStatus;
use ibwire::{Gid, Lid};
use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;
use tokio::sync::oneshot;

use super::entry::{Attempt, Joiner, PortGroup, Work};
use crate::client::keep::{SPREAD, Step};
use crate::proto::client::{QueryError, SaStatus};
use crate::record::{JoinState, McMemberRecord};

const MGID: Gid = Gid([0xff, 0x15, 0xa0, 0x1b, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7]);

fn now() -> Instant {
    crate::client::shared::now()
}

fn rng() -> ChaCha8Rng {
    ChaCha8Rng::from_seed([5; 32])
}

/// A group that somebody wants to be in, and what keeps him waiting.
fn wanted() -> (PortGroup, impl Sized) {
    let (joined, joining) = oneshot::channel();
    let mut group = PortGroup::new(MGID);
    let deadline = now() + Duration::from_secs(60);
    group.join(Joiner { kind: JoinState::FULL_MEMBER, deadline, tries: 0, joined }, None);
    (group, joining)
}

fn attempt(group: &mut PortGroup, now: Instant) -> Attempt {
    match group.next_step(now) {
        Step::Do(Work::Join(attempt)) => attempt,
        other => panic!("{other:?}"),
    }
}

fn record(mlid: u16) -> McMemberRecord {
    McMemberRecord { mgid: MGID, mlid: Lid(mlid), ..McMemberRecord::default() }
}

/// The SM changes after the SA has answered, and before the answer is looked at.
#[tokio::test]
async fn sa_t57_an_attempt_at_an_earlier_sm_says_nothing() {
    let denied = QueryError::Status(SaStatus(MadStatus(0x0700)));
    for answer in [Ok(record(0xc001)), Err(denied)] {
        let ((mut group, waiting), mut rng, now) = (wanted(), rng(), now());
        let before = attempt(&mut group, now);
        group.join_again(now, &mut rng);
        let outcome = group.joined(now, &before, Some(answer), &mut rng);
        assert!(outcome.joined.is_empty() && outcome.failed.is_empty() && outcome.news.is_none());
        let now = now + SPREAD;
        let again = attempt(&mut group, now);
        let outcome = group.joined(now, &again, Some(Ok(record(0xc002))), &mut rng);
        assert_eq!(outcome.joined.len(), 1);
        assert_eq!(outcome.news.unwrap().unwrap().mlid, Lid(0xc002));
        drop(waiting);
    }
}
