//! Which device is meant when none is named.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use ibwire::Gid;
use tokio::runtime::Id;

use crate::device_spec::{DeviceSpec, Kind};
use crate::devices::{DeviceInfo, Machine, UnusableDevice};
use crate::error::OpenError;
use crate::hca::{Hca, WeakHca};
use crate::open::{self, Options};
use crate::sync::lock;

/// The variable that names the default device.
const VARIABLE: &str = "IBCM_DEVICE";

/// Opens the default device, or gives the one that this runtime has open.
pub(crate) async fn open(options: Options) -> Result<Hca, OpenError> {
    shared(Key::Default, None, options).await
}

/// The HCA for a connection to this address: the one that `IBCM_DEVICE` names, else the one that owns the
/// source address of the system's route.
pub(crate) async fn for_route_to(dest: IpAddr) -> Result<Hca, OpenError> {
    let source = match named()? {
        Some(_) => None,
        None => crate::route::source_to(dest).filter(|source| !source.is_loopback()),
    };
    // From any loopback address the way is the same, and without a route the path to the peer will say what is
    // wrong.
    let Some(source) = source else { return open(Options::default()).await };
    let runtime = runtime()?;
    if let Some(hca) = REGISTRY.find(runtime, |hca| hca.owns_gid(Gid::from_ip(source))) {
        return Ok(hca);
    }
    shared(Key::Address(source), Some(source), Options::default()).await
}

/// What shares a device within a runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Default,
    Address(IpAddr),
}

/// The HCAs of this process. It keeps none of them open.
#[derive(Debug)]
struct Registry {
    /// Those that are open, with their runtime.
    open: Mutex<Vec<(Id, WeakHca)>>,
    /// Those that are shared. The inner mutex lets one task open while others wait for it.
    shared: Mutex<Vec<(Id, Key, Entry)>>,
}

type Entry = Arc<tokio::sync::Mutex<WeakHca>>;

static REGISTRY: Registry = Registry { open: Mutex::new(Vec::new()), shared: Mutex::new(Vec::new()) };

impl Registry {
    /// An open HCA of a runtime.
    fn find(&self, runtime: Id, is_it: impl Fn(&Hca) -> bool) -> Option<Hca> {
        // Upgraded handles are dropped behind the lock.
        let open: Vec<Hca> = {
            let open = lock(&self.open);
            open.iter().filter(|(id, _)| *id == runtime).filter_map(|(_, hca)| hca.upgrade()).collect()
        };
        open.into_iter().find(is_it)
    }

    /// The place of a shared HCA. Those of HCAs that are closed go with the next call.
    fn entry(&self, runtime: Id, key: Key) -> Entry {
        let mut shared = lock(&self.shared);
        let is_used =
            |entry: &Entry| Arc::strong_count(entry) > 1 || entry.try_lock().is_ok_and(|hca| hca.is_alive());
        shared.retain(|(_, _, entry)| is_used(entry));
        let known = shared.iter().find(|(id, known, _)| (*id, *known) == (runtime, key));
        match known {
            Some((_, _, entry)) => Arc::clone(entry),
            None => {
                let entry = Entry::default();
                shared.push((runtime, key, Arc::clone(&entry)));
                entry
            }
        }
    }
}

/// Notes an HCA that was opened in a runtime.
pub(crate) fn register(runtime: Id, hca: &Hca) {
    let mut open = lock(&REGISTRY.open);
    open.retain(|(_, hca)| hca.is_alive());
    open.push((runtime, hca.downgrade()));
}

fn runtime() -> Result<Id, OpenError> {
    tokio::runtime::Handle::try_current().map(|runtime| runtime.id()).map_err(|_| OpenError::NoRuntime)
}

/// Gives the HCA that is open under this key, or opens the one that [`choose`] says.
async fn shared(key: Key, address: Option<IpAddr>, options: Options) -> Result<Hca, OpenError> {
    let runtime = runtime()?;
    let entry = REGISTRY.entry(runtime, key);
    let mut open_hca = entry.lock().await;
    if let Some(hca) = open_hca.upgrade() {
        return Ok(hca);
    }
    let kind = choose(address).await?;
    // Of the machine's own devices a program has one HCA each: there is one holder of the CM's class of MADs.
    let known = match &kind {
        Kind::Rdma { name, port: None } => REGISTRY.find(runtime, |hca| hca.name() == name),
        _ => None,
    };
    let hca = match known {
        Some(hca) => hca,
        None => open::open(kind, options).await?,
    };
    *open_hca = hca.downgrade();
    Ok(hca)
}

