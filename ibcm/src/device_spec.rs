//! How a device is named.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use ibdev::Device;

/// Which device to open: what [`Hca::open`](crate::Hca::open) takes and `IBCM_DEVICE` holds.
///
/// | text | device |
/// |---|---|
/// | `soft` | a software HCA on the lowest free address 127.0.0.N |
/// | `soft:10.0.0.1`, `soft:10.0.0.1,fd00::1` | a software HCA with these addresses as its GIDs |
/// | `soft:10.0.0.1+10.0.1.1` | a software HCA with two ports, each with an address |
/// | `rxe0`, `rxe0/1` | an RDMA device of this machine with all its ports, or with this one; needs the feature `verbs` |
/// | `ibsim:Hca1` | a simulated HCA of a running ibsim |
///
/// `ibsim` needs the feature of that name.
///
/// A text that is none of these is reported by the future that opens the device.
#[derive(Debug, Clone)]
pub struct DeviceSpec(pub(crate) Result<Kind, ParseDeviceError>);

#[derive(Debug, Clone)]
pub(crate) enum Kind {
    /// The addresses of each port. Without ports: the lowest free 127.0.0.N.
    Soft(Vec<Vec<IpAddr>>),
    /// Open already.
    Open(Arc<dyn Device>),
    /// A device of this machine; without a port all of them.
    Rdma {
        name: String,
        port: Option<u8>,
    },
    Ibsim(String),
}

/// The text does not name a device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no device: {why}")]
pub struct ParseDeviceError {
    text: String,
    why: &'static str,
}

impl DeviceSpec {
    /// A software HCA that has `addresses` as its GIDs. Without addresses: the lowest free 127.0.0.N.
    pub fn soft(addresses: impl IntoIterator<Item = IpAddr>) -> Self {
        let addresses = Vec::from_iter(addresses);
        Self::soft_ports(if addresses.is_empty() { Vec::new() } else { vec![addresses] })
    }

    /// A software HCA whose ports have these addresses as their GIDs.
    pub fn soft_ports(ports: impl IntoIterator<Item = Vec<IpAddr>>) -> Self {
        Self(Ok(Kind::Soft(ports.into_iter().collect())))
    }
}

impl FromStr for DeviceSpec {
    type Err = ParseDeviceError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).map(|kind| Self(Ok(kind)))
    }
}

fn parse(text: &str) -> Result<Kind, ParseDeviceError> {
    let error = |why| ParseDeviceError { text: text.chars().take(64).collect(), why };
    let (kind, rest) = match text.split_once(':') {
        Some((kind, rest)) => (kind, Some(rest)),
        None => (text, None),
    };
    match (kind, rest) {
        ("soft", None) => Ok(Kind::Soft(Vec::new())),
        ("soft", Some(ports)) => {
            let address = |address: &str| address.trim().parse();
            let port = |list: &str| list.split(',').map(address).collect::<Result<Vec<IpAddr>, _>>();
            let ports = ports.split('+').map(port).collect::<Result<_, _>>();
            ports.map(Kind::Soft).map_err(|_| error("IP addresses are expected after soft:"))
        }
        ("ibsim", Some(name)) if is_name(name) => Ok(Kind::Ibsim(name.to_owned())),
        ("ibsim", _) => Err(error("the name of a simulated HCA is expected after ibsim:")),
        (name, None) => {
            let (device, port) = match name.split_once('/') {
                Some((device, port)) => (device, Some(port.parse().unwrap_or(0))),
                None => (name, None),
            };
            match is_name(device) && port != Some(0) {
                true => Ok(Kind::Rdma { name: device.to_owned(), port }),
                false => Err(error("soft, soft:ADDRESS, NAME, NAME/PORT or ibsim:NAME is expected")),
            }
        }
        _ => Err(error("soft, soft:ADDRESS, NAME, NAME/PORT or ibsim:NAME is expected")),
    }
}

/// As the kernel names devices; also keeps paths out of what is looked up in /sys.
fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'))
}

impl From<&str> for DeviceSpec {
    fn from(text: &str) -> Self {
        Self(parse(text))
    }
}

impl From<&String> for DeviceSpec {
    fn from(text: &String) -> Self {
        Self(parse(text))
    }
}

impl From<String> for DeviceSpec {
    fn from(text: String) -> Self {
        Self(parse(&text))
    }
}

impl From<IpAddr> for DeviceSpec {
    fn from(address: IpAddr) -> Self {
        Self::soft([address])
    }
}

/// [`Hca::close`](crate::Hca::close) closes the device for its other handles, too, unless it is a subnet's.
#[cfg(feature = "soft")]
impl From<ibsoft::SoftDevice> for DeviceSpec {
    fn from(device: ibsoft::SoftDevice) -> Self {
        Self(Ok(Kind::Open(Arc::new(device))))
    }
}

/// For devices of other crates. The device contract is not stable yet.
#[doc(hidden)]
impl From<Arc<dyn Device>> for DeviceSpec {
    fn from(device: Arc<dyn Device>) -> Self {
        Self(Ok(Kind::Open(device)))
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Soft(ports) => {
                f.write_str("soft")?;
                let mut separator = ':';
                for port in ports {
                    for address in port {
                        write!(f, "{separator}{address}")?;
                        separator = ',';
                    }
                    separator = '+';
                }
                Ok(())
            }
            Self::Open(device) => f.write_str(&device.attr().name),
            Self::Rdma { name, port: None } => f.write_str(name),
            Self::Rdma { name, port: Some(port) } => write!(f, "{name}/{port}"),
            Self::Ibsim(name) => write!(f, "ibsim:{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_and_print() {
        for text in [
            "soft",
            "soft:127.0.0.1",
            "soft:10.0.0.1,fd00::1",
            "soft:10.0.0.1,fd00::1+10.0.1.1",
            "rxe0",
            "mlx5_0/2",
            "ibsim:Hca1",
        ] {
            assert_eq!(parse(text).unwrap().to_string(), text);
        }
        assert!(matches!(parse("soft:10.0.0.1, fd00::1").unwrap(), Kind::Soft(ports) if ports[0].len() == 2));
    }

    #[test]
    fn what_is_no_device_says_what_is_expected() {
        for text in [
            "",
            "soft:",
            "soft:10.0.0",
            "soft:10.0.0.1,",
            "soft:10.0.0.1+",
            "rxe0/0",
            "rxe0/x",
            "../rxe0",
            "ibsim",
            "ibsim:",
            "x:y",
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains("expected"), "{error}");
        }
    }
}
