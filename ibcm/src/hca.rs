//! A handle on an open HCA.

use std::fmt;
use std::sync::{Arc, Weak};

use ibwire::{Gid, Qpn};

use crate::closing;
use crate::device_spec::DeviceSpec;
use crate::error::Error;
use crate::events::HcaEvents;
use crate::handshake;
use crate::open::Open;
use crate::path::{Origin, PathBuilder};
use crate::port::{Port, first_gid};
use crate::shared::{Shared, Unavailable};
use crate::stats::Stats;

/// An open HCA (host channel adapter): the device, its connection manager and all their connections.
///
/// A cheap handle; clones are the same HCA. When the last one is dropped, [`Listener`](crate::Listener),
/// [`Port`], [`Path`](crate::Path) and [`Domain`](crate::Domain) being handles too, it closes as soon as its last
/// connection has ended, in the background; [`close`](Hca::close) waits for that. Who opens the same device again waits up to
/// two seconds for it, and up to five more while a silent SA does not confirm what it gives up there. When the runtime ends, all ends at once.
#[derive(Clone)]
pub struct Hca(Arc<Handle>);

/// Dropped with the last handle.
struct Handle {
    shared: Arc<Shared>,
}

/// An HCA that is not kept open by it.
#[derive(Default)]
pub(crate) struct WeakHca(Weak<Handle>);

impl WeakHca {
    /// The HCA, if it is still open.
    pub(crate) fn upgrade(&self) -> Option<Hca> {
        let handle = self.0.upgrade()?;
        let open = handle.shared.device().is_ok();
        open.then_some(Hca(handle))
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.0.strong_count() > 0
    }
}

impl fmt::Debug for WeakHca {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WeakHca(alive: {})", self.is_alive())
    }
}

impl Hca {
    /// Opens a device: `"soft"` is a software HCA on a free address 127.0.0.N; see [`DeviceSpec`] for the other
    /// names.
    ///
    /// ```
    /// # use ibcm::Hca;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let hca = Hca::open("soft").await?;
    /// println!("{} at {}", hca.name(), hca.gid());
    /// hca.close().await;
    /// # Ok(())
    /// # }
    /// ```
    pub fn open(device: impl Into<DeviceSpec>) -> Open {
        Open::named(device.into())
    }

    /// Opens the device that is meant when none is named: the one in `IBCM_DEVICE`; else the machine's only
    /// RDMA device; a software HCA on loopback only if the machine has no RDMA device at all.
    ///
    /// It is shared within a tokio runtime: as long as a handle lives, the next call gives the same HCA, and
    /// the settings of [`Open`] count for the call that opens it.
    pub fn open_default() -> Open {
        Open::default_device()
    }

    pub(crate) fn from_shared(shared: Arc<Shared>) -> Self {
        Self(Arc::new(Handle { shared }))
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.0.shared
    }

    pub(crate) fn downgrade(&self) -> WeakHca {
        WeakHca(Arc::downgrade(&self.0))
    }

    /// The device's name.
    pub fn name(&self) -> &str {
        &self.0.shared.name
    }

    /// How peers dial this HCA: the GID of its first active port, or of its first port if none is active.
    pub fn gid(&self) -> Gid {
        let engine = self.shared().engine();
        let ports = &engine.endpoint.local_ca().ports;
        let port = ports.iter().find(|port| port.active).or(ports.first());
        port.map_or(Gid::UNSPECIFIED, first_gid)
    }

    /// Its ports.
    pub fn ports(&self) -> Vec<Port> {
        let numbers: Vec<u8> =
            self.shared().engine().endpoint.local_ca().ports.iter().map(|port| port.number).collect();
        numbers.into_iter().map(|number| Port::new(self.clone(), number)).collect()
    }

    /// The port with this number, from 1.
    pub fn port(&self, number: u8) -> Option<Port> {
        let known = self.shared().engine().endpoint.local_ca().port(number).is_some();
        known.then(|| Port::new(self.clone(), number))
    }

    pub(crate) fn owns_gid(&self, gid: Gid) -> bool {
        self.shared().engine().endpoint.local_ca().ports.iter().any(|port| port.gid_index(gid).is_some())
    }

    /// Whether its reliable connections can have an alternate path
    /// ([`Connect::alternate_path`](crate::Connect::alternate_path)), as its device says.
    pub fn path_migration(&self) -> bool {
        self.shared().engine().endpoint.local_ca().path_migration
    }

