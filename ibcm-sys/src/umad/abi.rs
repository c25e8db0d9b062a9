//! Bytes and calls of the interface: rdma/ib_user_mad.h, ABI version 5, with P_Key index.

use std::fs::File;
use std::os::fd::AsFd;

use ibdev::{AgentSpec, GlobalRoute, MAD_LEN, MadSource, OutgoingMad, ReceivedMad};
use ibwire::mad::Method;
use ibwire::{FlowLabel, Gid, Lid, Qpn, ServiceLevel};
use rustix::io::Errno;
use rustix::ioctl::{NoArg, Opcode, Updater, ioctl, opcode};

/// Length of `ib_user_mad_hdr`.
const HEADER: usize = 64;

/// Length of what one read gives and one write takes.
pub(super) const PACKET: usize = HEADER + MAD_LEN;

/// The group of the ioctl numbers.
const GROUP: u8 = 0x1b;
const ENABLE_PKEY: Opcode = opcode::none(GROUP, 3);
const REGISTER_AGENT2: Opcode = opcode::read_write::<Registration>(GROUP, 4);

/// `ib_user_mad_reg_req2`.
#[repr(C)]
#[derive(Debug, Default)]
struct Registration {
    id: u32,
    qpn: u32,
    class: u8,
    class_version: u8,
    reserved: u16,
    flags: u32,
    methods: [u64; 2],
    oui: u32,
    rmpp_version: u8,
    reserved2: [u8; 3],
}

const _: () = assert!(size_of::<Registration>() == 40);

/// Registers an agent for unsolicited MADs and gives its id. The kernel refuses with EINVAL a class whose method another
/// agent of the port holds.
pub(super) fn register(file: &File, spec: &AgentSpec) -> Result<u32, Errno> {
    let mut methods = [0; 2];
    for Method(method) in spec.methods {
        methods[usize::from(method / 64 % 2)] |= 1 << (method % 64);
    }
    request(
        file,
        Registration {
            class: spec.class.0,
            class_version: spec.class_version,
            methods,
            ..Default::default()
        },
    )
}

/// Registers an agent that only sends.
pub(super) fn register_sender(file: &File) -> Result<u32, Errno> {
    request(file, Registration::default())
}

fn request(file: &File, registration: Registration) -> Result<u32, Errno> {
    let mut registration = Registration { qpn: 1, ..registration };
    // SAFETY: ENABLE_PKEY takes no argument.
    unsafe { ioctl(file.as_fd(), NoArg::<ENABLE_PKEY>::new()) }?;
    // SAFETY: REGISTER_AGENT2 reads and writes one `ib_user_mad_reg_req2`, which `Registration` is.
    unsafe { ioctl(file.as_fd(), Updater::<REGISTER_AGENT2, _>::new(&mut registration)) }?;
    Ok(registration.id)
}

/// A MAD as it is written. No timeout and no retries: the kernel sends it once and waits for no response.
///
/// `None` if the GID index does not fit the header's one byte.
pub(super) fn encode(agent: u32, mad: &OutgoingMad) -> Option<[u8; PACKET]> {
    let to = &mad.to;
    let mut packet = [0; PACKET];
    let mut put = |at: usize, bytes: &[u8]| packet[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &agent.to_ne_bytes());
    put(16, &(MAD_LEN as u32).to_ne_bytes());
    put(20, &to.qpn.get().to_be_bytes());
    put(24, &to.qkey.0.to_be_bytes());
    put(28, &to.av.dlid.0.to_be_bytes());
    put(30, &[to.av.sl.get(), to.av.path_bits]);
    if let Some(route) = &to.av.grh {
        put(32, &[1, u8::try_from(route.sgid_index).ok()?, route.hop_limit, route.traffic_class]);
        put(36, &route.dgid.0);
        put(52, &route.flow_label.get().to_be_bytes());
    }
    put(56, &to.pkey_index.to_ne_bytes());
    put(HEADER, &mad.mad);
    Some(packet)
}

