//! The raw queue pairs of the ports, and what they take.

use ibdev::{DeviceAttr, DeviceError, RawFilter, RawTypes, RawView};
use ibwire::packet::NextHeader;
use ibwire::{Gid, Lid, Qpn};

use super::super::limit::one_more;
use super::super::qp::State;
use super::super::{DESTROYED, Engine};

/// A raw QP that has a port.
#[derive(Debug)]
pub(in super::super) struct Entry {
    pub(super) qpn: Qpn,
    pub(super) port: u8,
    pub(super) next: NextHeader,
    pub(super) filter: RawFilter,
    groups: Vec<(Gid, Lid)>,
}

impl Entry {
    /// Whether it is for packets of this kind on this port.
    pub(super) fn hears(&self, port: u8, next: NextHeader) -> bool {
        self.port == port && self.next == next
    }

    /// Whether it takes what is sent to `dlid`.
    pub(super) fn views(&self, dlid: Lid) -> bool {
        self.filter.view == RawView::Port
            || !dlid.is_multicast()
            || self.groups.iter().any(|(_, mlid)| *mlid == dlid)
    }
}

/// The raw QPs that have a port.
#[derive(Debug, Default)]
pub(in super::super) struct Raws(Vec<Entry>);

impl Raws {
    pub(super) fn get(&self, at: usize) -> Option<&Entry> {
        self.0.get(at)
    }

    pub(super) fn of(&self, qpn: Qpn) -> Option<&Entry> {
        self.0.iter().find(|entry| entry.qpn == qpn)
    }

    /// Gives a QP its port, or another one: it takes everything of its type from RTR on.
    ///
    /// # Errors
    /// [`DeviceError::Limit`] for too many on the port.
    pub(in super::super) fn enter(
        &mut self,
        qpn: Qpn,
        port: u8,
        next: NextHeader,
        device: &DeviceAttr,
    ) -> Result<(), DeviceError> {
        let (what, limit) = match next {
            NextHeader::RawIpv6 => ("raw IPv6 queue pairs on the port", device.max_raw_ipv6_qp),
            _ => ("raw EtherType queue pairs on the port", device.max_raw_ethertype_qp),
        };
        let others = self.0.iter().filter(|entry| entry.hears(port, next) && entry.qpn != qpn).count();
        one_more(what, others, limit as usize)?;
        self.leave(qpn);
        self.0.push(Entry { qpn, port, next, filter: RawFilter::default(), groups: Vec::new() });
        Ok(())
    }

    /// Takes its port from a QP.
    pub(in super::super) fn leave(&mut self, qpn: Qpn) {
        self.0.retain(|entry| entry.qpn != qpn);
    }

    /// A QP takes what is sent to the LID of a group from now on.
    pub(in super::super) fn attach(&mut self, qpn: Qpn, mgid: Gid, mlid: Lid) {
        if let Some(entry) = self.0.iter_mut().find(|entry| entry.qpn == qpn)
            && !entry.groups.contains(&(mgid, mlid))
        {
            entry.groups.push((mgid, mlid));
        }
    }

    /// No more.
    pub(in super::super) fn detach(&mut self, qpn: Qpn, mgid: Gid, mlid: Lid) {
        if let Some(entry) = self.0.iter_mut().find(|entry| entry.qpn == qpn) {
            entry.groups.retain(|group| *group != (mgid, mlid));
        }
    }

    fn set_filter(&mut self, qpn: Qpn, filter: RawFilter) -> Result<(), DeviceError> {
        let Some(own) = self.of(qpn) else { return Err(DeviceError::State { state: "RESET" }) };
        let is_claimed = |other: &Entry| {
            other.qpn != qpn
                && other.hears(own.port, own.next)
                && (other.filter.exclusive || filter.exclusive)
                && other.filter.types.overlaps(&filter.types)
        };
        if self.0.iter().any(is_claimed) {
            return Err(DeviceError::InUse {
                what: "a protocol of the port",
                holder: "another raw queue pair; one of the two wants it alone",
            });
        }
        if let Some(entry) = self.0.iter_mut().find(|entry| entry.qpn == qpn) {
            entry.filter = filter;
        }
        Ok(())
    }
}

impl Engine {
    /// Says which packets a raw QP takes, in INIT.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] for another QP, or for a next header beyond 255; [`DeviceError::State`] in another state;
    /// [`DeviceError::InUse`] if one of the types is claimed by another QP of the port, or is to be claimed and another one
    /// takes it.
    pub fn set_raw_filter(&mut self, qpn: Qpn, filter: RawFilter) -> Result<(), DeviceError> {
        let qp = self.qps.get(qpn).ok_or(DeviceError::State { state: DESTROYED })?;
        let Some(raw) = qp.raw() else {
            return Err(DeviceError::Unsupported { what: "a filter of a QP that is not raw" });
        };
        if qp.state != State::Init {
            return Err(DeviceError::State { state: qp.state.name() });
        }
        if let (NextHeader::RawIpv6, RawTypes::Only(values)) = (raw.next(), &filter.types)
            && let Some(value) = values.iter().find(|value| **value > 255)
        {
            return Err(DeviceError::Limit { what: "next header", value: (*value).into(), limit: 255 });
        }
        self.shared.raws.set_filter(qpn, filter)
    }
}
