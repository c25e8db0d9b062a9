//! What a device is tested with: two of its kind, and hands that do to them what no call of the contract does.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use futures::future::LocalBoxFuture;
use ibdev::{Device, DeviceEvent};
use ibwire::{Gid, Lid};
use tokio::runtime::Runtime;

use super::differs::Difference;

/// After this long a device has reported what was to report, where its time is real.
pub const REPORTED: Duration = Duration::from_millis(500);

/// A part of the contract, or of what the suite does to a device, that not all of them have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Feature {
    /// Unreliable connections.
    Uc,
    /// Datagrams.
    Ud,
    /// More than one buffer in a work request.
    ScatterGather,
    /// Messages that are copied when they are posted.
    Inline,
    /// Memory exposed by rkey: writes and reads.
    Regions,
    /// Atomics.
    Atomics,
    /// Shared receive queues.
    Srq,
    /// Draining the send queue.
    Sqd,
    /// COMM_EST, request, access and last-WQE events.
    QpEvents,
    /// The device belongs to its handles, which can close it.
    Close,
    /// Another device that it reaches, so that a class has two holders.
    TwoDevices,
    /// A second port.
    TwoPorts,
    /// Raw IPv6 and raw EtherType queue pairs.
    Raw,
    /// Alternate paths, to which connections migrate.
    PathMigration,
    /// The test can take the port of a device down and up.
    PortControl,
    /// The test can take a device away.
    Removal,
}

/// A kind of device. To put another one under test, implement this and name it in `conformance.rs`. What it does otherwise
/// than others stands in `differs.rs`.
pub trait Fixture: Sync {
    /// Stands before the names of its cases.
    fn name(&self) -> &'static str;

    /// What it lacks. Cases that need it are left out; instead one checks that it is refused.
    fn lacks(&self) -> &'static [Feature];

    /// What it does otherwise than others, and why.
    fn differs(&self) -> &'static [(Difference, &'static str)] {
        &[]
    }

    /// Whether it is there in the guest of `tests/guest` alone. Elsewhere its cases count as ignored.
    fn in_guest(&self) -> bool {
        false
    }

    /// The runtime of one case. The clock is paused if the device's time is the runtime's.
    fn runtime(&self) -> Runtime;

    /// How long a case may take. On a paused clock one that hangs is at its limit at once.
    fn limit(&self) -> Duration {
        Duration::from_secs(60)
    }

    /// Two new devices that reach each other, the same one twice if it can only reach itself.
    fn open(&self) -> LocalBoxFuture<'_, Bench>;

    /// Waits until nothing is left of a case that is over, its runtime too, or says what is. Devices that go with their case
    /// have nothing to say.
    fn nothing_left(&self) -> Result<(), String> {
        Ok(())
    }
}

/// Two devices that reach each other.
pub struct Bench {
    pub a: Arc<dyn Device>,
    pub b: Arc<dyn Device>,
    pub hands: Box<dyn Hands>,
    /// [`Fixture::differs`].
    pub differs: &'static [(Difference, &'static str)],
}

/// What is done to the devices from outside.
pub trait Hands {
    /// Takes all ports of `b` down or up. Not called where [`Feature::PortControl`] is lacking.
    fn set_ports_of_b(&self, _up: bool) {
        unreachable!("listed as lacking")
    }

    /// Takes one port of `b` down. Not called where [`Feature::PortControl`] is lacking.
    fn take_port_of_b_down(&self, _port: u8) {
        unreachable!("listed as lacking")
    }

    /// Takes `b` away. Not called where [`Feature::Removal`] is lacking.
    fn remove_b(&self) {
        unreachable!("listed as lacking")
    }

    /// Sees to it that the first port of `a` may send to a group, and both first ports hear it. The group's LID, none on
    /// Ethernet.
    fn group(&self, _mgid: Gid) -> LocalBoxFuture<'_, Lid> {
        Box::pin(async { Lid::NONE })
    }

    /// Opens `a` a second time, another handle of the same or, after [`Device::close`], the same again.
    fn open_a(&self) -> LocalBoxFuture<'_, Arc<dyn Device>>;

    /// Waits until nothing is left of what was made on the devices. All their handles were dropped before.
    fn nothing_left(&self) -> LocalBoxFuture<'_, ()>;
}

impl Bench {
    /// Drops the devices and waits until nothing is left of what was made on them.
    pub async fn nothing_left(self) {
        let Self { a, b, hands, .. } = self;
        drop((a, b));
        hands.nothing_left().await;
    }
}

/// The next event of a device that is `wanted`, and those that came before.
pub async fn event(device: &Arc<dyn Device>, wanted: DeviceEvent) -> Vec<DeviceEvent> {
    let mut before = Vec::new();
    loop {
        match poll_fn(|cx| device.poll_event(cx)).await {
            event if event == wanted => return before,
            event => before.push(event),
        }
    }
}

/// The events that wait.
pub fn events_now(device: &Arc<dyn Device>) -> Vec<DeviceEvent> {
    let mut events = Vec::new();
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    while let std::task::Poll::Ready(event) = device.poll_event(&mut cx) {
        events.push(event);
        if event == DeviceEvent::Gone {
            break;
        }
    }
    events
}
