//! Opening an HCA.

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use ibdev::{AgentSpec, Device, DeviceError};
use ibsa::mad::SaHeader;
use ibwire::mad::{Method, MgmtClass};
use pin_project::pin_project;
use rand::rngs::{ChaCha8Rng, SysRng};
use rand::{RngExt, SeedableRng, TryRng};

use crate::closing::Patience;
use crate::default_device;
use crate::device_spec::{DeviceSpec, Kind};
#[cfg(not(feature = "verbs"))]
use crate::devices::Unusable;
use crate::driver::{Driver, local_port, open_agents};
use crate::error::OpenError;
use crate::hca::Hca;
use crate::mad_capture::MadCapture;
use crate::proto::{Config, Endpoint, LocalCa};
use crate::shared::Shared;

/// How to open an HCA: a builder that is itself the future of the [`Hca`].
///
/// # Errors
/// [`OpenError`]: no such device, several where none was named, somebody else holds it or its address, no tokio runtime.
///
/// # Cancel safety
/// Dropped, nothing is open.
#[pin_project(!Unpin)]
#[must_use = "nothing is opened before it is awaited"]
pub struct Open {
    config: Option<OpenConfig>,
    run: Option<BoxFuture<'static, Result<Hca, OpenError>>>,
}

#[derive(Clone)]
struct OpenConfig {
    /// `None`: the default device.
    device: Option<DeviceSpec>,
    options: Options,
}

/// What is set besides the device.
#[derive(Clone, Default)]
pub(crate) struct Options {
    config: Config,
    pcap: Option<PathBuf>,
    rng_seed: Option<[u8; 32]>,
}

impl Open {
    pub(crate) fn named(device: DeviceSpec) -> Self {
        Self::new(Some(device))
    }

    pub(crate) fn default_device() -> Self {
        Self::new(None)
    }

    fn new(device: Option<DeviceSpec>) -> Self {
        Self { config: Some(OpenConfig { device, options: Options::default() }), run: None }
    }

    fn set(mut self, f: impl FnOnce(&mut Options)) -> Self {
        if let Some(config) = &mut self.config {
            f(&mut config.options);
        }
        self
    }

    /// Bounds and habits of the connection manager.
    pub fn config(self, config: Config) -> Self {
        self.set(|options| options.config = config)
    }

    /// Writes to this file, for Wireshark: every packet of a software HCA that is named here (`soft`), as RoCEv2 over
    /// Ethernet; of any other device the MADs that the connection manager sends and receives, as InfiniBand packets. The
    /// file can be read at any time. What can't be written is counted.
    ///
    /// Of a MAD the device shows no more than its address: its PSN is the number in the file, over RoCE the GIDs
    /// stand in the GRH and the LIDs are 0. A device of a [`sim::Subnet`](crate::sim::Subnet) counts as another one:
    /// [`Subnet::write_pcap`](crate::sim::Subnet::write_pcap) writes all packets of a subnet.
    pub fn pcap(self, file: impl Into<PathBuf>) -> Self {
        self.set(|options| options.pcap = Some(file.into()))
    }

    /// The seed of communication IDs, PSNs and all else that is random. Default: from the operating system, and
    /// for a device of a [`sim::Subnet`](crate::sim::Subnet) from the subnet's seed.
    pub fn rng_seed(self, seed: [u8; 32]) -> Self {
        self.set(|options| options.rng_seed = Some(seed))
    }
}

impl OpenConfig {
    async fn run(self) -> Result<Hca, OpenError> {
        match self.device {
            Some(device) => open(device.0?, self.options).await,
            None => default_device::open(self.options).await,
        }
    }
}

/// Opens the device, starts its connection manager.
pub(crate) async fn open(kind: Kind, options: Options) -> Result<Hca, OpenError> {
    let runtime = tokio::runtime::Handle::try_current().map_err(|_| OpenError::NoRuntime)?;
    let name = kind.to_string().into_boxed_str();
    let mut patience = Patience::with(&name);
    let opened = loop {
        match open_device(&kind, &options).await {
            Err(OpenError::Device { source: DeviceError::InUse { .. }, .. }) if patience.rest().await => {}
            opened => break opened?,
        }
    };
    start(opened, options, runtime).await.map_err(|source| OpenError::Device { device: name, source })
}

/// A device as it was opened.
struct Opened {
    device: Arc<dyn Device>,
    /// The ports to use.
    ports: Vec<u8>,
    /// What it does not capture itself.
    capture: Option<MadCapture>,
}

