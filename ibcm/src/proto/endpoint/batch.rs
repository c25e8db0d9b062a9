//! MADs that arrived together: what they are about is brought into the caches for all of them before one is acted on.
//!
//! With very many connections nothing of the one that a MAD is about is in a cache, and the way to it has two steps: from the ID
//! to the slot, from there to the connection. A processor waits for many lines at the same time, if it is not told to do
//! something else in between.

use std::time::Instant;

use ibdev::{MAD_LEN, ReceivedMad};
use ibwire::mad::MadHeader;

use super::super::ids::{RemoteNames, Source};
use super::super::message::{DecodeError, Message};
use super::super::transport::Transport;
use super::Endpoint;
use super::admission::wanted_transport;

/// Of so many MADs the lines are waited for together. More of them would push each other out of the nearest cache.
const AT_ONCE: usize = 16;

/// A MAD that has been read and not yet acted on.
#[derive(Debug)]
pub(super) struct Arrived {
    pub(super) decoded: Result<(MadHeader, Message), DecodeError>,
    /// What the sender of a REQ or REP calls itself, if that has been worked out for an end of this transport.
    pub(super) names: Option<(Transport, RemoteNames)>,
}

impl Arrived {
    pub(super) fn new(mad: &[u8; MAD_LEN]) -> Self {
        Self { decoded: Message::decode(mad), names: None }
    }
}

impl Endpoint {
    /// Takes in MADs that arrived together, in their order. It comes to the same as [`handle_mad`](Self::handle_mad) of
    /// each, and costs less where there are very many connections: the memory that they need is waited for together.
    pub fn handle_mads(&mut self, now: Instant, mads: &[ReceivedMad]) {
        let mut arrived = std::mem::take(&mut self.arrived);
        for together in mads.chunks(AT_ONCE) {
            arrived.extend(together.iter().map(|received| Arrived::new(&received.mad)));
            if together.len() > 1 {
                self.fetch(together, &mut arrived);
            }
            for (ReceivedMad { from, mad }, arrived) in together.iter().zip(arrived.drain(..)) {
                self.route(now, from, mad, arrived);
            }
        }
        self.arrived = arrived;
    }

    /// Has what these MADs are about brought into the caches, in short loops: so many lines are waited for together as are asked for
    /// within some hundred instructions. What the first of them changes, the others find changed:
    /// nothing is kept but what follows from the MAD alone.
    fn fetch(&self, mads: &[ReceivedMad], arrived: &mut [Arrived]) {
        for (received, arrived) in mads.iter().zip(arrived.iter_mut()) {
            if let Ok((_, Message::Req(req))) = &arrived.decoded
                && let Some((transport, end)) = wanted_transport(req)
            {
                let source = Source::of(&received.from);
                let (guid, id) = (req.local_ca_guid, req.local_comm_id);
                arrived.names = Some((transport, self.core.ids.names(transport, source, guid, id, end)));
            }
        }
        for arrived in &*arrived {
            match (&arrived.decoded, &arrived.names) {
                (_, Some((_, names))) => self.core.ids.touch_remote(names.keys),
                (Ok((_, message)), None) => self.core.ids.touch_local_id(message.remote_comm_id()),
                (Err(_), None) => {}
            }
        }
        let mut slots = [None; AT_ONCE];
        for (slot, arrived) in slots.iter_mut().zip(&*arrived) {
            *slot = self.slot_of(arrived);
        }
        for &slot in slots.iter().flatten() {
            self.conns[slot].touch();
        }
        for ((received, arrived), slot) in mads.iter().zip(arrived).zip(slots) {
            if let Ok((_, Message::Rep(rep))) = &arrived.decoded
                && let Some(slot) = slot
                && self.conns[slot].awaits_reply()
            {
                let transport = self.conns[slot].transport();
                let names = self.names_of_reply(transport, &received.from, rep);
                self.core.ids.touch_remote(names.keys);
                arrived.names = Some((transport, names));
            }
        }
    }

    /// The connection with our ID, if the message has one.
    fn slot_of(&self, arrived: &Arrived) -> Option<u32> {
        match &arrived.decoded {
            Ok((_, Message::Req(_) | Message::SidrReq(_) | Message::SidrRep(_))) | Err(_) => None,
            Ok((_, message)) => self.core.ids.by_local_id(message.remote_comm_id()),
        }
    }
}
