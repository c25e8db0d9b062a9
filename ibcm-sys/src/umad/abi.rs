//! Bytes and calls of the interface: rdma/ib_user_mad.h, ABI version 5, with P_Key index.

use std::fs::File;
use std::os::fd::AsFd;

use ibdev::{AgentSpec, GlobalRoute, MAD_LEN, MadSource, OutgoingMad, ReceivedMad};
use ibwire::mad::{Method, MgmtClass};
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

/// How long the kernel waits for the response to a request, which it sends again meanwhile. What comes later, or for a request
/// that it does not wait for, it drops (spec/sa.md 2.8). It allows one request with a transaction ID at a time, so it has to
/// do what a sender's own repetitions were to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wait {
    milliseconds: u32,
    again: u32,
}

impl Wait {
    const RESPONSE: Self = Self { milliseconds: 1000, again: 4 };

    /// Nothing for what is not answered by a response: CM messages, traps and reports, responses, and what RMPP says of
    /// segments.
    pub(super) fn of(mad: &[u8; MAD_LEN]) -> Option<Self> {
        const RMPP_DATA: u8 = 1;
        let (class, method, rmpp_type) = (MgmtClass(mad[1]), Method(mad[3]), mad[25]);
        let unanswered = [Method::SEND, Method::TRAP, Method::REPORT, Method::TRAP_REPRESS];
        let is_request = class != MgmtClass::CM && !method.is_response() && !unanswered.contains(&method);
        let speaks_of_segments = class == MgmtClass::SA && rmpp_type > RMPP_DATA;
        (is_request && !speaks_of_segments).then_some(Self::RESPONSE)
    }
}

/// A MAD as it is written. Without `wait` the kernel sends it once and waits for no response.
///
/// `None` if the GID index does not fit the header's one byte.
pub(super) fn encode(agent: u32, mad: &OutgoingMad, wait: Option<Wait>) -> Option<[u8; PACKET]> {
    let to = &mad.to;
    let mut packet = [0; PACKET];
    let mut put = |at: usize, bytes: &[u8]| packet[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &agent.to_ne_bytes());
    if let Some(Wait { milliseconds, again }) = wait {
        put(8, &milliseconds.to_ne_bytes());
        put(12, &again.to_ne_bytes());
    }
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

/// What a read gives when it gives no MAD.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoMad {
    /// A request of ours comes back: nobody has answered it in time.
    Unanswered,
    /// Not a MAD of 256 bytes.
    Malformed,
}

/// What was read on `port`.
pub(super) fn decode(port: u8, packet: &[u8]) -> Result<ReceivedMad, NoMad> {
    let status = packet.get(4..8).and_then(|status| status.try_into().ok()).map(u32::from_ne_bytes);
    match (status, received(port, packet)) {
        (Some(0), Some(mad)) => Ok(mad),
        (Some(1..), _) => Err(NoMad::Unanswered),
        _ => Err(NoMad::Malformed),
    }
}

fn received(port: u8, packet: &[u8]) -> Option<ReceivedMad> {
    let packet: &[u8; PACKET] = packet.try_into().ok()?;
    let word = |at: usize| [packet[at], packet[at + 1], packet[at + 2], packet[at + 3]];
    let half = |at: usize| [packet[at], packet[at + 1]];
    if u32::from_ne_bytes(word(16)) as usize != packet.len() {
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
        let packet = encode(0x0403_0201, &outgoing(9), None).unwrap();
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
        assert_eq!(encode(1, &outgoing(256), None), None);
    }

    /// The kernel's header of what arrives has the length with the header in it, and the sender's address.
    #[test]
    fn what_arrives_leads_back_to_its_sender() {
        let sent = outgoing(9);
        let mut packet = encode(1, &sent, None).unwrap();
        packet[16..20].copy_from_slice(&320_u32.to_ne_bytes());
        let mad = |packet: &[u8]| decode(2, packet).unwrap();
        let received = mad(&packet);
        assert_eq!(received.mad, sent.mad);
        let mut reply = received.from.reply();
        assert_eq!(reply.av.port, 2);
        reply.av.port = 1;
        assert_eq!(reply, sent.to);
        packet[32] = 0;
        assert_eq!(mad(&packet).from.grh, None);
    }

    #[test]
    fn what_is_no_mad_is_left_out() {
        let mut packet = encode(1, &outgoing(9), None).unwrap();
        assert_eq!(decode(1, &packet).unwrap_err(), NoMad::Malformed, "the length is not that of a read");
        packet[16..20].copy_from_slice(&320_u32.to_ne_bytes());
        for len in [0, 7, 64, 319] {
            assert_eq!(decode(1, &packet[..len]).unwrap_err(), NoMad::Malformed, "{len}");
        }
    }

    /// The kernel gives a request back with ETIMEDOUT and no more than its MAD header.
    #[test]
    fn an_unanswered_request_is_told() {
        let mut packet = encode(1, &outgoing(9), None).unwrap();
        packet[4] = 110;
        assert_eq!(decode(1, &packet[..64 + 24]).unwrap_err(), NoMad::Unanswered);
        assert_eq!(decode(1, &packet).unwrap_err(), NoMad::Unanswered);
    }

    #[test]
    fn the_kernel_waits_for_responses_to_requests() {
        let wait = |class, method, rmpp_type| {
            let mut mad = [0; MAD_LEN];
            (mad[1], mad[3], mad[25]) = (class, method, rmpp_type);
            Wait::of(&mad)
        };
        for (class, method) in [(3, 1), (3, 0x12), (4, 1), (0x32, 2)] {
            assert_eq!(wait(class, method, 0), Some(Wait::RESPONSE), "{class} {method}");
        }
        for (class, method, rmpp_type) in
            [(7, 3, 0), (7, 1, 0), (3, 0x81, 0), (3, 5, 0), (3, 6, 0), (3, 0x12, 2), (3, 0x12, 4)]
        {
            assert_eq!(wait(class, method, rmpp_type), None, "{class} {method} {rmpp_type}");
        }
        let packet = encode(1, &outgoing(9), Some(Wait::RESPONSE)).unwrap();
        assert_eq!(packet[8..16], [1000_u32.to_ne_bytes(), 4_u32.to_ne_bytes()].concat());
    }
}
