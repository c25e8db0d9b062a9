//! The passive side: who serves what, and how requests are answered.

use std::collections::BTreeMap;
use std::time::Instant;

use ibdev::MadSource;
use ibwire::{CommId, Gid, Lid, PrivateData, Qpn, ServiceId, TransactionId};

use super::super::command::Listen;
use super::super::config::Config;
use super::super::core::{Core, encoded};
use super::super::endpoint::ListenerId;
use super::super::error::{CommandError, ListenError};
use super::super::ids::{Keyed, Source};
use super::super::invalid::{Invalid, Limit, Value};
use super::super::listeners::{Listeners, Wanted};
use super::super::local::LocalCa;
use super::super::message::{IpHeader, SidrRep, SidrReq, SidrStatus, VendorId};
use super::Sidr;
use super::command::{SidrAnswer, SidrHandling, SidrServe};
use super::event::{SidrEvent, SidrRequest};
use super::handle::{SidrRequestHandle, SidrServiceId};
use super::requests::{Key, Known, Pending};

/// All services. They are found by the rules of listeners.
#[derive(Debug)]
pub(super) struct Services {
    listeners: Listeners,
    services: BTreeMap<ListenerId, Service>,
}

#[derive(Debug)]
struct Service {
    by_ip: bool,
    /// `None`: requests are reported.
    answer: Option<Box<SidrAnswer>>,
}

impl Services {
    pub(super) fn new(keyed: Keyed) -> Self {
        Self { listeners: Listeners::new(keyed), services: BTreeMap::new() }
    }

    pub(super) fn shut(&mut self) {
        self.listeners.shut();
    }
}

impl Sidr {
    pub(in super::super) fn serve(
        &mut self,
        config: &Config,
        serve: SidrServe,
    ) -> Result<SidrServiceId, ListenError> {
        let mut listen = Listen::new(serve.service_id);
        listen.port = serve.port;
        listen.local_gid = serve.local_gid;
        let answer = match serve.handling {
            SidrHandling::Answer(answer) => {
                check_answer(&answer)?;
                Some(answer)
            }
            SidrHandling::Report { backlog } => {
                listen.backlog = backlog;
                None
            }
        };
        let id = self.services.listeners.insert(listen, config)?;
        self.services.services.insert(id, Service { by_ip: serve.by_ip, answer });
        Ok(SidrServiceId(id))
    }

    /// Serves it no more. What was reported is still to be answered.
    pub(in super::super) fn unserve(&mut self, service: SidrServiceId) {
        self.services.listeners.remove(service.0);
        self.services.services.remove(&service.0);
    }

    pub(in super::super) fn pending_requests(&self, service: SidrServiceId) -> Option<usize> {
        self.services.listeners.pending(service.0)
    }

    pub(in super::super) fn overflowed_requests(&self, service: SidrServiceId) -> Option<u64> {
        self.services.listeners.overflowed(service.0)
    }

    /// A SIDR_REQ came in.
    pub(in super::super) fn handle_req(
        &mut self,
        core: &mut Core,
        now: Instant,
        from: &MadSource,
        tid: TransactionId,
        req: &SidrReq,
    ) {
        let key = Key { source: Source::of(from), id: req.request_id, service_id: req.service_id };
        match self.requests.find(now, &key) {
            Some(Known::Pending) => {
                core.stats.dropped_duplicate += 1;
                return;
            }
            Some(Known::Answered(mad)) => {
                core.stats.repeated_answers += 1;
                core.answer(from.reply(), *mad);
                return;
            }
            None => {}
        }
        let found = self
            .services
            .listeners
            .find(&wanted(&core.ca, from, req.service_id))
            .and_then(|id| Some((id, self.services.services.get(&id)?)));
        let Some((id, service)) = found else {
            return refuse(core, from, tid, req, SidrStatus::UNSUPPORTED_SERVICE);
        };
        let ip = match service.by_ip.then(|| IpHeader::split(&req.private_data)) {
            None => None,
            Some(Ok((header, _))) => Some(header),
            Some(Err(error)) => {
                tracing::debug!(%error, "SIDR_REQ without a proper IP header");
                return refuse(core, from, tid, req, SidrStatus::REJECTED);
            }
        };
        if let Some(answer) = &service.answer {
            core.stats.sidr_published += 1;
            core.answer_with(from.reply(), tid, reply(req.request_id, req.service_id, answer));
            return;
        }
        if self.services.listeners.is_full(id) {
            self.services.listeners.overflow(id);
            return refuse(core, from, tid, req, SidrStatus::REJECTED);
        }
        core.stats.sidr_requests += 1;
        self.services.listeners.request_added(id);
        let back = core.sgids.address(from.reply());
        let service = SidrServiceId(id);
        let handle = self.requests.insert(Pending { key, tid, back, service });
        let request = Box::new(SidrRequest { req: req.clone(), from: *from, ip });
        self.events.push_back(SidrEvent::Request { handle, service, request });
    }