async fn open_device(kind: &Kind, options: &Options) -> Result<Opened, OpenError> {
    let failed = |source| match source {
        DeviceError::NoRuntime => OpenError::NoRuntime,
        source => OpenError::Device { device: kind.to_string().into(), source },
    };
    let all = |device: &dyn Device| (1..=device.attr().ports).collect();
    let capture = || {
        let capture = options.pcap.as_deref().map(MadCapture::create).transpose();
        capture.map_err(|error| failed(DeviceError::os("create the pcap file", error)))
    };
    match kind {
        #[cfg(feature = "soft")]
        Kind::Soft(ports) => {
            let mut config = ibsoft::UdpConfig::with_ports(ports.clone());
            config.pcap = options.pcap.clone();
            config.rng_seed = options.rng_seed;
            let device = ibsoft::SoftDevice::bind(config).map_err(failed)?;
            Ok(Opened { ports: all(&device), device: Arc::new(device), capture: None })
        }
        #[cfg(not(feature = "soft"))]
        Kind::Soft(_) => {
            let why = "this build of ibcm has no software HCA: turn the feature `soft` on";
            Err(OpenError::NotBuilt { device: kind.to_string().into(), why })
        }
        Kind::Open(device) => {
            Ok(Opened { ports: all(&**device), device: Arc::clone(device), capture: capture()? })
        }
        #[cfg(feature = "verbs")]
        Kind::Rdma { name, port } => {
            let (device, ports) = crate::devices::open(name, *port).await?;
            Ok(Opened { ports, device, capture: capture()? })
        }
        #[cfg(not(feature = "verbs"))]
        Kind::Rdma { .. } => {
            Err(OpenError::Unusable { device: kind.to_string().into(), why: Unusable::NotBuilt })
        }
        #[cfg(all(feature = "ibsim", target_os = "linux"))]
        Kind::Ibsim(node) => {
            let device = ibsoft::IbsimDevice::attach(node).map_err(failed)?;
            Ok(Opened { ports: all(&device), device: Arc::new(device), capture: capture()? })
        }
        #[cfg(not(all(feature = "ibsim", target_os = "linux")))]
        Kind::Ibsim(_) => {
            let why = "this build of ibcm cannot use ibsim: turn the feature `ibsim` on, on Linux";
            Err(OpenError::NotBuilt { device: kind.to_string().into(), why })
        }
    }
}

async fn start(
    Opened { device, ports, capture }: Opened,
    options: Options,
    runtime: tokio::runtime::Handle,
) -> Result<Hca, DeviceError> {
    let seed = match options.rng_seed.or_else(|| draw_seed(&*device)) {
        Some(seed) => seed,
        None => random_seed()?,
    };
    let mut rng = ChaCha8Rng::from_seed(seed);
    let mut local = Vec::new();
    for port in &ports {
        local.push(local_port(device.read_port(*port).await?));
    }
    let mut patience = Patience::with(&device.attr().name);
    let agents = loop {
        match open_agents(&*device, &ports) {
            Err(DeviceError::InUse { .. }) if patience.rest().await => {}
            agents => break agents,
        }
    };
    patience.for_sa(|| is_sa_in_use(&*device, &ports)).await;
    let agents = match agents {
        // What needs no connection manager is left.
        Err(error @ DeviceError::InUse { .. }) => {
            tracing::warn!(device = device.attr().name, %error, "neither listening nor connecting is possible");
            Err(error)
        }
        agents => Ok(agents?),
    };
    let endpoint = Endpoint::new(options.config, LocalCa::new(device.attr(), local), rng.random());
    let no_cm = agents.as_ref().err().cloned();
    let shared = Shared::new(endpoint, Arc::clone(&device), no_cm, runtime.clone(), rng);
    #[cfg(feature = "soft")]
    if let Some(device) = device.as_any().downcast_ref::<ibsoft::SoftDevice>() {
        let probe: Arc<dyn ibsoft::sim::Probe> = shared.clone();
        device.add_probe(Arc::downgrade(&probe));
    }
    runtime.spawn(Driver::new(Arc::clone(&shared), device, agents.unwrap_or_default(), capture));
    let hca = Hca::from_shared(shared);
    default_device::register(runtime.id(), &hca);
    Ok(hca)
}

/// Whether somebody holds the agent for the SA of one of these ports.
fn is_sa_in_use(device: &dyn Device, ports: &[u8]) -> bool {
    let is_in_use = |port: &u8| {
        let (class, class_version) = (MgmtClass::SA, SaHeader::CLASS_VERSION);
        let spec = AgentSpec { port: *port, class, class_version, methods: &[Method::REPORT] };
        matches!(device.open_agent(spec), Err(DeviceError::InUse { .. }))
    };
    ports.iter().any(is_in_use)
}

/// The seed that a simulated device gives, so that its subnet's seed decides everything.
#[cfg(feature = "soft")]
fn draw_seed(device: &dyn Device) -> Option<[u8; 32]> {
    device.as_any().downcast_ref::<ibsoft::SoftDevice>()?.draw_seed()
}

#[cfg(not(feature = "soft"))]
fn draw_seed(_device: &dyn Device) -> Option<[u8; 32]> {
    None
}

fn random_seed() -> Result<[u8; 32], DeviceError> {
    let mut seed = [0; 32];
    let filled = SysRng.try_fill_bytes(&mut seed);
    filled.map_err(|error| DeviceError::os("read random numbers", std::io::Error::other(error)))?;
    Ok(seed)
}

impl Future for Open {
    type Output = Result<Hca, OpenError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        crate::builder::poll(this.config, this.run, OpenConfig::run, cx)
    }
}

impl std::fmt::Debug for Open {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let device = self.config.as_ref().map(|config| &config.device);
        f.debug_struct("Open").field("device", &device).finish_non_exhaustive()
    }
}
