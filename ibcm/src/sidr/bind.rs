//! Where a service is offered.

use std::net::SocketAddr;

use ibwire::{Gid, ServiceId};

use crate::error::ListenError;
use crate::hca::Hca;
use crate::proto::{self, Invalid, SidrHandling, SidrServe, SidrServiceId};
use crate::shared::Engine;

/// What peers ask for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Target {
    Service(ServiceId),
    Ip(SocketAddr),
}

impl Target {
    /// The service to offer on this HCA, at one port and GID if these are given.
    pub(super) fn serve(
        self,
        hca: &Hca,
        port: Option<u8>,
        local_gid: Option<Gid>,
        handling: SidrHandling,
    ) -> Result<SidrServe, ListenError> {
        hca.shared().has_cm()?;
        let (service_id, local_gid) = match self {
            Self::Service(service_id) => (service_id, local_gid),
            Self::Ip(address) => {
                if address.port() == 0 {
                    return Err(Invalid::at_least("IP port", 0, 1).into());
                }
                let gid = match address.ip() {
                    ip if ip.is_unspecified() => local_gid,
                    ip => Some(Gid::from_ip(ip)),
                };
                if gid.is_some_and(|gid| !hca.owns_gid(gid)) {
                    return Err(ListenError::AddressNotLocal { address: address.ip() });
                }
                (ServiceId::udp_port(address.port()), gid)
            }
        };
        let mut serve = SidrServe::reporting(service_id);
        serve.port = port;
        serve.local_gid = local_gid;
        serve.by_ip = matches!(self, Self::Ip(_));
        serve.handling = handling;
        Ok(serve)
    }
}

/// Offers a service.
pub(super) fn serve(engine: &mut Engine, serve: SidrServe) -> Result<SidrServiceId, ListenError> {
    engine.device()?;
    let service_id = serve.service_id;
    engine.endpoint.sidr_serve(serve).map_err(|error| match error {
        proto::ListenError::AddrInUse => ListenError::InUse { service_id },
        proto::ListenError::Invalid(invalid) => invalid.into(),
        proto::ListenError::DeviceRemoved => ibdev::DeviceError::Gone.into(),
    })
}
