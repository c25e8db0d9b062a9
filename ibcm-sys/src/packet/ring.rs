//! Frames in memory that is shared with the kernel: `TPACKET_V3` (packet(7), linux/if_packet.h).
//!
//! The memory is a row of blocks. The kernel fills one after the other with frames and hands over each when it is full, or
//! some milliseconds after its first frame; we hand it back. While the next block has not come back frames are dropped.

use std::io;
use std::mem::offset_of;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::options::set;
use super::{Received, Source, Tag};

/// Sizes of a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingSpec {
    /// Bytes of a block: a multiple of the page size.
    pub block_len: u32,
    /// How many blocks.
    pub blocks: u32,
    /// How long the kernel keeps a block that is not full, milliseconds; from 1.
    pub retire_ms: u32,
}

/// A packet socket's ring of blocks.
#[derive(Debug)]
pub struct Ring {
    map: Arc<Map>,
    /// The block that is handed over next.
    next: u32,
    /// The number of what was taken last from each block: as long as the block has that it is no other than before.
    taken: Box<[u64]>,
}

/// The memory.
#[derive(Debug)]
struct Map {
    base: NonNull<u8>,
    block_len: usize,
    blocks: u32,
}

// SAFETY: the mapping belongs to the value alone and is no thread's. What threads share is the status of blocks and
// their numbers, which are read and written as atomics; the rest of a block is only read, by whom it is lent to.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that `Ring::new` made, with its length; nothing that points into it outlives the map.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.block_len * self.blocks as usize) };
    }
}

impl Map {
    /// The word that says whose a block is.
    fn status(&self, block: u32) -> &AtomicU32 {
        const AT: usize =
            offset_of!(libc::tpacket_block_desc, hdr) + offset_of!(libc::tpacket_hdr_v1, block_status);
        // SAFETY: `block` is less than the number of blocks, so this is inside of the mapping, which lives as long as `self`.
        // The word is aligned: blocks begin at pages. The kernel, too, reads and writes it as one word.
        unsafe { AtomicU32::from_ptr(self.block(block).add(AT).cast().as_ptr()) }
    }

    /// Which of all that the kernel has filled a block is, counted from 1: written when the kernel begins to fill it.
    fn number(&self, block: u32) -> &AtomicU64 {
        const AT: usize =
            offset_of!(libc::tpacket_block_desc, hdr) + offset_of!(libc::tpacket_hdr_v1, seq_num);
        const { assert!(AT.is_multiple_of(align_of::<AtomicU64>())) };
        // SAFETY: as for `status`; it is aligned, too.
        unsafe { AtomicU64::from_ptr(self.block(block).add(AT).cast().as_ptr()) }
    }

    fn block(&self, block: u32) -> NonNull<u8> {
        debug_assert!(block < self.blocks);
        // SAFETY: every caller has a number of a block, so the sum is inside of the mapping.
        unsafe { self.base.add(block as usize * self.block_len) }
    }
}

impl Ring {
    /// Gives a packet socket a ring. It must not be bound yet: frames that came before would stay in its queue.
    ///
    /// # Errors
    /// `InvalidInput` for sizes that the kernel does not take; `OutOfMemory`.
    pub fn new(socket: BorrowedFd<'_>, spec: RingSpec) -> io::Result<Self> {
        /// Of no meaning in this version, but checked.
        const FRAME: u32 = 2048;
        let len = spec.block_len as usize * spec.blocks as usize;
        if spec.blocks == 0 || spec.block_len < FRAME || spec.retire_ms == 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        set(socket, libc::SOL_PACKET, libc::PACKET_VERSION, &(libc::tpacket_versions::TPACKET_V3 as i32))?;
        let request = libc::tpacket_req3 {
            tp_block_size: spec.block_len,
            tp_block_nr: spec.blocks,
            tp_frame_size: FRAME,
            tp_frame_nr: spec.block_len / FRAME * spec.blocks,
            tp_retire_blk_tov: spec.retire_ms,
            tp_sizeof_priv: 0,
            tp_feature_req_word: 0,
        };
        set(socket, libc::SOL_PACKET, libc::PACKET_RX_RING, &request)?;
        // SAFETY: a new mapping of the socket's memory, at a place of the kernel's choice, of the length that it has.
        let base = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, socket.as_raw_fd(), 0)
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let map = Arc::new(Map { base, block_len: spec.block_len as usize, blocks: spec.blocks });
        Ok(Self { map, next: 0, taken: vec![0; spec.blocks as usize].into() })
    }

    /// The next block that the kernel has handed over, if there is one.
    pub fn take(&mut self) -> Option<Block> {
        let index = self.next;
        let status = self.handed_over(index)?;
        self.taken[index as usize] = self.map.number(index).load(Ordering::Relaxed); // it stays until the block has come back
        self.next = (index + 1) % self.map.blocks;
        Some(Block { map: self.map.clone(), index, losing: status & libc::TP_STATUS_LOSING != 0 })
    }

    /// How many blocks the kernel has handed over that were not taken.
    pub fn waiting(&self) -> usize {
        let blocks = self.map.blocks;
        (0..blocks).take_while(|n| self.handed_over((self.next + n) % blocks).is_some()).count()
    }

    /// The status of a block, if the kernel has handed it over and it was not taken.
    fn handed_over(&self, block: u32) -> Option<u32> {
        // In this order: with a new number the status is at least as new as what the kernel found when it began to fill the
        // block, which was that it had come back.
        let number = self.map.number(block).load(Ordering::Acquire);
        let status = self.map.status(block).load(Ordering::Acquire);
        let is_new = number != self.taken[block as usize] && status & libc::TP_STATUS_USER != 0;
        is_new.then_some(status)
    }
}

