//! Traps: what a node tells the subnet manager, again and again until that has heard it.

use std::time::{Duration, Instant};

use ibsa::record::{Layout, Notice, NoticeType, Offender};
use ibwire::mad::{AttributeId, MadHeader, Method, MgmtClass};
use ibwire::{Gid, Lid, PKey, Qpn, TransactionId};

use super::{Change, Node, Smp};

/// What a trap is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    /// 128: the link of a port of this switch changed its state.
    LinkState,
    /// 144: what the port can do changed.
    Capabilities,
    /// 259: a port of this switch did not let a packet through.
    PKey { port: u8, p_key: PKey, offender: Offender },
}

/// A trap that was not repressed yet.
#[derive(Debug)]
struct Trap {
    cause: Cause,
    port: u8,
    tid: TransactionId,
    again: Instant,
    left: u8,
}

/// The traps of a node: at most one of a cause and port.
#[derive(Debug, Default)]
pub(super) struct Traps {
    pending: Vec<Trap>,
    sent: u64,
    /// When the last one about a P_Key was begun.
    p_key: Option<Instant>,
}

/// How often a trap is sent at most, and how long after the last time.
const TIMES: u8 = 8;
const PAUSE: Duration = Duration::from_secs(1);

impl Node {
    /// Has something to say by a port that has a LID.
    pub(super) fn trap(&mut self, now: Instant, port: u8, cause: Cause) {
        self.traps.sent += 1;
        let tid = TransactionId(self.guid.0 << 16 | self.traps.sent & 0xffff);
        self.traps.pending.retain(|trap| (trap.cause, trap.port) != (cause, port));
        self.traps.pending.push(Trap { cause, port, tid, again: now, left: TIMES });
        self.changes.push(Change::Trap);
    }

    /// The same about a P_Key, unless that was done a moment ago: whoever sends such packets does not make the switch send as
    /// many.
    pub(super) fn trap_p_key(&mut self, now: Instant, cause: Cause) {
        let is_early = self.traps.p_key.is_some_and(|last| now < last + PAUSE);
        let is_told = self.traps.pending.iter().any(|trap| matches!(trap.cause, Cause::PKey { .. }));
        if !is_early && !is_told {
            self.traps.p_key = Some(now);
            self.trap(now, 0, cause);
        }
    }

    /// The next trap to send, with the port whose LID it goes from and the LID of the SM.
    pub(crate) fn poll_trap(&mut self, now: Instant) -> Option<(u8, Lid, Smp)> {
        loop {
            let at = self.traps.pending.iter().position(|trap| trap.again <= now)?;
            let trap = &mut self.traps.pending[at];
            if trap.left == 0 {
                self.traps.pending.remove(at);
                self.counters.traps_given_up += 1;
                continue;
            }
            (trap.left, trap.again) = (trap.left - 1, now + PAUSE);
            let (cause, port, tid) = (trap.cause, trap.port, trap.tid);
            let info = &self.port(port)?.info;
            if info.lid == Lid::NONE || info.master_sm_lid == Lid::NONE {
                // Nobody to tell: the SM that comes looks at everything.
                self.traps.pending.remove(at);
                continue;
            }
            let header = MadHeader::new(
                MgmtClass::SUBN_LID_ROUTED,
                Smp::CLASS_VERSION,
                Method::TRAP,
                AttributeId::NOTICE,
                tid,
            );
            let smp = Smp::by_lid(header, 0, &self.notice(cause, port).to_bytes()[..64]);
            return Some((port, info.master_sm_lid, smp));
        }
    }

    /// Has nothing to say any more: the SM knows.
    pub(crate) fn forget_traps(&mut self) {
        self.traps.pending.clear();
        if let Some(forwarding) = &mut self.forwarding {
            forwarding.info.port_state_change = false;
        }
    }

    /// Whether there is something that the SM has not heard yet.
    #[cfg(test)]
    pub(crate) fn has_traps(&self) -> bool {
        !self.traps.pending.is_empty()
    }

    /// When the next trap is due.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.traps.pending.iter().map(|trap| trap.again).min()
    }

    /// The SM has heard a trap.
    pub(super) fn repress(&mut self, tid: TransactionId) {
        self.traps.pending.retain(|trap| trap.tid != tid);
    }

    fn notice(&self, cause: Cause, port: u8) -> Notice {
        let info = self.port(port).map(|port| &port.info);
        let lid = info.map_or(Lid::NONE, |info| info.lid);
        let mut data = [0; 54];
        let (kind, trap) = match cause {
            Cause::LinkState => {
                data[0..2].copy_from_slice(&lid.0.to_be_bytes());
                (NoticeType::URGENT, 128)
            }
            Cause::Capabilities => {
                let mask = info.map_or(0, |info| info.capability_mask.bits());
                data[2..4].copy_from_slice(&lid.0.to_be_bytes());
                data[6..10].copy_from_slice(&mask.to_be_bytes());
                (NoticeType::INFORMATIONAL, 144)
            }
            Cause::PKey { port, p_key, offender } => {
                let Offender { slid, dlid, sl, source_qp, destination_qp, sgid, dgid } = offender;
                // Notice bytes 10 to 60 (spec/sa.md 3.19).
                data[0..2].copy_from_slice(&valid(&offender).to_be_bytes());
                data[2..4].copy_from_slice(&slid.0.to_be_bytes());
                data[4..6].copy_from_slice(&dlid.0.to_be_bytes());
                data[6..8].copy_from_slice(&p_key.0.to_be_bytes());
                let source = u32::from(sl.get()) << 28 | source_qp.get();
                data[8..12].copy_from_slice(&source.to_be_bytes());
                data[12..16].copy_from_slice(&destination_qp.get().to_be_bytes());
                data[16..32].copy_from_slice(&sgid.0);
                data[32..48].copy_from_slice(&dgid.0);
                data[48..50].copy_from_slice(&lid.0.to_be_bytes());
                data[50] = port;
                (NoticeType::SECURITY, 259)
            }
        };
        Notice {
            is_generic: true,
            notice_type: kind,
            producer_or_vendor: if self.is_switch() { 2 } else { 1 },
            trap_or_device: trap,
            issuer_lid: lid,
            data,
            ..Notice::default()
        }
    }
}

/// Which fields of trap 259 are known, a bit for each in their order: both LIDs, P_Key, SL, both QPs, both GIDs.
fn valid(offender: &Offender) -> u16 {
    let has_source = u16::from(offender.source_qp != Qpn::SMI) << 4;
    let has_gids = if offender.dgid == Gid::UNSPECIFIED { 0 } else { 0b11 << 6 };
    0b10_1111 | has_source | has_gids
}
