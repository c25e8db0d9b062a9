use rand::SeedableRng;

use super::*;
use crate::client::keep::SPREAD;

const SECOND: Duration = Duration::from_secs(1);
const LEASE: u32 = 60;

/// A service that is registered and held.
fn held() -> Service {
    Service {
        key: (ServiceId::new(7), PKey::DEFAULT),
        turn: 3,
        wanted: Some(Wanted { record: Template::new(), lease: LEASE, deadline: None }),
        asking: None,
        cancelling: Vec::new(),
        at_sa: Some(Template::new()),
        due: Some(now()),
        lost: false,
        backoff: Backoff::default(),
    }
}

fn rng() -> ChaCha8Rng {
    ChaCha8Rng::from_seed([5; 32])
}

fn begins(service: &mut Service, now: Instant) -> bool {
    matches!(service.next(now), Step::Do(Work::Register(3, _)))
}

#[tokio::test]
async fn a_renewal_is_told_to_nobody_and_comes_at_half_of_the_lease() {
    let (mut service, began) = (held(), now());
    assert!(begins(&mut service, began));
    let (asking, loud) =
        service.registered(3, began, LEASE, &Ok(ServiceRecord::default()), &mut rng()).unwrap();
    assert!(asking.is_none() && !loud && !service.lost);
    assert_eq!(service.due, Some(began + 30 * SECOND));
}

/// The SM changes after the SA has answered, and before the answer is looked at.
#[tokio::test]
async fn an_answer_of_an_earlier_sm_is_not_believed() {
    let (mut service, mut rng, began) = (held(), rng(), now());
    assert!(begins(&mut service, began));
    service.renew(began + SECOND, &mut rng);
    let answer = Ok(ServiceRecord::default());
    service.registered(3, began, LEASE, &answer, &mut rng).unwrap();
    assert!(service.lost, "who holds it hears when it is there again");
    let again = began + SECOND + SPREAD;
    assert!(begins(&mut service, again), "within a second, not at half of the lease");
    let (_, loud) = service.registered(3, again, LEASE, &answer, &mut rng).unwrap();
    assert!(loud && !service.lost);
    assert_eq!(service.due, Some(again + 30 * SECOND));
}

/// Something else is registered by now, for somebody else.
#[tokio::test]
async fn an_answer_to_what_was_wanted_before_says_nothing() {
    let (mut service, began) = (held(), now());
    let (registered, _waits) = oneshot::channel();
    (service.turn, service.asking, service.due) = (4, Some(registered), Some(began));
    assert!(!service.is_wanted(3) && service.is_wanted(4));
    for answer in [Ok(ServiceRecord::default()), Err(QueryError::NoSa)] {
        assert!(service.registered(3, began, LEASE, &answer, &mut rng()).is_none());
    }
    assert!(service.asking.is_some() && service.wanted.is_some() && service.due == Some(began));
}
