//! Which device is meant when none is named.

use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};

use ibwire::Gid;
use tokio::runtime::Id;

use crate::device_spec::{DeviceSpec, Kind};
use crate::error::{OpenError, UnusableDevice};
use crate::hca::{Hca, WeakHca};
use crate::open::{self, Options};
use crate::sync::lock;

/// The variable that names the default device.
const VARIABLE: &str = "IBCM_DEVICE";

/// Opens the default device, or gives the one that this runtime has open.
pub(crate) async fn open(options: Options) -> Result<Hca, OpenError> {
    shared(Key::Default, || choose(None), options).await
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
    if let Some(hca) = REGISTRY.owner_of(runtime, Gid::from_ip(source)) {
        return Ok(hca);
    }
    shared(Key::Address(source), || choose(Some(source)), Options::default()).await
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
    /// Those that are shared. The inner mutex lets one task open while others wait.
    shared: Mutex<Vec<(Id, Key, Entry)>>,
}

type Entry = Arc<Mutex<WeakHca>>;

static REGISTRY: Registry = Registry { open: Mutex::new(Vec::new()), shared: Mutex::new(Vec::new()) };

impl Registry {
    /// The open HCA of a runtime that has this GID.
    fn owner_of(&self, runtime: Id, gid: Gid) -> Option<Hca> {
        // Upgraded handles are dropped behind the lock.
        let open: Vec<Hca> = {
            let open = lock(&self.open);
            open.iter().filter(|(id, _)| *id == runtime).filter_map(|(_, hca)| hca.upgrade()).collect()
        };
        open.into_iter().find(|hca| hca.owns_gid(gid))
    }

    /// The place of a shared HCA. Those of HCAs that are closed go with the next call.
    fn entry(&self, runtime: Id, key: Key) -> Entry {
        let mut shared = lock(&self.shared);
        shared.retain(|(_, _, entry)| Arc::strong_count(entry) > 1 || lock(entry).is_alive());
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

/// Gives the HCA that is open under this key, or opens it.
async fn shared(
    key: Key,
    choose: impl FnOnce() -> Result<Kind, OpenError>,
    options: Options,
) -> Result<Hca, OpenError> {
    let entry = REGISTRY.entry(runtime()?, key);
    let mut open_hca = lock(&entry);
    if let Some(hca) = open_hca.upgrade() {
        return Ok(hca);
    }
    let hca = open::open(choose()?, options)?;
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

/// The rule of the default device; `address` is the software HCA's, if it comes to that.
fn choose(address: Option<IpAddr>) -> Result<Kind, OpenError> {
    if let Some(kind) = named()? {
        return Ok(kind);
    }
    let unusable = rdma_devices(Path::new("/sys/class/infiniband"));
    if !unusable.is_empty() {
        return Err(OpenError::NoneUsable { devices: unusable });
    }
    let kind = Kind::Soft(address.into_iter().map(|address| vec![address]).collect());
    tracing::info!(device = %kind, "no RDMA device on this machine: using a software HCA");
    Ok(kind)
}

/// The machine's RDMA devices. This version can use none of them.
fn rdma_devices(folder: &Path) -> Vec<UnusableDevice> {
    let names = || -> io::Result<Vec<String>> {
        let entries = std::fs::read_dir(folder)?;
        let mut names: Vec<_> = entries
            .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
            .collect();
        names.sort();
        Ok(names)
    };
    let why = "this version of ibcm cannot use the machine's own RDMA devices yet";
    names().unwrap_or_default().into_iter().map(|name| UnusableDevice { name, why }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_with_rdma_devices_lists_them_with_the_reason() {
        let folder = std::env::temp_dir().join(format!("ibcm-default-device-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("mlx5_0")).unwrap();
        std::fs::create_dir_all(folder.join("rxe0")).unwrap();
        let devices = rdma_devices(&folder);
        std::fs::remove_dir_all(&folder).unwrap();
        let error = OpenError::NoneUsable { devices }.to_string();
        assert!(error.contains("mlx5_0 (this version"), "{error}");
        assert!(error.contains("rxe0 (this version"), "{error}");
        assert!(error.contains("IBCM_DEVICE=soft"), "{error}");
    }

    #[test]
    fn a_machine_without_rdma_devices_has_none() {
        assert_eq!(rdma_devices(Path::new("/nonexistent")), []);
    }
}
