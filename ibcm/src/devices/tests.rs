//! A machine made of files.

use std::fs;
use std::path::PathBuf;

use ibdev::GidKind;

use super::*;

struct Fake {
    root: PathBuf,
    machine: Machine,
}

impl Fake {
    fn new(test: &str) -> Self {
        let root = std::env::temp_dir().join(format!("ibcm-devices-{test}-{}", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        let machine = Machine { sys: root.join("sys"), dev: root.join("dev"), built: true };
        Self { root, machine }
    }

    fn file(&self, path: &str, text: &str) {
        let file = self.root.join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }

    /// A RoCE device of one port, as the kernel shows it.
    fn roce(&self, name: &str, number: u8) {
        let device = format!("sys/class/infiniband/{name}");
        self.file(&format!("{device}/node_guid"), "0000:11ff:fe22:3344\n");
        for (file, text) in [
            ("state", "4: ACTIVE\n"),
            ("link_layer", "Ethernet\n"),
            ("lid", "0x0\n"),
            ("gids/0", "fe80:0000:0000:0000:0000:11ff:fe22:3344\n"),
            ("gids/1", "0000:0000:0000:0000:0000:0000:0000:0000\n"),
            ("gids/2", "0000:0000:0000:0000:0000:ffff:0a4d:0001\n"),
            ("gid_attrs/types/0", "IB/RoCE v1\n"),
            ("gid_attrs/types/2", "RoCE v2\n"),
            ("gid_attrs/ndevs/0", "veth0\n"),
        ] {
            self.file(&format!("{device}/ports/1/{file}"), text);
        }
        self.file(&format!("sys/class/infiniband_verbs/uverbs{number}/ibdev"), &format!("{name}\n"));
        self.file(&format!("dev/uverbs{number}"), "");
        for kind in ["issm", "umad"] {
            self.file(&format!("sys/class/infiniband_mad/{kind}{number}/ibdev"), &format!("{name}\n"));
            self.file(&format!("sys/class/infiniband_mad/{kind}{number}/port"), "1\n");
        }
        self.file(&format!("dev/umad{number}"), "");
    }

    fn only(&self) -> DeviceInfo {
        let mut devices = self.machine.devices();
        assert_eq!(devices.len(), 1);
        devices.remove(0)
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.root);
    }
}

#[test]
fn a_device_is_read() {
    let fake = Fake::new("read");
    fake.roce("rxe0", 0);
    let device = fake.only();
    assert_eq!((device.name.as_str(), device.node_guid), ("rxe0", Guid(0x11ff_fe22_3344)));
    assert_eq!((device.unusable, device.ib_cm), (None, false));
    let [port] = &device.ports[..] else { panic!("{:?}", device.ports) };
    assert_eq!((port.number, port.state, port.link_layer), (1, PortState::Active, LinkLayer::Ethernet));
    assert_eq!((port.lid, port.interface.as_deref()), (Lid::NONE, Some("veth0")));
    let gids: Vec<_> =
        port.gids.iter().map(|entry| (entry.index, entry.gid.to_string(), entry.kind)).collect();
    let expected = [
        (0, "fe80::11ff:fe22:3344".to_owned(), GidKind::RoceV1),
        (2, "::ffff:10.77.0.1".to_owned(), GidKind::RoceV2),
    ];
    assert_eq!(gids, expected);
    fs::create_dir_all(fake.root.join("sys/module/ib_cm")).unwrap();
    assert!(fake.only().ib_cm);
}

#[test]
fn each_lack_is_a_reason_of_its_own() {
    let fake = Fake::new("lacks");
    fake.roce("rxe0", 3);
    let file = |name: &str| fake.root.join("dev").join(name);
    fs::remove_file(file("umad3")).unwrap();
    assert_eq!(fake.only().unusable, Some(Unusable::NoFile { file: file("umad3") }));
    fs::remove_dir_all(fake.root.join("sys/class/infiniband_mad/umad3")).unwrap();
    assert_eq!(fake.only().unusable, Some(Unusable::NoMads { port: 1 }));
    fs::remove_dir_all(fake.root.join("sys/class/infiniband_mad")).unwrap();
    assert_eq!(fake.only().unusable, Some(Unusable::Module { module: "ib_umad" }));
    fs::remove_file(file("uverbs3")).unwrap();
    fs::create_dir(file("uverbs3")).unwrap();
    let kind = std::io::ErrorKind::IsADirectory;
    assert_eq!(fake.only().unusable, Some(Unusable::Refused { file: file("uverbs3"), kind }));
    fs::remove_dir_all(fake.root.join("sys/class/infiniband_verbs")).unwrap();
    assert_eq!(fake.only().unusable, Some(Unusable::Module { module: "ib_uverbs" }));
    let machine = Machine { built: false, ..fake.machine.clone() };
    assert_eq!(machine.devices()[0].unusable, Some(Unusable::NotBuilt));
}

#[test]
fn a_machine_without_rdma_has_no_devices() {
    let fake = Fake::new("none");
    assert_eq!(fake.machine.devices(), []);
}

#[cfg(feature = "verbs")]
#[test]
fn what_is_not_there_is_told_with_what_is() {
    use super::open::check;
    let fake = Fake::new("named");
    fake.roce("rxe0", 0);
    assert_eq!(check(&fake.machine, "rxe0", None).unwrap(), [1]);
    assert_eq!(check(&fake.machine, "rxe0", Some(1)).unwrap(), [1]);
    let error = |name, port| check(&fake.machine, name, port).unwrap_err().to_string();
    assert_eq!(error("rxe0", Some(2)), "rxe0 has no port 2; it has [1]");
    assert_eq!(error("mlx5_0", None), "this machine has no RDMA device mlx5_0; it has rxe0");
}
