//! What the wires have counted.

use super::trace::Fate;

/// What became of all packets.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct FabricCounters {
    pub sent: u64,
    pub delivered: u64,
    pub duplicated: u64,
    pub lost: u64,
    pub partitioned: u64,
    pub link_down: u64,
    pub no_route: u64,
    pub removed: u64,
    pub overrun: u64,
    pub corrupted: u64,
    pub damaged: u64,
    pub circling: u64,
    pub no_vl: u64,
    pub too_long: u64,
    pub hoq_life: u64,
    pub pkey: u64,
    pub raw_filtered: u64,
    pub no_agent: u64,
    pub smp_discarded: u64,
}

impl FabricCounters {
    /// Counts what became of a packet.
    pub(super) fn count(&mut self, fate: Fate) {
        *match fate {
            Fate::Flying => return,
            Fate::Delivered(_) => &mut self.delivered,
            Fate::Lost => &mut self.lost,
            Fate::Partitioned => &mut self.partitioned,
            Fate::LinkDown => &mut self.link_down,
            Fate::NoRoute => &mut self.no_route,
            Fate::Removed => &mut self.removed,
            Fate::Overrun => &mut self.overrun,
            Fate::Damaged => &mut self.damaged,
            Fate::Circling => &mut self.circling,
            Fate::NoVl => &mut self.no_vl,
            Fate::TooLong => &mut self.too_long,
            Fate::HoqLife => &mut self.hoq_life,
            Fate::PKey => &mut self.pkey,
            Fate::RawFiltered => &mut self.raw_filtered,
            Fate::SmpDiscarded => &mut self.smp_discarded,
        } += 1;
    }

    /// All of them by name.
    pub(super) fn named(&self) -> [(&'static str, u64); 19] {
        [
            ("sent", self.sent),
            ("delivered", self.delivered),
            ("duplicated", self.duplicated),
            ("lost", self.lost),
            ("corrupted", self.corrupted),
            ("drop_damaged", self.damaged),
            ("drop_partitioned", self.partitioned),
            ("drop_link_down", self.link_down),
            ("drop_no_route", self.no_route),
            ("drop_removed", self.removed),
            ("drop_overrun", self.overrun),
            ("drop_circling", self.circling),
            ("drop_no_vl", self.no_vl),
            ("drop_too_long", self.too_long),
            ("drop_hoq_life", self.hoq_life),
            ("drop_pkey", self.pkey),
            ("drop_raw_filtered", self.raw_filtered),
            ("drop_no_agent", self.no_agent),
            ("drop_smp_discarded", self.smp_discarded),
        ]
    }
}
