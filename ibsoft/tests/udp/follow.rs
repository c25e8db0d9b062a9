//! Those who follow a device's events.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use ibdev::{Device, DeviceEvent};
use ibsoft::{Followed, FollowedEvents, SoftDevice};

use crate::common::loopback::Loopback;
use crate::common::soon;
use crate::device;

const DOWN: Followed = Followed::Event(DeviceEvent::PortDown(1));
const UP: Followed = Followed::Event(DeviceEvent::PortUp(1));

fn all(events: &mut FollowedEvents) -> Vec<Followed> {
    std::iter::from_fn(|| match events.try_next() {
        Poll::Ready(followed) => followed,
        Poll::Pending => None,
    })
    .collect()
}

/// Takes the port up again as soon as it is down.
struct TakesUp(SoftDevice);

impl Wake for TakesUp {
    fn wake(self: Arc<Self>) {
        self.0.set_port_up(1, true).unwrap();
    }
}

#[tokio::test]
async fn events_come_in_their_order_whoever_makes_the_next_one_meanwhile() {
    let device = device(Loopback::claim(), 1);
    let mut events = device.follow_events();
    let waker = Waker::from(Arc::new(TakesUp(device.clone())));
    assert!(device.poll_event(&mut Context::from_waker(&waker)).is_pending());
    device.set_port_up(1, false).unwrap();
    assert_eq!(all(&mut events), [DOWN, UP]);
}

#[tokio::test]
async fn who_is_late_learns_how_many_events_were_missed() {
    let device = device(Loopback::claim(), 1);
    let mut events = device.follow_events();
    for n in 0..70 {
        device.set_port_up(1, n % 2 == 1).unwrap();
    }
    let mut late = device.follow_events();
    assert_eq!(events.try_next(), Poll::Ready(Some(Followed::Missed(6))));
    assert_eq!(all(&mut events), [DOWN, UP].repeat(32));
    assert_eq!(all(&mut late), []);
    device.set_port_up(1, false).unwrap();
    assert_eq!((all(&mut events), all(&mut late)), (vec![DOWN], vec![DOWN]));
}

#[tokio::test]
async fn followers_are_woken_by_the_next_event_and_by_the_end() {
    let device = device(Loopback::claim(), 1);
    let (mut a, mut b) = (device.follow_events(), device.follow_events());
    // One that no longer waits keeps nobody from being woken.
    let mut gone = device.follow_events();
    assert!(pin!(gone.next()).as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    drop(gone);
    let acts = async { device.set_port_up(1, false).unwrap() };
    assert_eq!(soon(async { tokio::join!(a.next(), b.next(), acts) }).await, (Some(DOWN), Some(DOWN), ()));
    let ends = async { drop(device) };
    assert_eq!(soon(async { tokio::join!(a.next(), b.next(), ends) }).await, (None, None, ()));
    assert_eq!(a.try_next(), Poll::Ready(None));
}