/// A MAD that was read on `port`; `None` if it is an answer of the kernel itself or not 256 bytes long.
pub(super) fn decode(port: u8, packet: &[u8]) -> Option<ReceivedMad> {
    let packet: &[u8; PACKET] = packet.try_into().ok()?;
    let word = |at: usize| [packet[at], packet[at + 1], packet[at + 2], packet[at + 3]];
    let half = |at: usize| [packet[at], packet[at + 1]];
    let status = u32::from_ne_bytes(word(4));
    let length = u32::from_ne_bytes(word(16));
    if status != 0 || length as usize != packet.len() {
        return None;
    }
    let (header, mad) = packet.split_at(HEADER);
    let route = || {
        Some(GlobalRoute {
            dgid: Gid(header[36..52].try_into().ok()?),
            sgid_index: header[33].into(),
            flow_label: FlowLabel::truncate(u32::from_be_bytes(word(52))),
            hop_limit: header[34],
            traffic_class: header[35],
        })
    };
    Some(ReceivedMad {
        from: MadSource {
            port,
            slid: Lid(u16::from_be_bytes(half(28))),
            sl: ServiceLevel::truncate(header[30]),
            path_bits: header[31],
            qpn: Qpn::truncate(u32::from_be_bytes(word(20))),
            pkey_index: u16::from_ne_bytes(half(56)),
            grh: if header[32] != 0 { route() } else { None },
        },
        mad: mad.try_into().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use ibdev::{AddressVector, MadAddr};
    use ibwire::{QKey, Rate};

    use super::*;

    fn outgoing(sgid_index: u16) -> OutgoingMad {
        let grh = GlobalRoute {
            dgid: Gid([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]),
            sgid_index,
            flow_label: FlowLabel::truncate(0x5_4321),
            hop_limit: 64,
            traffic_class: 7,
        };
        let av = AddressVector {
            port: 1,
            dlid: Lid(0x1234),
            sl: ServiceLevel::truncate(3),
            path_bits: 5,
            rate: Rate::PORT_CURRENT,
            grh: Some(grh),
        };
        let to = MadAddr { av, qpn: Qpn::GSI, qkey: QKey::GSI, pkey_index: 0x0201 };
        OutgoingMad { to, mad: std::array::from_fn(|i| i as u8) }
    }

    /// Offsets of rdma/ib_user_mad.h.
    #[test]
    fn header_of_a_mad_with_a_route() {
        let packet = encode(0x0403_0201, &outgoing(9)).unwrap();
        assert_eq!(packet[..4], 0x0403_0201_u32.to_ne_bytes());
        assert_eq!(packet[4..16], [0; 12], "status, timeout, retries");
        assert_eq!(packet[16..20], 256_u32.to_ne_bytes());
        assert_eq!(packet[20..32], [0, 0, 0, 1, 0x80, 1, 0, 0, 0x12, 0x34, 3, 5]);
        assert_eq!(packet[32..36], [1, 9, 64, 7]);
        assert_eq!(packet[36..52], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]);
        assert_eq!(packet[52..56], [0, 5, 0x43, 0x21]);
        assert_eq!(packet[56..58], 0x0201_u16.to_ne_bytes());
        assert_eq!(packet[58..64], [0; 6]);
        assert_eq!((packet[64], packet[319]), (0, 255));
        assert_eq!(encode(1, &outgoing(256)), None);
    }

    /// The kernel's header of what arrives has the length with the header in it, and the sender's address.
    #[test]
    fn what_arrives_leads_back_to_its_sender() {
        let sent = outgoing(9);
        let mut packet = encode(1, &sent).unwrap();
        packet[16..20].copy_from_slice(&320_u32.to_ne_bytes());
        let received = decode(2, &packet).unwrap();
        assert_eq!(received.mad, sent.mad);
        let mut reply = received.from.reply();
        assert_eq!(reply.av.port, 2);
        reply.av.port = 1;
        assert_eq!(reply, sent.to);
        packet[32] = 0;
        assert_eq!(decode(2, &packet).unwrap().from.grh, None);
    }

    #[test]
    fn what_is_no_mad_is_left_out() {
        let mut packet = encode(1, &outgoing(9)).unwrap();
        assert!(decode(1, &packet).is_none(), "the length is not that of a read");
        packet[16..20].copy_from_slice(&320_u32.to_ne_bytes());
        assert!(decode(1, &packet[..319]).is_none());
        packet[4] = 110;
        assert!(decode(1, &packet).is_none(), "a send that timed out");
    }
}
