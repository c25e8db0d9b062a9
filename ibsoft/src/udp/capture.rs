//! Every packet of a UDP device into a pcap file.

use std::fs::File;
use std::io::{self, BufWriter};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use ibdev::DeviceError;
use ibwire::icrc::{FoundId, IdClass};
use ibwire::pcap::{LinkType, PcapWriter, RoceFrame};

/// A capture in progress.
#[derive(Debug)]
pub(super) struct Capture {
    file: Mutex<PcapWriter<BufWriter<File>>>,
    errors: AtomicU64,
}

impl Capture {
    pub(super) fn create(path: &Path) -> Result<Self, DeviceError> {
        let file = File::create(path)
            .and_then(|file| PcapWriter::new(BufWriter::new(file), LinkType::Ethernet))
            .map_err(|error| DeviceError::os("create the pcap file", error))?;
        Ok(Self { file: Mutex::new(file), errors: AtomicU64::new(0) })
    }

    /// Holds the file, so that what others record comes behind what is recorded through this.
    pub(super) fn lock(&self) -> Recording<'_> {
        Recording { file: self.file.lock().unwrap_or_else(PoisonError::into_inner), errors: &self.errors }
    }

    /// Brings what was recorded to the file: it is complete if the process is killed now.
    pub(super) fn flush(&self) {
        self.lock().with(PcapWriter::flush);
    }

    /// How many packets could not be written.
    pub(super) fn errors(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
    }
}

/// The right to add to a capture.
pub(super) struct Recording<'a> {
    file: MutexGuard<'a, PcapWriter<BufWriter<File>>>,
    errors: &'a AtomicU64,
}

impl Recording<'_> {
    /// Adds a packet: from the BTH through the ICRC, with the Identification that the ICRC was computed with. `None`
    /// is for packets whose ICRC is wrong.
    pub(super) fn packet(&mut self, src: SocketAddr, dst: SocketAddr, id: Option<FoundId>, datagram: &[u8]) {
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let frame = RoceFrame {
            src,
            dst,
            id: id.map_or(0, |found| found.id),
            dont_fragment: id.is_none_or(|found| found.class != IdClass::SolvedWithoutDf),
            datagram,
        };
        self.with(|file| file.write(since_epoch, |out| frame.write_to(out)));
    }

    fn with(&mut self, write: impl FnOnce(&mut PcapWriter<BufWriter<File>>) -> io::Result<()>) {
        if let Err(error) = write(&mut self.file)
            && self.errors.fetch_add(1, Ordering::Relaxed) == 0
        {
            tracing::warn!(%error, "the pcap file misses packets");
        }
    }
}