    /// Finds a path to the port with this GID, from the first port that has one. If none has, the error is that of the first port
    /// whose SA failed, if one did.
    pub fn path_to(&self, dgid: Gid) -> PathBuilder {
        PathBuilder::new(Origin::Any(self.ports()), dgid)
    }

    /// Queries to the SA of its subnet: that of the first active InfiniBand port. On RoCE there is none, and every request
    /// fails at once with [`SaError::Device`](crate::sa::SaError::Device). In a [`sim::Subnet`](crate::sim::Subnet) there is one
    /// if it was built with `managed()`; elsewhere a request without an SA fails with [`SaError::NoSa`](crate::sa::SaError::NoSa)
    /// when its time is up, 75 s by default.
    pub fn sa(&self) -> crate::sa::Client {
        let number = {
            let engine = self.shared().engine();
            let ports = &engine.endpoint.local_ca().ports;
            let of_subnet = |port: &&crate::proto::LocalPort| port.link_layer == ibdev::LinkLayer::InfiniBand;
            let active = ports.iter().filter(of_subnet).find(|port| port.active);
            active.or(ports.iter().find(of_subnet)).map_or(1, |port| port.number)
        };
        self.shared().sa.of(self.shared(), number)
    }

    /// The queue pair with this number has received its first packet: its peer considers the connection established. It counts
    /// as the RTU, should that be lost; at any other time it does nothing.
    ///
    /// It is for queue pairs of the program's own ([`handshake`](crate::handshake)): `IBV_EVENT_COMM_EST` is the event, and
    /// a first completed receive says the same. For its own queue pairs, and for those whose events come to this HCA's
    /// device, the SDK does it.
    pub fn comm_established(&self, qpn: Qpn) {
        self.shared().comm_established(qpn);
    }

    /// Its counters at this moment.
    pub fn stats(&self) -> Stats {
        let shared = self.shared();
        let (cm, device) = {
            let engine = shared.engine();
            (engine.endpoint.stats(), engine.raw_device().cloned())
        };
        let device = device.map(|device| device.counters()).unwrap_or_default();
        Stats { cm, hca: shared.counters.snapshot(), device }
    }

    /// What happens to it from now on: ports going down and up, changes of their GIDs.
    ///
    /// ```
    /// # use ibcm::{Hca, HcaEvent, sim::Subnet};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use futures::StreamExt;
    /// # let net = Subnet::star(["here", "there"]).await?;
    /// # let hca = Hca::open(net.device("here")).await?;
    /// let mut events = hca.events();
    /// # net.link_down("here");
    /// if let Some(HcaEvent::PortDown { port }) = events.next().await {
    ///     println!("port {port} is down");
    /// }
    /// # net.link_up("here");
    /// # assert_eq!(events.next().await, Some(HcaEvent::PortUp { port: 1 }));
    /// # Ok(())
    /// # }
    /// ```
    pub fn events(&self) -> HcaEvents {
        HcaEvents::new(&self.shared().events, None)
    }

    /// Waits until no request, connection or TimeWait is left. Listeners may stay.
    ///
    /// # Cancel safety
    /// A dropped future has no effect.
    pub async fn wait_idle(&self) {
        handshake::until(&self.shared().parked, || self.shared().is_idle()).await;
    }

    /// Closes: listeners take nothing more, requests that are undecided are rejected, connections are
    /// disconnected, and when the last TimeWait is over the device is closed. All handles answer `Closed` then. What is kept
    /// at an SA, by whoever holds it, is given up before, which a silent SA holds up for 5 s at most: groups, also those of
    /// datagram sockets, services and subscriptions.
    /// When this returns, the device can be opened again at once: a software HCA's addresses are free, whoever still
    /// has handles. A device that was given is closed for its other handles, too; one of a
    /// [`sim::Subnet`](crate::sim::Subnet) is the subnet's and stays. May be repeated.
    ///
    /// # Cancel safety
    /// Once polled, it goes on in the background.
    pub async fn close(&self) {
        self.shared().close();
        handshake::until(&self.shared().parked, || self.shared().engine().device_closed).await;
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        closing::note(&self.shared);
        self.shared.abandon();
    }
}

/// Clones of one handle are equal, and so are those of the default HCA.
impl PartialEq for Hca {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0.shared, &other.0.shared)
    }
}

impl Eq for Hca {}

impl fmt::Debug for Hca {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hca({})", self.name())
    }
}

impl From<Unavailable> for Error {
    fn from(unavailable: Unavailable) -> Self {
        match unavailable {
            Unavailable::Gone => Self::Device(ibdev::DeviceError::Gone),
            Unavailable::Closed => Self::Closed,
        }
    }
}
