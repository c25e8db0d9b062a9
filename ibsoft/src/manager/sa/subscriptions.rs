//! Subscriptions to what happens, and the reports to subscribers (spec/sa.md 6.2 and 6.3).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use ibsa::mad::{RmppHeader, SaHeader};
use ibsa::proto::after;
use ibsa::proto::rmpp::Mad;
use ibsa::record::{InformInfo, InformInfoRecord, Layout, Notice, NoticeDetails, NoticeType};
use ibwire::mad::{AttributeId, MadHeader, MadStatus, Method, MgmtClass};
use ibwire::{Gid, Lid, Qpn, TransactionId};

use super::answer::{Answer, Rows, mad};
use super::records::select;
use super::request::{Request, status};
use super::{Peer, Sa};

/// Traps about keys, which only the trusted hear of.
const SECURITY_TRAPS: std::ops::RangeInclusive<u16> = 256..=259;
/// The class manager as producer of a notice.
const CLASS_MANAGER: u32 = 4;
/// Attribute offset of InformInfo, 36 bytes; OpenSM rounds down.
const OFFSET: u16 = 4;
/// The first transaction ID of reports.
const FIRST_TID: u64 = 0x02da_b000;

/// All subscriptions.
#[derive(Debug, Default)]
pub(super) struct Subscriptions {
    by_key: BTreeMap<Key, Subscription>,
    /// Reports without an answer, by their transaction ID, and when each is due again.
    reports: BTreeMap<u64, Report>,
    due: BTreeSet<(Instant, u64)>,
    sent: u64,
}

/// What makes two subscriptions the same one: who, and to what.
type Key = (Gid, Qpn, Vec<u8>);

#[derive(Debug)]
struct Subscription {
    info: InformInfo,
    peer: Peer,
    is_trusted: bool,
}

#[derive(Debug)]
struct Report {
    peer: Peer,
    mad: Mad,
    due: Instant,
    left: u32,
}

impl Subscriptions {
    /// None, as a service that starts anew; the numbers of its reports go on.
    pub(super) fn restart(&mut self) {
        *self = Self { sent: self.sent, ..Self::default() };
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.due.first().map(|(due, _)| *due)
    }

    /// Ends the subscriptions of ports that are gone.
    pub(super) fn forget(&mut self, is_gone: impl Fn(Gid) -> bool) {
        self.by_key.retain(|(subscriber, ..), _| !is_gone(*subscriber));
    }
}

impl Subscription {
    /// Whether a notice about the end port with `about` and `lid` is wanted here.
    fn wants(&self, notice: &Notice, about: Gid, lid: Lid) -> bool {
        let info = &self.info;
        let any = |wanted: u16, it: u16| wanted == InformInfo::ANY || wanted == it;
        let producer = info.producer_or_vendor;
        let in_range = info.lid_range_begin == InformInfo::ANY_LID
            || info.lid_range_begin == Lid::NONE
            || (info.lid_range_begin..=info.lid_range_end).contains(&lid);
        let is_secret = notice.is_generic && SECURITY_TRAPS.contains(&notice.trap_or_device);
        (info.is_generic == 1) == notice.is_generic
            && (self.is_trusted || !is_secret)
            && any(info.notice_type, u16::from(notice.notice_type.0))
            && any(info.trap_or_device, notice.trap_or_device)
            && (producer == InformInfo::ANY_PRODUCER || producer == notice.producer_or_vendor)
            && if info.gid.is_unspecified() { in_range } else { info.gid == about }
    }
}

impl Sa {
    pub(super) fn subscribe(&mut self, request: &Request<'_>) -> Result<Answer, MadStatus> {
        let info: InformInfo = request.record()?;
        let gid = request.requester.map(|at| self.topology.gid(at)).ok_or(status::INVALID)?;
        let is_secret = info.is_generic == 1 && SECURITY_TRAPS.contains(&info.trap_or_device);
        if info.subscribe > 1 || is_secret && !request.is_trusted {
            return Err(status::INVALID);
        }
        let mut shape = info.clone();
        (shape.subscribe, shape.qpn, shape.resp_time) = (1, Qpn::SMI, Default::default());
        let answer = Answer::One(info.to_bytes(), OFFSET);
        if info.subscribe == 0 {
            let key = (gid, info.qpn, shape.to_bytes());
            return self.subscriptions.by_key.remove(&key).map(|_| answer).ok_or(status::INVALID);
        }
        let key = (gid, request.from.qpn, shape.to_bytes());
        let is_new = !self.subscriptions.by_key.contains_key(&key);
        if is_new && self.subscriptions.by_key.len() >= self.config.limits.subscriptions {
            self.counters.no_resources += 1;
            return Err(status::NO_RESOURCES);
        }
        let info = InformInfo { qpn: request.from.qpn, ..info };
        self.subscriptions
            .by_key
            .insert(key, Subscription { info, peer: request.from, is_trusted: request.is_trusted });
        Ok(answer)
    }

