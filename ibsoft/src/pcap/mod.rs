//! Packets into files that Wireshark and tshark read.
//!
//! Written here and not by a crate because a capture has to be complete on disk whenever the process is killed, and
//! the writers at hand cannot be flushed. The tests read the files with one of them.

mod erf;
mod ethernet;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::time::Duration;

pub(crate) use erf::ErfRecord;
pub(crate) use ethernet::RoceFrame;

/// A pcap file being written: nanosecond timestamps, one kind of frame.
#[derive(Debug)]
pub(crate) struct PcapFile {
    out: BufWriter<File>,
    frame: Vec<u8>,
}

/// What a record holds.
#[derive(Debug, Clone, Copy)]
enum LinkType {
    Ethernet = 1,
    /// Extensible Record Format: the only form in which tshark takes InfiniBand packets from the LRH on.
    Erf = 197,
}

impl PcapFile {
    const NANOSECOND_MAGIC: u32 = 0xa1b2_3c4d;
    const SNAP_LEN: u32 = 65_535;

    /// A file of Ethernet frames.
    pub(crate) fn ethernet(path: &Path) -> io::Result<Self> {
        Self::create(path, LinkType::Ethernet)
    }

    /// A file of ERF records.
    pub(crate) fn erf(path: &Path) -> io::Result<Self> {
        Self::create(path, LinkType::Erf)
    }

    fn create(path: &Path, link_type: LinkType) -> io::Result<Self> {
        let mut out = BufWriter::new(File::create(path)?);
        out.write_all(&Self::NANOSECOND_MAGIC.to_be_bytes())?;
        out.write_all(&[0, 2, 0, 4])?; // version 2.4
        out.write_all(&[0; 8])?; // UTC, accuracy not stated
        out.write_all(&Self::SNAP_LEN.to_be_bytes())?;
        out.write_all(&(link_type as u32).to_be_bytes())?;
        out.flush()?;
        Ok(Self { out, frame: Vec::new() })
    }

    /// Appends a frame, sent or received `since_epoch` after 1970, that `build` writes. Buffered until
    /// [`flush`](Self::flush).
    pub(crate) fn write(
        &mut self,
        since_epoch: Duration,
        build: impl FnOnce(&mut Vec<u8>),
    ) -> io::Result<()> {
        self.frame.clear();
        build(&mut self.frame);
        self.frame.truncate(Self::SNAP_LEN as usize);
        let len = (self.frame.len() as u32).to_be_bytes();
        self.out.write_all(&(since_epoch.as_secs() as u32).to_be_bytes())?;
        self.out.write_all(&since_epoch.subsec_nanos().to_be_bytes())?;
        self.out.write_all(&len)?;
        self.out.write_all(&len)?;
        self.out.write_all(&self.frame)
    }

    /// Brings everything to the operating system.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
