//! What the kernel's files say (Linux: Documentation/ABI/stable/sysfs-class-infiniband, Documentation/infiniband/user_mad.rst).

use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use ibdev::{GidEntry, GidKind, LinkLayer, PortState};
use ibwire::{Gid, Guid, Lid};

use super::{DeviceInfo, PortInfo, Unusable};

/// Where a machine keeps its devices.
#[derive(Debug, Clone)]
pub(crate) struct Machine {
    /// `/sys`.
    pub(super) sys: PathBuf,
    /// `/dev/infiniband`.
    pub(super) dev: PathBuf,
    /// Whether this build can use them.
    pub(super) built: bool,
}

impl Machine {
    pub(crate) fn this() -> Self {
        Self { sys: "/sys".into(), dev: "/dev/infiniband".into(), built: cfg!(feature = "verbs") }
    }

    /// Names of the devices. Quick.
    pub(crate) fn names(&self) -> Vec<String> {
        names(&self.sys.join("class/infiniband"))
    }

    pub(crate) fn devices(&self) -> Vec<DeviceInfo> {
        self.names().into_iter().map(|name| self.device(name)).collect()
    }

    fn device(&self, name: String) -> DeviceInfo {
        let folder = self.sys.join("class/infiniband").join(&name);
        let ports: Vec<PortInfo> =
            numbers(&folder.join("ports")).into_iter().map(|n| port(&folder, n)).collect();
        let numbers: Vec<u8> = ports.iter().map(|port| port.number).collect();
        DeviceInfo {
            node_guid: guid(&read(&folder.join("node_guid"))),
            unusable: self.check(&name, &numbers).err(),
            ib_cm: self.sys.join("module/ib_cm").exists(),
            ports,
            name,
        }
    }

    /// The numbers of a device's ports, in order. None if there is no such device.
    #[cfg(feature = "verbs")]
    pub(super) fn ports(&self, name: &str) -> Vec<u8> {
        numbers(&self.sys.join("class/infiniband").join(name).join("ports"))
    }

    /// Whether the device can be opened with these ports.
    pub(super) fn check(&self, name: &str, ports: &[u8]) -> Result<(), Unusable> {
        if !self.built {
            return Err(Unusable::NotBuilt);
        }
        let none = Unusable::Module { module: "ib_uverbs" };
        self.open("ib_uverbs", "infiniband_verbs", none, |entry| read(&entry.join("ibdev")) == name)?;
        for port in ports {
            let none = Unusable::NoMads { port: *port };
            let is_its = |entry: &Path| {
                read(&entry.join("ibdev")) == name && read(&entry.join("port")) == port.to_string()
            };
            self.open("ib_umad", "infiniband_mad", none, is_its)?;
        }
        Ok(())
    }

    /// Opens the character device of a class that `is_its`; `none` if the class has no such one.
    fn open(
        &self,
        module: &'static str,
        class: &str,
        none: Unusable,
        is_its: impl Fn(&Path) -> bool,
    ) -> Result<(), Unusable> {
        let folder = self.sys.join("class").join(class);
        if !folder.exists() {
            return Err(Unusable::Module { module });
        }
        // Beside `umad0` there is `issm0`, which is something else.
        let kind = module.trim_start_matches("ib_");
        let name =
            names(&folder).into_iter().find(|name| name.starts_with(kind) && is_its(&folder.join(name)));
        let file = self.dev.join(name.ok_or(none)?);
        match OpenOptions::new().read(true).write(true).open(&file) {
            Ok(_) => Ok(()),
            Err(error) => Err(match error.kind() {
                io::ErrorKind::PermissionDenied => Unusable::Permission { file },
                io::ErrorKind::NotFound => Unusable::NoFile { file },
                kind => Unusable::Refused { file, kind },
            }),
        }
    }
}

fn port(device: &Path, number: u8) -> PortInfo {
    let folder = device.join("ports").join(number.to_string());
    let mut indices: Vec<u16> =
        names(&folder.join("gids")).iter().filter_map(|index| index.parse().ok()).collect();
    indices.sort_unstable();
    let gids: Vec<GidEntry> = indices.into_iter().filter_map(|index| gid(&folder, index)).collect();
    let interface = gids.first().map(|first| read(&folder.join(format!("gid_attrs/ndevs/{}", first.index))));
    PortInfo {
        number,
        state: match read(&folder.join("state")).split(':').next() {
            Some("4") => PortState::Active,
            Some("2" | "3") => PortState::Initializing,
            _ => PortState::Down,
        },
        link_layer: match read(&folder.join("link_layer")).as_str() {
            "Ethernet" => LinkLayer::Ethernet,
            _ => LinkLayer::InfiniBand,
        },
        lid: lid(&read(&folder.join("lid"))),
        gids,
        interface: interface.filter(|name| !name.is_empty()),
    }
}

/// An entry of the GID table, if it is used.
fn gid(port: &Path, index: u16) -> Option<GidEntry> {
    let gid: Gid = read(&port.join(format!("gids/{index}"))).parse().ok()?;
    if gid.is_unspecified() {
        return None;
    }
    let kind = match read(&port.join(format!("gid_attrs/types/{index}"))).as_str() {
        "RoCE v2" => GidKind::RoceV2,
        "IB/RoCE v1" if read(&port.join("link_layer")) == "Ethernet" => GidKind::RoceV1,
        _ => GidKind::Infiniband,
    };
    Some(GidEntry { index, gid, kind })
}

/// As in `0x001f`.
fn lid(text: &str) -> Lid {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    u16::from_str_radix(digits, 16).map_or(Lid::NONE, Lid)
}

/// As in `0250:56ff:feb4:0001`.
fn guid(text: &str) -> Guid {
    u64::from_str_radix(&text.replace(':', ""), 16).map_or(Guid(0), Guid)
}

/// A file of one line. What can't be read is empty: an entry of a table that is not used, a device that goes away.
fn read(file: &Path) -> String {
    fs::read_to_string(file).unwrap_or_default().trim().to_owned()
}

fn numbers(folder: &Path) -> Vec<u8> {
    let mut numbers: Vec<u8> = names(folder).iter().filter_map(|name| name.parse().ok()).collect();
    numbers.sort_unstable();
    numbers
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}
