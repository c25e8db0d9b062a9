//! Packets as Wireshark and tshark read them: a pcap file of [`RoceFrame`]s or of [`ErfRecord`]s.
//!
//! Written here and not by a crate because a capture has to be complete on disk whenever the process is killed, and
//! the writers at hand cannot be flushed. The tests read the files with one of them.
//!
//! ```
//! use ibwire::pcap::{ErfRecord, LinkType, PcapWriter};
//! use std::time::Duration;
//!
//! let mut file = PcapWriter::new(Vec::new(), LinkType::Erf)?;
//! let packet = [0; 34];
//! let record = ErfRecord { since_epoch: Duration::ZERO, lost: false, packet: &packet };
//! file.write(record.since_epoch, |out| record.write_to(out))?;
//! assert_eq!(file.into_inner().len(), 24 + 16 + 16 + packet.len());
//! # Ok::<(), std::io::Error>(())
//! ```

mod erf;
mod ethernet;
#[cfg(test)]
mod tests;

use std::io::{self, Write};
use std::time::Duration;

pub use erf::ErfRecord;
pub use ethernet::RoceFrame;

/// A pcap file being written: nanosecond timestamps, one kind of frame. Its `W` should be buffered.
#[derive(Debug)]
pub struct PcapWriter<W> {
    out: W,
    frame: Vec<u8>,
}

/// What a record holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkType {
    /// Ethernet frames.
    Ethernet = 1,
    /// Extensible Record Format: the only form in which tshark takes InfiniBand packets from the LRH on.
    Erf = 197,
}

const NANOSECOND_MAGIC: u32 = 0xa1b2_3c4d;
const SNAP_LEN: u32 = 65_535;

impl<W: Write> PcapWriter<W> {
    /// Begins a file of that kind of frame, and flushes: it can be read from here on.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn new(mut out: W, link_type: LinkType) -> io::Result<Self> {
        out.write_all(&NANOSECOND_MAGIC.to_be_bytes())?;
        out.write_all(&[0, 2, 0, 4])?; // version 2.4
        out.write_all(&[0; 8])?; // UTC, accuracy not stated
        out.write_all(&SNAP_LEN.to_be_bytes())?;
        out.write_all(&(link_type as u32).to_be_bytes())?;
        out.flush()?;
        Ok(Self { out, frame: Vec::new() })
    }

    /// Appends a frame, sent or received `since_epoch` after 1970, that `build` writes. What is longer than 65,535
    /// bytes is cut off.
    ///
    /// # Errors
    /// Those of the writer; a part of the frame may have been written.
    pub fn write(&mut self, since_epoch: Duration, build: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        self.frame.clear();
        build(&mut self.frame);
        self.frame.truncate(SNAP_LEN as usize);
        let len = (self.frame.len() as u32).to_be_bytes();
        self.out.write_all(&(since_epoch.as_secs() as u32).to_be_bytes())?;
        self.out.write_all(&since_epoch.subsec_nanos().to_be_bytes())?;
        self.out.write_all(&len)?;
        self.out.write_all(&len)?;
        self.out.write_all(&self.frame)
    }

    /// Brings everything to where it goes.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// Where it was written to; nothing is flushed.
    pub fn into_inner(self) -> W {
        self.out
    }
}
