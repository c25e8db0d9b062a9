//! The MADs of a device into a pcap file, for devices that don't write their packets themselves.

use std::fs::File;
use std::io::{self, BufWriter};
use std::path::Path;
use std::time::SystemTime;

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
    /// There is something to flush.
    written: bool,
    /// How many could not be written since the last flush.
    failed: u64,
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
        Ok(Self { file, psn: Psn::truncate(0), written: false, failed: 0, told: false })
    }

    /// This one goes out by `port`.
    pub(crate) fn outgoing(&mut self, port: &LocalPort, out: &OutgoingMad) {
        let MadAddr { av, qpn, qkey, pkey_index } = out.to;
        self.write(&Packet {
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

    /// This one came in by `port`.
    pub(crate) fn incoming(&mut self, port: &LocalPort, received: &ReceivedMad) {
        let MadSource { slid, sl, path_bits, qpn, pkey_index, grh, .. } = received.from;
        self.write(&Packet {
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

    fn write(&mut self, packet: &Packet<'_>) {
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let packet = packet.frame(self.psn);
        self.psn = self.psn.offset(1);
        let record = ErfRecord { since_epoch, lost: false, packet: &packet };
        let result = self.file.write(since_epoch, |out| record.write_to(out));
        self.written = true;
        self.note(result);
    }

    /// Brings what was written to the file: it is complete if the process is killed now. Returns how many MADs could not
    /// be written since the last time, at least.
    pub(crate) fn flush(&mut self) -> u64 {
        if std::mem::take(&mut self.written) {
            let result = self.file.flush();
            self.note(result);
        }
        std::mem::take(&mut self.failed)
    }

    fn note(&mut self, result: io::Result<()>) {
        if let Err(error) = result {
            self.failed += 1;
            if !std::mem::replace(&mut self.told, true) {
                tracing::warn!(%error, "the pcap file misses MADs");
            }
        }
    }
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