    pub(super) fn subscription_records(&self, request: &Request<'_>) -> Result<Rows, MadStatus> {
        let wanted: InformInfoRecord = request.record()?;
        let mut rows = Rows::new(&self.config.limits);
        let mut numbers = BTreeMap::<Gid, u16>::new();
        for ((subscriber_gid, ..), subscription) in &self.subscriptions.by_key {
            let number = numbers.entry(*subscriber_gid).or_default();
            let enumeration = *number;
            *number = number.wrapping_add(1);
            let mut inform_info = subscription.info.clone();
            if !request.is_trusted {
                inform_info.qpn = Qpn::SMI;
            }
            let record = InformInfoRecord { subscriber_gid: *subscriber_gid, enumeration, inform_info };
            let at = self.topology.at_gid(*subscriber_gid);
            let shares =
                |(at, own): (_, crate::manager::PortAt)| self.topology.device_shares_p_key(own.node, at);
            if at.zip(request.requester).is_some_and(shares) {
                select(&mut rows, request, &record, &wanted)?;
            }
        }
        Ok(rows)
    }

    /// Tells all subscribers that want to know.
    pub(super) fn notify(&mut self, now: Instant, what: NoticeDetails) {
        let (trap, about) = match what {
            NoticeDetails::GidIn(gid) => (64, gid),
            NoticeDetails::GidOut(gid) => (65, gid),
            NoticeDetails::GroupCreated(gid) => (66, gid),
            NoticeDetails::GroupDeleted(gid) => (67, gid),
            _ => return,
        };
        let mut data = [0; 54];
        data[6..22].copy_from_slice(&about.0);
        let issuer_lid = self.managers.first().map_or(Lid::NONE, |own| own.lid);
        let issuer = self.topology.at_lid(issuer_lid).map_or(Gid::UNSPECIFIED, |at| self.topology.gid(at));
        let notice = Notice {
            is_generic: true,
            notice_type: NoticeType::SUBNET_MANAGEMENT,
            producer_or_vendor: CLASS_MANAGER,
            trap_or_device: trap,
            issuer_lid,
            data,
            issuer_gid: issuer,
            ..Notice::default()
        };
        self.report(now, &notice, about);
    }

    /// Passes a notice on to the subscribers that want it: its own, or a trap of a port (spec/sa.md 6.4).
    pub fn report(&mut self, now: Instant, notice: &Notice, about: Gid) {
        let lid = self
            .topology
            .at_gid(about)
            .and_then(|at| self.topology.port(at))
            .map_or(notice.issuer_lid, |port| port.info.lid);
        let subscribers = self.subscriptions.by_key.values().filter(|it| it.wants(notice, about, lid));
        let peers: BTreeSet<Peer> = subscribers.map(|subscription| subscription.peer).collect();
        for peer in peers {
            if self.subscriptions.reports.len() >= self.config.limits.reports {
                self.counters.drop_reports += 1;
                continue;
            }
            self.subscriptions.sent += 1;
            let tid = FIRST_TID + self.subscriptions.sent;
            let method = Method::REPORT;
            let header = MadHeader::new(
                MgmtClass::SA,
                SaHeader::CLASS_VERSION,
                method,
                AttributeId::NOTICE,
                TransactionId(tid),
            );
            let header = SaHeader { rmpp: RmppHeader::default(), ..SaHeader::new(header) };
            let mad = mad(&header, &notice.to_bytes());
            let (due, left) = (after(now, self.config.report_timeout), self.config.report_retries);
            self.subscriptions.reports.insert(tid, Report { peer, mad, due, left });
            self.subscriptions.due.insert((due, tid));
            self.counters.reports += 1;
            self.send(now, peer, mad);
        }
    }

    /// A subscriber has heard a report.
    pub(super) fn handle_report_response(&mut self, from: &Peer, header: &SaHeader) {
        let tid = header.mad.tid.0;
        let is_of = |report: &Report| (report.peer.lid, report.peer.qpn) == (from.lid, from.qpn);
        match self.subscriptions.reports.get(&tid).filter(|report| is_of(report)) {
            Some(report) => {
                let due = report.due;
                self.subscriptions.due.remove(&(due, tid));
                self.subscriptions.reports.remove(&tid);
            }
            None => self.counters.drop_response += 1,
        }
    }

    /// Sends again what nobody answered, and gives up in the end; the subscription stays.
    pub(super) fn repeat_reports(&mut self, now: Instant) {
        while let Some((_, tid)) = self.subscriptions.due.first().filter(|(due, _)| *due <= now).copied() {
            self.subscriptions.due.pop_first();
            let Some(report) = self.subscriptions.reports.get_mut(&tid) else { continue };
            if report.left == 0 {
                self.subscriptions.reports.remove(&tid);
                self.counters.reports_given_up += 1;
                continue;
            }
            report.left -= 1;
            report.due = after(now, self.config.report_timeout);
            let (peer, mad) = (report.peer, report.mad);
            self.subscriptions.due.insert((report.due, tid));
            self.send(now, peer, mad);
        }
    }
}
