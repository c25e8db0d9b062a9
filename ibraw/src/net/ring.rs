//! Received frames in memory shared with the kernel.

use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ibcm_sys::packet::{self, Block, Cursor, Received, RingSpec};

use super::queue::Queue;
use super::watch::Watch;
use crate::backend::Ether;
use crate::batch::{Data, Taken};
use crate::meta::EtherMeta;
use crate::stats::{Counters, add};
use crate::{Batch, RawError};

/// The ring of a packet socket. Tasks take turns at its blocks; a block goes back when nobody reads in it any more.
#[derive(Debug)]
pub(super) struct Ring {
    state: Mutex<State>,
    len: usize,
}

#[derive(Debug)]
struct State {
    blocks: packet::Ring,
    /// The block that is being read.
    open: Option<(Arc<Block>, Cursor)>,
    /// Drops that are counted, modulo 2^32.
    counted: u32,
    /// Those before the frames that are read now.
    before: u32,
    /// How many blocks are to be opened until `counted` is before their frames; they came before those drops.
    blocks_until: Option<usize>,
}

impl State {
    /// Asks for the drops since the last time. The blocks that wait came before them, unless they say otherwise.
    fn count_drops(&mut self, queue: &Queue, counters: &Counters) {
        let Ok((drops, full)) = packet::ring_losses(queue.fd().as_fd()) else { return };
        add(&counters.rx_dropped, drops as usize);
        add(&counters.rx_ring_full, full as usize);
        self.counted = self.counted.wrapping_add(drops);
        if drops > 0 {
            self.blocks_until.get_or_insert(self.blocks.waiting());
        }
    }

    /// Opens the next block, if there is one.
    fn open(&mut self, queue: &Queue, counters: &Counters) -> Option<()> {
        let block = Arc::new(self.blocks.take()?);
        let cursor = block.first();
        // Drops end where a block begins: the kernel drops as long as it has none.
        if block.losing() {
            self.blocks_until = Some(0);
            self.count_drops(queue, counters);
        }
        self.blocks_until = match self.blocks_until {
            Some(0) => {
                self.before = self.counted;
                None
            }
            blocks => blocks.map(|blocks| blocks - 1),
        };
        self.open = Some((block, cursor));
        Some(())
    }
}

impl Ring {
    pub(super) fn new(blocks: packet::Ring, spec: RingSpec) -> Self {
        let state = State { blocks, open: None, counted: 0, before: 0, blocks_until: None };
        Self { state: Mutex::new(state), len: spec.block_len as usize * spec.blocks as usize }
    }

    /// Its bytes.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at up to `most` frames of one block and lends `batch` those that `take` wants, with what it says of them; false if
    /// there is none.
    pub(super) fn recv(
        &self,
        batch: &mut Batch<Ether>,
        most: usize,
        (queue, watch, counters): (&Queue, &Watch, &Counters),
        mut take: impl FnMut(&Received<'_>) -> Option<(usize, usize, EtherMeta)>,
    ) -> Result<bool, RawError> {
        let mut state = self.state();
        loop {
            if state.open.is_none() && !queue.has(watch, || state.open(queue, counters))? {
                return Ok(false);
            }
            let before = state.before;
            let Some((block, cursor)) = &mut state.open else { continue };
            let mut seen = 0;
            while seen < most {
                let Some((mut frame, at)) = block.frame(cursor) else { break };
                seen += 1;
                frame.drops = Some(before);
                if let Some((begin, len, meta)) = take(&frame) {
                    batch.taken.push(Taken { data: Data::Block(at + begin, len), meta });
                }
            }
            let block = (!batch.is_empty()).then(|| block.clone());
            // At once: the kernel has little room in a ring of few blocks.
            if seen < most || cursor.is_at_end() {
                state.open = None;
            }
            if seen > 0 {
                batch.block = block;
                return Ok(true);
            }
        }
    }

    /// Counts what was dropped since the last time.
    pub(super) fn note_drops(&self, queue: &Queue, counters: &Counters) {
        self.state().count_drops(queue, counters);
    }
}
