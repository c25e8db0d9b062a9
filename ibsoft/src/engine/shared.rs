//! What the queue pairs of an engine share.

use std::collections::VecDeque;

use ibdev::{
    Buf, Completion, CompletionOp, DatagramSource, DeviceAttr, DeviceError, DeviceEvent, RawSource, SgList,
    Status,
};
use ibwire::Qpn;
use slab::Slab;

use super::EngineEvent;
use super::counters::Counters;
use super::cq::{Cq, CqId};
use super::memory::Memory;
use super::net::Destination;
use super::port::Port;
use super::qp::QpCreate;
use super::raw::{Local, Raws};
use super::receives::{Srq, SrqId};
use super::table::Table;
use super::timer::Timers;

/// What the queue pairs of an engine share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) device: DeviceAttr,
    /// See [`Config::window`](super::Config::window).
    pub(super) window: [u16; 5],
    pub(super) ports: Vec<Port>,
    pub(super) cqs: Slab<Cq>,
    pub(super) srqs: Table<SrqId, Srq>,
    pub(super) memory: Memory,
    pub(super) events: VecDeque<EngineEvent>,
    pub(super) counters: Counters,
    pub(super) timers: Timers,
    /// Slots of the QPs that may have packets to send, in turn.
    pub(super) ready: VecDeque<u32>,
    /// The raw QPs that have a port.
    pub(super) raws: Raws,
    /// The packet that was made last goes to other QPs of its port, too.
    pub(super) local: Option<Local>,
    /// Where the packet goes that was made last.
    pub(super) destination: Destination,
    /// Buffers that are to go home: of work that ended without a completion.
    pub(super) released: Vec<Buf>,
}

impl Shared {
    pub(super) fn port(&self, number: u8) -> Option<&Port> {
        self.ports.get(usize::from(number).checked_sub(1)?)
    }

    /// Packets in flight at most on a path with this MTU in bytes.
    pub(super) fn window(&self, mtu: usize) -> u16 {
        let [rest @ .., last] = &self.window;
        let shorter = rest.iter().enumerate().find(|(code, _)| mtu <= 256 << code);
        *shorter.map_or(last, |(_, window)| window)
    }

    pub(super) fn cq(&mut self, id: CqId) -> Option<&mut Cq> {
        self.cqs.get_mut(id.0 as usize)
    }

    /// Reserves what a new QP needs: places in its completion queues, and that its domain stays. Nothing if one of them
    /// refuses.
    pub(super) fn admit(&mut self, create: &QpCreate) -> Result<(), DeviceError> {
        self.may_share(create)?;
        self.memory.enter(create.domain)?;
        let sends = self.cq(create.send_cq).ok_or(DeviceError::Gone);
        let sends = sends.and_then(|cq| cq.reserve(create.places(create.max_send_wr)));
        if let Err(error) = sends {
            self.memory.leave(create.domain);
            return Err(error);
        }
        if let Err(error) = self.reserve_receives(create) {
            if let Some(cq) = self.cq(create.send_cq) {
                cq.release(create.places(create.max_send_wr));
            }
            self.memory.leave(create.domain);
            return Err(error);
        }
        Ok(())
    }

    /// Whether a QP may complete on its CQs: raw QPs, which reserve no places, and others do not share one.
    fn may_share(&mut self, create: &QpCreate) -> Result<(), DeviceError> {
        let is_raw = create.kind.is_raw();
        for id in [create.send_cq, create.recv_cq] {
            self.cq(id).ok_or(DeviceError::Gone)?.may_serve(is_raw)?;
        }
        Ok(())
    }

    /// Whether a raw QP's completion has room in this CQ.
    pub(super) fn has_room(&mut self, cq: CqId) -> bool {
        self.cq(cq).is_some_and(|cq| cq.has_room())
    }

    fn reserve_receives(&mut self, create: &QpCreate) -> Result<(), DeviceError> {
        let cq = self.cqs.get_mut(create.recv_cq.0 as usize).ok_or(DeviceError::Gone)?;
        let Some(id) = create.srq else { return cq.reserve(create.places(create.max_recv_wr)) };
        let srq = self.srqs.get_mut(id).ok_or(DeviceError::Gone)?;
        cq.reserve_shared(id, srq.max)?;
        srq.users += 1;
        Ok(())
    }

    /// Gives the places of a QP's receives back.
    pub(super) fn release_receives(&mut self, cq: CqId, max: u32, srq: Option<SrqId>) {
        let Some(cq) = self.cqs.get_mut(cq.0 as usize) else { return };
        match srq {
            None => cq.release(max),
            Some(id) => {
                let Some(srq) = self.srqs.get_mut(id) else { return };
                cq.release_shared(id, srq.max);
                srq.users -= 1;
            }
        }
    }

    pub(super) fn device_event(&mut self, event: DeviceEvent) {
        self.events.push_back(EngineEvent::Device(event));
    }
}

/// One of the two queues of a QP, as its CQ sees it: what all its completions have in common, and how many work
/// requests it may still take.
#[derive(Debug)]
pub(super) struct Side {
    pub(super) cq: CqId,
    pub(super) slot: u32,
    pub(super) qpn: Qpn,
    pub(super) max: u32,
    /// Its completions have no places reserved.
    pub(super) is_raw: bool,
    /// Work requests posted whose completions have not been polled.
    pub(super) used: u32,
}

/// What a completion says besides how it ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrival {
    pub(super) op: CompletionOp,
    pub(super) len: u32,
    pub(super) imm: Option<u32>,
    pub(super) from: Option<DatagramSource>,
    pub(super) raw: Option<RawSource>,
}

impl Side {
    /// Places that it has reserved in its CQ.
    pub(super) const fn places(&self) -> u32 {
        if self.is_raw { 0 } else { self.max }
    }

    /// A completion that says no more than how it ended.
    pub(super) fn plain(&self, shared: &mut Shared, op: CompletionOp, id: u64, sg: SgList, status: Status) {
        let arrival = Arrival { op, len: 0, imm: None, from: None, raw: None };
        self.complete(shared, id, sg, status, arrival);
    }

    pub(super) fn complete(
        &self,
        shared: &mut Shared,
        id: u64,
        sg: SgList,
        status: Status,
        arrival: Arrival,
    ) {
        if self.is_raw && !shared.has_room(self.cq) {
            // Nobody learns of it; what overflowed has been reported.
            shared.released.extend(sg);
            return;
        }
        let Arrival { op, len, imm, from, raw } = arrival;
        let completion = Completion { id, qpn: self.qpn, status, op, len, imm, sg, from, raw };
        if shared.cq(self.cq).is_some_and(|cq| cq.push(self.slot, completion)) {
            shared.events.push_back(EngineEvent::CqReady(self.cq));
        }
    }
}
