//! The MADs of a device into a pcap file, for devices that don't write their packets themselves.

use std::fs::File;
use std::io::{self, BufWriter};
use std::path::Path;
use std::time::{Duration, SystemTime};

use ibdev::{GlobalRoute, MAD_LEN, MadAddr, MadSource, OutgoingMad, ReceivedMad};
use ibwire::packet::{Bth, Deth, Grh, Lrh, NextHeader, Opcode, link_frame};
use ibwire::pcap::{ErfRecord, LinkType, PcapWriter};
use ibwire::{Gid, Lid, PKey, Psn, QKey, Qpn, ServiceLevel};

use crate::proto::LocalPort;

/// A capture in progress. Each MAD is written as the InfiniBand packet that it came in or goes out in, as far as that is
/// known: over RoCE the LIDs are 0, and PSNs are those of this file.
#[derive(Debug)]
pub(crate) struct MadCapture {
    file: PcapWriter<BufWriter<File>>,
    psn: Psn,
    /// Packets to be written, with their times since the epoch. No more than pass in one round of the driver.
    noted: Vec<(Duration, Vec<u8>)>,
    /// The log has it.
    told: bool,
}

/// What both directions have.
#[derive(Debug)]
struct Packet<'a> {
    slid: Lid,
    dlid: Lid,
    sl: ServiceLevel,
    /// The route, its source, its destination.
    route: Option<(GlobalRoute, Gid, Gid)>,
    pkey: PKey,
    src_qp: Qpn,
    dest_qp: Qpn,
    qkey: QKey,
    mad: &'a [u8; MAD_LEN],
}

impl MadCapture {
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        let file = PcapWriter::new(BufWriter::new(File::create(path)?), LinkType::Erf)?;
        Ok(Self { file, psn: Psn::truncate(0), noted: Vec::new(), told: false })
    }

    /// This one goes out by `port`. It is noted and not written yet.
    pub(crate) fn outgoing(&mut self, port: &LocalPort, out: &OutgoingMad) {
        let MadAddr { av, qpn, qkey, pkey_index } = out.to;
        self.note(&Packet {
            slid: with_path_bits(port, av.path_bits),
            dlid: av.dlid,
            sl: av.sl,
            route: av.grh.map(|grh| (grh, own_gid(port, &grh), grh.dgid)),
            pkey: pkey(port, pkey_index),
            src_qp: Qpn::GSI,
            dest_qp: qpn,
            qkey,
            mad: &out.mad,
        });
    }

    /// This one came in by `port`. It is noted and not written yet.
    pub(crate) fn incoming(&mut self, port: &LocalPort, received: &ReceivedMad) {
        let MadSource { slid, sl, path_bits, qpn, pkey_index, grh, .. } = received.from;
        self.note(&Packet {
            slid,
            dlid: with_path_bits(port, path_bits),
            sl,
            route: grh.map(|grh| (grh, grh.dgid, own_gid(port, &grh))),
            pkey: pkey(port, pkey_index),
            src_qp: qpn,
            dest_qp: Qpn::GSI,
            qkey: QKey::GSI,
            mad: &received.mad,
        });
    }

    fn note(&mut self, packet: &Packet<'_>) {
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.noted.push((since_epoch, packet.frame(self.psn)));
        self.psn = self.psn.offset(1);
    }

    /// Brings what was noted to the file: it is complete if the process is killed now. Returns how many MADs could not
    /// be written, at least.
    pub(crate) fn write(&mut self) -> u64 {
        if self.noted.is_empty() {
            return 0;
        }
        let mut failed = 0;
        for (since_epoch, packet) in self.noted.drain(..) {
            let record = ErfRecord { since_epoch, lost: false, packet: &packet };
            let result = self.file.write(since_epoch, |out| record.write_to(out));
            failed += failure(&mut self.told, result);
        }
        failed + failure(&mut self.told, self.file.flush())
    }
}

/// 1 if something could not be written, which the log is told once.
fn failure(told: &mut bool, result: io::Result<()>) -> u64 {
    let Err(error) = result else { return 0 };
    if !std::mem::replace(told, true) {
        tracing::warn!(%error, "the pcap file misses MADs");
    }
    1
}

impl Packet<'_> {
    fn frame(&self, psn: Psn) -> Vec<u8> {
        let lrh = Lrh {
            vl: 0,
            sl: self.sl,
            next: NextHeader::Bth,
            dlid: self.dlid,
            words: 0,
            slid: self.slid,
            reserved: 0,
        };
        let grh = self.route.map(|(route, sgid, dgid)| Grh {
            traffic_class: route.traffic_class,
            flow_label: route.flow_label,
            payload_len: 0,
            next_header: Grh::NEXT_BTH,
            hop_limit: route.hop_limit,
            sgid,
            dgid,
        });
        let bth = Bth { pkey: self.pkey, ..Bth::new(Opcode::UD_SEND_ONLY, self.dest_qp, psn) };
        let mut transport = [0; Bth::LEN + Deth::LEN + MAD_LEN];
        bth.write_to(&mut transport);
        Deth::new(self.qkey, self.src_qp).write_to(&mut transport[Bth::LEN..]);
        transport[Bth::LEN + Deth::LEN..].copy_from_slice(self.mad);
        link_frame(lrh, grh, &transport)
    }
}

/// The port's LID that a MAD has these path bits of; none on RoCE.
fn with_path_bits(port: &LocalPort, path_bits: u8) -> Lid {
    Lid(port.lid.0 | u16::from(path_bits))
}

fn own_gid(port: &LocalPort, route: &GlobalRoute) -> Gid {
    let entry = port.gids.iter().find(|entry| entry.index == route.sgid_index);
    entry.map_or(Gid::UNSPECIFIED, |entry| entry.gid)
}

fn pkey(port: &LocalPort, index: u16) -> PKey {
    port.pkeys.get(usize::from(index)).copied().unwrap_or(PKey::DEFAULT)
}