    /// Answers a request that was reported.
    pub(in super::super) fn answer(
        &mut self,
        core: &mut Core,
        now: Instant,
        handle: SidrRequestHandle,
        answer: &SidrAnswer,
    ) -> Result<(), CommandError> {
        check_answer(answer)?;
        let Pending { key, tid, back, service } = self.requests.take(handle).ok_or(CommandError::Gone)?;
        self.services.listeners.request_decided(service.0);
        let mad = encoded(tid, reply(key.id, key.service_id, answer));
        self.requests.remember(now, now.checked_add(core.config.sidr_answer_linger), key, &mad);
        core.stats.sidr_answers += 1;
        if let Some(out) = core.mad(&back, mad) {
            core.reject(out.to, out.mad);
        }
        Ok(())
    }

    /// Refuses whatever waits for an answer.
    pub(in super::super) fn refuse_all(&mut self, core: &mut Core, now: Instant) {
        let undecided: Vec<_> = self.requests.undecided().collect();
        for handle in undecided {
            if let Err(error) = self.answer(core, now, handle, &SidrAnswer::refusal(SidrStatus::REJECTED)) {
                tracing::debug!(%error, "not refused");
            }
        }
    }
}

fn reply(request_id: CommId, service_id: ServiceId, answer: &SidrAnswer) -> SidrRep {
    SidrRep {
        request_id,
        status: answer.status,
        info: answer.info.encode(),
        vendor_id: VendorId::truncate(0),
        qpn: answer.qpn,
        service_id,
        qkey: answer.qkey,
        private_data: answer.private_data,
    }
}

fn refuse(core: &mut Core, from: &MadSource, tid: TransactionId, req: &SidrReq, status: SidrStatus) {
    tracing::debug!(request = %req.request_id, service = %req.service_id, %status, "refusing a SIDR_REQ");
    core.stats.sidr_refused += 1;
    core.answer_with(from.reply(), tid, SidrRep::refusal(req.request_id, req.service_id, status));
}

/// An answer that says which queue pair has to name one that takes datagrams.
fn check_answer(answer: &SidrAnswer) -> Result<(), Invalid> {
    if answer.status != SidrStatus::VALID || answer.qpn > Qpn::GSI && answer.qpn < Qpn::MULTICAST {
        return Ok(());
    }
    let must = Limit::Must("one that takes datagrams, 2..=0xfffffe");
    Err(Invalid::new("queue pair", Value::Qpn(answer.qpn), must))
}

/// Where a request is addressed to: where it came in. Without a GRH its GID is that of the port. It has no path, and no
/// private data by which listeners are told apart.
fn wanted(ca: &LocalCa, from: &MadSource, service_id: ServiceId) -> Wanted<'static> {
    let port = ca.port(from.port);
    let by_index = from.grh.and_then(|grh| port?.gids.iter().find(|entry| entry.index == grh.sgid_index));
    let gid = by_index.map(|entry| entry.gid).or_else(|| port?.preferred_gid()).unwrap_or(Gid::UNSPECIFIED);
    let lid = port.map_or(Lid::NONE, |port| Lid(port.lid.0 | u16::from(from.path_bits)));
    Wanted { service_id, port: from.port, gid, lid, private_data: &PrivateData::EMPTY }
}
