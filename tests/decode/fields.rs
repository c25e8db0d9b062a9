//! Our values as tshark 4.0 names them.

use std::net::{IpAddr, Ipv6Addr};

use ibcm::proto::message::{IpHeader, Message, PathBlock, Rej, Rep, Req};
use ibwire::mad::MadHeader;
use ibwire::packet::{Grh, Lrh, SyndromeKind, TransportPacket};
use ibwire::{CommId, Gid};

use super::Want::{self, Bytes, Number, Text};

/// Fields with what they ought to be.
pub type Fields = Vec<(&'static str, Want)>;

fn number(value: impl Into<u64>) -> Want {
    Number(value.into())
}

/// Headers and payload of a packet that is no MAD, from the BTH on.
pub fn packet(packet: &TransportPacket<'_>) -> Fields {
    let bth = packet.bth();
    let mut fields = vec![
        ("infiniband.bth.opcode", number(bth.opcode.0)),
        ("infiniband.bth.se", number(bth.solicited)),
        ("infiniband.bth.m", number(bth.mig_req)),
        ("infiniband.bth.padcnt", number(bth.pad)),
        ("infiniband.bth.tver", number(bth.version)),
        ("infiniband.bth.p_key", number(bth.pkey.0)),
        ("infiniband.bth.destqp", number(bth.dest_qp.get())),
        ("infiniband.bth.a", number(bth.ack_req)),
        ("infiniband.bth.psn", number(bth.psn.get())),
    ];
    if let Some(deth) = packet.deth() {
        fields.push(("infiniband.deth.q_key", number(deth.qkey.0)));
        fields.push(("infiniband.deth.srcqp", number(deth.src_qp.get())));
    }
    if let Some(aeth) = packet.aeth() {
        fields.push(("infiniband.aeth.syndrome", number(aeth.syndrome.0)));
        fields.push(("infiniband.aeth.msn", number(aeth.msn.get())));
        fields.push(match aeth.syndrome.kind() {
            SyndromeKind::Ack(credits) => ("infiniband.aeth.syndrome.credit_count", number(credits.0)),
            SyndromeKind::Rnr(timer) => ("infiniband.aeth.syndrome.timer", number(timer.get())),
            SyndromeKind::Nak(code) => ("infiniband.aeth.syndrome.error_code", number(code.0)),
            _ => ("infiniband.aeth.syndrome.reserved", number(1u8)),
        });
    }
    if let Some(imm) = packet.immdt() {
        fields.push(("infiniband.immdt", Bytes(imm.0.to_vec())));
    }
    fields
}

/// The payload of a packet that is no MAD. tshark shows it with its padding.
pub fn payload(packet: &TransportPacket<'_>) -> Fields {
    let padded =
        packet.payload().iter().copied().chain(std::iter::repeat_n(0, packet.bth().pad.into())).collect();
    vec![("data.data", Bytes(padded))]
}

/// The LRH of a packet on an InfiniBand link.
pub fn lrh(lrh: &Lrh) -> Fields {
    vec![
        ("infiniband.lrh.vl", number(lrh.vl)),
        ("infiniband.lrh.sl", number(lrh.sl.get())),
        ("infiniband.lrh.dlid", number(lrh.dlid.0)),
        ("infiniband.lrh.slid", number(lrh.slid.0)),
        ("infiniband.lrh.pktlen", number(lrh.words)),
    ]
}

/// The GRH of a packet on an InfiniBand link.
pub fn grh(grh: &Grh) -> Fields {
    let gid = |gid: Gid| Text(Ipv6Addr::from(gid.0).to_string());
    vec![
        ("infiniband.grh.tclass", number(grh.traffic_class)),
        ("infiniband.grh.flowlabel", number(grh.flow_label.get())),
        ("infiniband.grh.paylen", number(grh.payload_len)),
        ("infiniband.grh.nxthdr", number(grh.next_header)),
        ("infiniband.grh.hoplmt", number(grh.hop_limit)),
        ("infiniband.grh.sgid", gid(grh.sgid)),
        ("infiniband.grh.dgid", gid(grh.dgid)),
    ]
}

/// A MAD of the CM class.
pub fn mad(header: &MadHeader, message: &Message) -> Fields {
    let mut fields = vec![
        ("infiniband.mad.baseversion", number(header.base_version)),
        ("infiniband.mad.mgmtclass", number(header.class.0)),
        ("infiniband.mad.classversion", number(header.class_version)),
        ("infiniband.mad.method", number(header.method.0)),
        ("infiniband.mad.status", number(header.status.0)),
        ("infiniband.mad.classspecific", number(header.class_specific)),
        ("infiniband.mad.transactionid", number(header.tid.0)),
        ("infiniband.mad.attributeid", number(header.attribute.0)),
        ("infiniband.mad.attributemodifier", number(header.attribute_modifier)),
    ];
    fields.extend(match message {
        Message::Req(message) => req(message),
        Message::Rej(message) => rej(message),
        Message::Rep(message) => rep(message),
        Message::Rtu(message) => {
            let [local, remote] = ids(message.local_comm_id, message.remote_comm_id);
            vec![
                ("infiniband.cm.rtu.localcommid", local),
                ("infiniband.cm.rtu.remotecommid", remote),
                ("infiniband.cm.rtu.private", Bytes(message.private_data.as_bytes().to_vec())),
            ]
        }
        // The remote QPN it does not name.
        Message::Dreq(message) => {
            let [local, remote] = ids(message.local_comm_id, message.remote_comm_id);
            vec![
                ("infiniband.cm.dreq.localcommid", local),
                ("infiniband.cm.dreq.remotecommid", remote),
                ("infiniband.cm.dreq.private", Bytes(message.private_data.as_bytes().to_vec())),
            ]
        }
        Message::Drep(message) => {
            let [local, remote] = ids(message.local_comm_id, message.remote_comm_id);
            vec![
                ("infiniband.cm.drsp.localcommid", local),
                ("infiniband.cm.drsp.remotecommid", remote),
                ("infiniband.cm.drsp.private", Bytes(message.private_data.as_bytes().to_vec())),
            ]
        }
        // MRA has no dissector: the header is all.
        _ => Vec::new(),
    });
    fields
}

fn ids(local: CommId, remote: CommId) -> [Want; 2] {
    [number(local.0), number(remote.0)]
}

fn req(req: &Req) -> Fields {
    let mut fields = vec![
        ("infiniband.cm.req", number(req.local_comm_id.0)),
        ("infiniband.cm.req.serviceid", number(req.service_id.0)),
        ("infiniband.cm.req.localcaguid", number(req.local_ca_guid.0)),
        ("infiniband.cm.req.localqkey", number(req.local_qkey.0)),
        ("infiniband.cm.req.localqpn", number(req.local_qpn.get())),
        ("infiniband.cm.req.responderres", number(req.responder_resources)),
        ("infiniband.cm.req.localeecn", number(req.local_eecn.get())),
        ("infiniband.cm.req.initdepth", number(req.initiator_depth)),
        ("infiniband.cm.req.remoteeecn", number(req.remote_eecn.get())),
        ("infiniband.cm.req.remoteresptout", number(req.remote_cm_response_timeout.get())),
        ("infiniband.cm.req.transpsvctype", number(req.transport.service_type())),
        ("infiniband.cm.req.e2eflowctrl", number(req.end_to_end_flow_control)),
        ("infiniband.cm.req.startpsn", number(req.starting_psn.get())),
        ("infiniband.cm.req.localresptout", number(req.local_cm_response_timeout.get())),
        ("infiniband.cm.req.retrcount", number(req.retry_count.get())),
        ("infiniband.cm.req.pkey", number(req.pkey.0)),
        ("infiniband.cm.req.pppmtu", number(req.path_mtu.0)),
        ("infiniband.cm.req.rdcexist", number(req.rdc_exists)),
        ("infiniband.cm.req.rnrretrcount", number(req.rnr_retry_count.get())),
        ("infiniband.cm.req.maxcmretr", number(req.max_cm_retries.get())),
        ("infiniband.cm.req.srq", number(req.srq)),
        ("infiniband.cm.req.ext_transport", number(req.transport.extension())),
    ];
    fields.extend(primary(&req.primary));
    fields.extend(alternate(&req.alternate));
    match IpHeader::split(&req.private_data) {
        Ok((header, user)) if req.service_id.0 >> 24 == 1 => {
            fields.push(("infiniband.cm.req.ip_cm.majv", number(0u8)));
            fields.push(("infiniband.cm.req.ip_cm.minv", number(0u8)));
            fields.push(("infiniband.cm.req.ip_cm.sport", number(header.source().port())));
            fields.extend(match (header.source().ip(), header.destination()) {
                (IpAddr::V4(source), IpAddr::V4(destination)) => [
                    ("infiniband.cm.req.ip_cm.ipv", number(4u8)),
                    ("infiniband.cm.req.ip_cm.sip4", Text(source.to_string())),
                    ("infiniband.cm.req.ip_cm.dip4", Text(destination.to_string())),
                ],
                (source, destination) => [
                    ("infiniband.cm.req.ip_cm.ipv", number(6u8)),
                    ("infiniband.cm.req.ip_cm.sip6", Text(source.to_string())),
                    ("infiniband.cm.req.ip_cm.dip6", Text(destination.to_string())),
                ],
            });
            fields.push(("infiniband.cm.req.ip_cm.private", Bytes(user.to_vec())));
        }
        _ => fields.push(("infiniband.cm.req.private", Bytes(req.private_data.as_bytes().to_vec()))),
    }
    fields
}

// Both path blocks without flow label and rate: tshark 4.0 reads the label with the wrong mask and the rate from the byte before
// it (spec/cm.md 2.1 and T67).

fn primary(path: &PathBlock) -> Fields {
    vec![
        ("infiniband.cm.req.prim_locallid", number(path.local_lid.0)),
        ("infiniband.cm.req.prim_remotelid", number(path.remote_lid.0)),
        gid(path.local_gid, "infiniband.cm.req.prim_localgid", "infiniband.cm.req.prim_localgid_ipv4"),
        gid(path.remote_gid, "infiniband.cm.req.prim_remotegid", "infiniband.cm.req.prim_remotegid_ipv4"),
        ("infiniband.cm.req.prim_tfcclass", number(path.traffic_class)),
        ("infiniband.cm.req.prim_hoplim", number(path.hop_limit)),
        ("infiniband.cm.req.prim_sl", number(path.sl.get())),
        ("infiniband.cm.req.prim_subnetlocal", number(path.subnet_local)),
        ("infiniband.cm.req.prim_localacktout", number(path.local_ack_timeout.get())),
    ]
}

fn alternate(path: &PathBlock) -> Fields {
    vec![
        ("infiniband.cm.req.alt_locallid", number(path.local_lid.0)),
        ("infiniband.cm.req.alt_remotelid", number(path.remote_lid.0)),
        ("infiniband.cm.req.alt_localgid", Bytes(path.local_gid.0.to_vec())),
        ("infiniband.cm.req.alt_remotegid", Bytes(path.remote_gid.0.to_vec())),
        ("infiniband.cm.req.alt_tfcclass", number(path.traffic_class)),
        ("infiniband.cm.req.alt_hoplim", number(path.hop_limit)),
        ("infiniband.cm.req.alt_sl", number(path.sl.get())),
        ("infiniband.cm.req.alt_subnetlocal", number(path.subnet_local)),
        ("infiniband.cm.req.alt_localacktout", number(path.local_ack_timeout.get())),
    ]
}

/// A GID of the primary path: tshark shows an IPv4 address as such, in a field of its own.
fn gid(gid: Gid, ipv6: &'static str, ipv4: &'static str) -> (&'static str, Want) {
    let ip = Ipv6Addr::from(gid.0);
    match ip.to_ipv4_mapped() {
        Some(ip) => (ipv4, Text(ip.to_string())),
        None => (ipv6, Text(ip.to_string())),
    }
}

fn rep(rep: &Rep) -> Fields {
    vec![
        ("infiniband.cm.rep", number(rep.local_comm_id.0)),
        ("infiniband.cm.rep.remotecommid", number(rep.remote_comm_id.0)),
        ("infiniband.cm.rep.localqkey", number(rep.local_qkey.0)),
        ("infiniband.cm.rep.localqpn", number(rep.local_qpn.get())),
        ("infiniband.cm.rep.localeecn", number(rep.local_eecn.get())),
        ("infiniband.cm.rep.startpsn", number(rep.starting_psn.get())),
        ("infiniband.cm.rep.respres", number(rep.responder_resources)),
        ("infiniband.cm.rep.initdepth", number(rep.initiator_depth)),
        ("infiniband.cm.rep.tgtackdelay", number(rep.target_ack_delay.get())),
        ("infiniband.cm.rep.failoveracc", number(rep.failover_accepted.get())),
        ("infiniband.cm.rep.e2eflowctrl", number(rep.end_to_end_flow_control)),
        ("infiniband.cm.rep.rnrretrcount", number(rep.rnr_retry_count.get())),
        ("infiniband.cm.rep.srq", number(rep.srq)),
        ("infiniband.cm.rep.localcaguid", number(rep.local_ca_guid.0)),
        ("infiniband.cm.rep.private", Bytes(rep.private_data.as_bytes().to_vec())),
    ]
}

fn rej(rej: &Rej) -> Fields {
    let ari = rej.ari.as_bytes();
    let mut area = [0; 72];
    area[..ari.len()].copy_from_slice(ari);
    vec![
        ("infiniband.cm.rej.localcommid", number(rej.local_comm_id.0)),
        ("infiniband.cm.rej.remotecommid", number(rej.remote_comm_id.0)),
        ("infiniband.cm.rej.msgrej", number(rej.message.get())),
        ("infiniband.cm.rej.rejinfolen", Number(ari.len() as u64)),
        ("infiniband.cm.rej.reason", number(rej.reason.0)),
        ("infiniband.cm.rej.ari", Bytes(area.to_vec())),
        ("infiniband.cm.rej.private", Bytes(rej.private_data.as_bytes().to_vec())),
    ]
}
