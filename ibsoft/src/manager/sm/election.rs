//! Which of several managers is master (IBTA vol. 1, 14.4).

use std::time::Instant;

use ibsa::proto::after;
use ibsa::proto::rmpp::Mad;
use ibsa::record::SmState;
use ibwire::mad::{MadHeader, MadStatus, Method};
use ibwire::{Guid, Lid};

use super::discovery::Discovery;
use super::smp::{self, Path, attribute};
use super::{Phase, Purpose, SubnetManager};

/// Another manager.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rival {
    pub guid: Guid,
    pub priority: u8,
    pub state: SmState,
    pub path: Path,
}

/// What a manager tells another one, in the attribute modifier of SMInfo.
const HAND_OVER: u32 = 1;
const ACKNOWLEDGE: u32 = 2;

impl Rival {
    /// Reads SMInfo: GUID, SM_Key, count, priority and state.
    pub(super) fn read(data: &[u8], path: Path) -> Option<Self> {
        let guid = Guid(u64::from_be_bytes(*data.first_chunk()?));
        let last = *data.get(20)?;
        Some(Self { guid, priority: last >> 4, state: SmState(last & 0xf), path })
    }

    /// Whether it comes before a manager with these.
    const fn is_above(&self, priority: u8, guid: Guid) -> bool {
        self.priority > priority || self.priority == priority && self.guid.0 < guid.0
    }
}

impl SubnetManager {
    /// Decides who is master after a sweep, and goes on as one or waits.
    pub(super) fn elect(&mut self, now: Instant, found: Discovery) {
        let (own, guid) = (self.config.priority, self.config.guid);
        let master = found.rivals.iter().find(|rival| rival.state == SmState::MASTER);
        let above =
            found.rivals.iter().find(|rival| rival.is_above(own, guid) && rival.state != SmState::NOT_ACTIVE);
        let standby = match self.state {
            // Of two masters, which two subnets that grew together have, one gives way.
            SmState::MASTER => master.filter(|rival| rival.is_above(own, guid)),
            _ => master.or(above),
        };
        if let Some(rival) = standby {
            let (rival, was_master) = (rival.clone(), self.state == SmState::MASTER);
            let path = rival.path.clone();
            self.stand_by(now, rival);
            if was_master {
                self.tell(&path, Purpose::GiveWay);
            }
            return;
        }
        let was_master = self.state == SmState::MASTER;
        if self.state != SmState::MASTER {
            self.state = SmState::MASTER;
            self.counters.elected += 1;
            self.reregister = true;
        }
        self.master = None;
        self.rivals = found.rivals;
        self.paths = found.paths;
        self.hands_over = was_master;
        self.configure(found.topology);
    }

    /// Hands over to a standby that is above us, once everything that was written is answered: what is written again would
    /// undo what the other one writes.
    pub(super) fn hand_over(&mut self) {
        if !std::mem::take(&mut self.hands_over) {
            return;
        }
        if let Some(heir) = self.heir(SmState::STANDBY).cloned() {
            self.tell(&heir.path, Purpose::HandOver(heir.guid));
        }
    }

    /// The first of the managers above us, of those in a state. Only a standby can take over.
    fn heir(&self, state: SmState) -> Option<&Rival> {
        let (own, guid) = (self.config.priority, self.config.guid);
        let above = self.rivals.iter().filter(|rival| rival.state == state && rival.is_above(own, guid));
        above.max_by_key(|rival| (rival.priority, std::cmp::Reverse(rival.guid)))
    }

    /// Whether a manager above us is about to become a standby.
    pub(super) fn has_coming_heir(&self) -> bool {
        self.heir(SmState::DISCOVERING).is_some()
    }

    /// Gives the mastership to another manager.
    fn tell(&mut self, path: &Path, purpose: Purpose) {
        self.act_count = self.act_count.wrapping_add(1);
        let data = self.sm_info();
        self.ask(Method::SET, attribute::SM_INFO, HAND_OVER, path, &data, purpose);
    }

    /// Asks the other managers what they are: two subnets that became one have two masters, which no switch says.
    pub(super) fn watch(&mut self) {
        let rivals: Vec<_> = self.rivals.iter().map(|rival| (rival.guid, rival.path.clone())).collect();
        for (guid, path) in rivals {
            self.ask(Method::GET, attribute::SM_INFO, 0, &path, &[], Purpose::Watch(guid));
        }
    }