/// A block of frames. Dropped, the kernel may fill it again.
#[derive(Debug)]
pub struct Block {
    map: Arc<Map>,
    index: u32,
    losing: bool,
}

/// A place in a block.
#[derive(Debug, Clone, Copy)]
pub struct Cursor {
    at: usize,
    left: u32,
}

impl Cursor {
    /// Whether it is behind the last frame.
    pub const fn is_at_end(&self) -> bool {
        self.left == 0
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.map.status(self.index).store(libc::TP_STATUS_KERNEL, Ordering::Release);
    }
}

impl Block {
    fn all(&self) -> &[u8] {
        // SAFETY: the block is inside of the mapping, which lives as long as `self` does. The kernel has handed it over (an
        // acquiring load of its status told) and writes nothing in it until `self` is dropped; nobody else does.
        unsafe { std::slice::from_raw_parts(self.map.block(self.index).as_ptr(), self.map.block_len) }
    }

    /// Whether frames had been dropped before the kernel handed it over that nobody had asked about by then. Frames do not tell.
    pub const fn losing(&self) -> bool {
        self.losing
    }

    /// Its first frame.
    pub fn first(&self) -> Cursor {
        const HEAD: usize = offset_of!(libc::tpacket_block_desc, hdr);
        let Some(head) = self.all().first_chunk::<{ HEAD + size_of::<libc::tpacket_hdr_v1>() }>() else {
            return Cursor { at: 0, left: 0 };
        };
        let at = word(head, HEAD + offset_of!(libc::tpacket_hdr_v1, offset_to_first_pkt)) as usize;
        Cursor { at, left: word(head, HEAD + offset_of!(libc::tpacket_hdr_v1, num_pkts)) }
    }

    /// The frame at a place, and where its bytes begin in the block; and goes on to the next one. `None` after the last.
    pub fn frame(&self, cursor: &mut Cursor) -> Option<(Received<'_>, usize)> {
        /// Where the address is: behind the header, aligned to 16 bytes.
        const ADDRESS: usize = size_of::<libc::tpacket3_hdr>().next_multiple_of(16);
        const VLAN: usize = offset_of!(libc::tpacket3_hdr, hv1);
        cursor.left = cursor.left.checked_sub(1)?;
        let head = self.all().get(cursor.at..)?.first_chunk::<{ ADDRESS + Source::LINK_LEN }>()?;
        let status = word(head, offset_of!(libc::tpacket3_hdr, tp_status));
        let from = cursor.at + usize::from(half(head, offset_of!(libc::tpacket3_hdr, tp_mac)));
        let len = word(head, offset_of!(libc::tpacket3_hdr, tp_snaplen)) as usize;
        cursor.at += word(head, offset_of!(libc::tpacket3_hdr, tp_next_offset)) as usize;
        let tci = word(head, VLAN + offset_of!(libc::tpacket_hdr_variant1, tp_vlan_tci)) as u16;
        let tpid = half(head, VLAN + offset_of!(libc::tpacket_hdr_variant1, tp_vlan_tpid));
        let seconds = word(head, offset_of!(libc::tpacket3_hdr, tp_sec));
        let nanoseconds = word(head, offset_of!(libc::tpacket3_hdr, tp_nsec));
        let received = Received {
            data: self.all().get(from..)?.get(..len)?,
            wire_len: word(head, offset_of!(libc::tpacket3_hdr, tp_len)) as usize,
            // SAFETY: there are as many bytes behind that place, in which the kernel has written the address.
            from: unsafe { Source::link_at(head[ADDRESS..].as_ptr()) },
            drops: None,
            tag: Tag::new(status, tci, tpid),
            is_checksum_partial: status & libc::TP_STATUS_CSUMNOTREADY != 0,
            to: None,
            hop_limit: None,
            traffic_class: None,
            time: Some(Duration::new(seconds.into(), nanoseconds)),
        };
        Some((received, from))
    }

    /// Bytes of the block; none if they are not all in it.
    pub fn bytes(&self, from: usize, len: usize) -> &[u8] {
        self.all().get(from..).and_then(|rest| rest.get(..len)).unwrap_or(&[])
    }
}

/// Four bytes in the machine's order.
fn word<const N: usize>(bytes: &[u8; N], at: usize) -> u32 {
    let [a, b, c, d] = [0, 1, 2, 3].map(|n| bytes[at + n]);
    u32::from_ne_bytes([a, b, c, d])
}

/// Two bytes in the machine's order.
fn half<const N: usize>(bytes: &[u8; N], at: usize) -> u16 {
    u16::from_ne_bytes([bytes[at], bytes[at + 1]])
}