/// What `IBCM_DEVICE` names.
fn named() -> Result<Option<Kind>, OpenError> {
    match std::env::var(VARIABLE) {
        Ok(name) if !name.is_empty() => match DeviceSpec::from(name).0 {
            Ok(kind) => Ok(Some(kind)),
            Err(error) => Err(OpenError::Environment(error)),
        },
        _ => Ok(None),
    }
}

/// The rule of the default device. With an `address` the device that has it comes first, and it is the software HCA's, if it
/// comes to that.
async fn choose(address: Option<IpAddr>) -> Result<Kind, OpenError> {
    if let Some(kind) = named()? {
        return Ok(kind);
    }
    let machine = Machine::this();
    if machine.names().is_empty() {
        let kind = Kind::Soft(address.into_iter().map(|address| vec![address]).collect());
        tracing::info!(device = %kind, "no RDMA device on this machine: using a software HCA");
        return Ok(kind);
    }
    // A driver may ask its firmware before it answers.
    let devices = tokio::task::spawn_blocking(move || machine.devices()).await;
    let devices = devices.map_err(|_| OpenError::NoRuntime)?; // it is ending
    of_machine(devices, address.map(Gid::from_ip))
}

/// The one device that can be used.
fn of_machine(devices: Vec<DeviceInfo>, gid: Option<Gid>) -> Result<Kind, OpenError> {
    let (mut names, mut unusable) = (Vec::new(), Vec::new());
    for DeviceInfo { name, ports, unusable: why, .. } in devices {
        match why {
            Some(why) => unusable.push(UnusableDevice { name, why }),
            None if ports.iter().flat_map(|port| &port.gids).any(|entry| Some(entry.gid) == gid) => {
                return Ok(Kind::Rdma { name, port: None });
            }
            None => names.push(name),
        }
    }
    match (names.pop(), names.is_empty()) {
        (Some(name), true) => Ok(Kind::Rdma { name, port: None }),
        (Some(last), false) => {
            names.push(last);
            Err(OpenError::Several { devices: names })
        }
        (None, _) => Err(OpenError::NoneUsable { devices: unusable }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::Unusable;

    fn device(name: &str, unusable: Option<Unusable>) -> DeviceInfo {
        DeviceInfo {
            name: name.into(),
            node_guid: ibwire::Guid(1),
            ports: Vec::new(),
            unusable,
            ib_cm: false,
        }
    }

    #[test]
    fn the_only_one_that_can_be_opened_is_meant() {
        let devices =
            vec![device("mlx5_0", Some(Unusable::Module { module: "ib_umad" })), device("rxe0", None)];
        assert_eq!(of_machine(devices, None).unwrap().to_string(), "rxe0");
    }

    #[test]
    fn several_are_listed() {
        let error = of_machine(vec![device("mlx5_0", None), device("rxe0", None)], None).unwrap_err();
        assert!(error.to_string().contains("mlx5_0, rxe0"), "{error}");
        assert!(error.to_string().contains("IBCM_DEVICE=mlx5_0"), "{error}");
    }

    #[test]
    fn of_several_the_one_with_the_address_is_meant() {
        let address: Gid = "10.0.0.1".parse().unwrap();
        let mut second = device("rxe0", None);
        second.ports.push(crate::devices::PortInfo {
            number: 1,
            state: ibdev::PortState::Active,
            link_layer: ibdev::LinkLayer::Ethernet,
            lid: ibwire::Lid::NONE,
            gids: vec![ibdev::GidEntry { index: 0, gid: address, kind: ibdev::GidKind::RoceV2 }],
            interface: None,
        });
        let kind = of_machine(vec![device("mlx5_0", None), second], Some(address)).unwrap();
        assert_eq!(kind.to_string(), "rxe0");
    }

    #[test]
    fn a_machine_whose_devices_cannot_be_used_lists_them_with_the_reason() {
        let module = Unusable::Module { module: "ib_umad" };
        let devices = vec![device("mlx5_0", Some(module)), device("rxe0", Some(Unusable::NotBuilt))];
        let error = of_machine(devices, None).unwrap_err().to_string();
        assert!(
            error.contains("mlx5_0 (the kernel module ib_umad is not loaded: modprobe ib_umad)"),
            "{error}"
        );
        assert!(error.contains("rxe0 (this build of ibcm"), "{error}");
        assert!(error.contains("IBCM_DEVICE=soft"), "{error}");
    }
}