    /// Another manager has answered: there may be a second master, or one that should be.
    pub(super) fn watched(&mut self, asked: Guid, data: &[u8]) {
        let Some(rival) = Rival::read(data, Vec::new()) else { return };
        self.set_rival(asked, rival.state);
        let is_heir =
            rival.state == SmState::STANDBY && rival.is_above(self.config.priority, self.config.guid);
        self.is_stale |= rival.state == SmState::MASTER || is_heir;
    }

    /// What another manager was the last time that it was asked.
    pub(super) fn set_rival(&mut self, guid: Guid, state: SmState) {
        let rivals = self.rivals.iter_mut().filter(|rival| rival.guid == guid);
        rivals.for_each(|rival| rival.state = state);
    }

    fn stand_by(&mut self, now: Instant, master: Rival) {
        self.state = SmState::STANDBY;
        (self.is_stale, self.is_partial) = (false, false);
        self.sa.restart();
        self.phase = Phase::Idle;
        self.queue.clear();
        self.pending.clear(); // nothing is written again any more
        self.master = Some((master, 0));
        self.next = Some(after(now, self.config.poll));
    }

    /// Our SMInfo.
    fn sm_info(&self) -> [u8; 24] {
        let mut data = [0; 24];
        data[..8].copy_from_slice(&self.config.guid.0.to_be_bytes());
        data[16..20].copy_from_slice(&self.act_count.to_be_bytes());
        data[20] = self.config.priority << 4 | self.state.0 & 0xf;
        data
    }

    pub(super) fn poll_master(&mut self) {
        let Some((master, _)) = &self.master else { return };
        let path = master.path.clone();
        self.ask(Method::GET, attribute::SM_INFO, 0, &path, &[], Purpose::Poll);
    }

    /// The master has answered.
    pub(super) fn polled(&mut self, now: Instant, data: &[u8]) {
        let Some((master, missed)) = &mut self.master else { return };
        match Rival::read(data, Vec::new()) {
            Some(rival) if rival.guid == master.guid && rival.state == SmState::MASTER => {
                *missed = 0;
                self.next = Some(after(now, self.config.poll));
            }
            _ => self.poll_failed(now),
        }
    }

    /// The master has not answered, or is none: in the end we look who is there.
    pub(super) fn poll_failed(&mut self, now: Instant) {
        let Some((_, missed)) = &mut self.master else { return };
        *missed += 1;
        if *missed < self.config.polls {
            self.next = Some(after(now, self.config.poll));
            return;
        }
        self.take_over();
    }

    fn take_over(&mut self) {
        self.master = None;
        self.state = SmState::DISCOVERING;
        self.is_stale = true;
    }

    /// The new master has taken over.
    pub(super) fn handed_over(&mut self, now: Instant, heir: Guid) {
        if let Some(heir) = self.rivals.iter().find(|rival| rival.guid == heir).cloned() {
            self.stand_by(now, heir);
        }
    }

    /// Another manager asks, or hands over. One that is still looking around does not take over: it does not know what there is.
    pub(super) fn handle_sm_info(&mut self, from: Lid, header: MadHeader, mad: &Mad) {
        let is_ready = matches!(self.state, SmState::STANDBY | SmState::MASTER);
        let is_hand_over = header.method == Method::SET && header.attribute_modifier == HAND_OVER;
        let is_fine = match (header.method, header.attribute_modifier) {
            (Method::GET, _) | (Method::SET, ACKNOWLEDGE) => true,
            (Method::SET, HAND_OVER) => is_ready,
            (Method::SET, _) => false,
            _ => {
                self.counters.dropped += 1;
                return;
            }
        };
        let status = if is_fine { MadStatus::OK } else { MadStatus::INVALID_FIELD };
        if is_hand_over && is_ready {
            self.counters.elected += u64::from(self.state == SmState::STANDBY);
            self.state = SmState::MASTER;
            self.reregister = true;
            self.master = None;
            self.is_stale = true;
        }
        self.act_count = self.act_count.wrapping_add(1);
        let data = self.sm_info();
        self.out.push_back((from, smp::answer(mad, header, status, &data)));
    }
}
