//! What the programs say to each other: bytes that tell which call and which message they belong to.

use ibcm::Role;

/// The longest message.
pub const LONGEST: usize = 4096;

/// The private data of a REQ.
pub fn request(call: usize) -> [u8; 4] {
    [b'?', b'C', b'M', call as u8]
}

/// Which call a request belongs to.
pub fn call_of(data: &[u8]) -> Option<usize> {
    let call = usize::from(*data.get(3)?);
    (data[..4] == request(call) && data[4..].iter().all(|&byte| byte == 0)).then_some(call)
}

/// That of a REP.
pub fn reply(call: usize) -> [u8; 4] {
    [b'!', b'C', b'M', call as u8]
}

/// That of a REJ.
pub fn refusal(call: usize) -> [u8; 4] {
    [b'-', b'C', b'M', call as u8]
}

/// That of a DREQ, by whoever sends it.
pub fn parting(call: usize, role: Role) -> [u8; 4] {
    [b'<', call as u8, side(role), b'.']
}

/// That of a DREP.
pub fn farewell(call: usize, role: Role) -> [u8; 4] {
    [b'>', call as u8, side(role), b'.']
}

fn side(role: Role) -> u8 {
    match role {
        Role::Active => b'A',
        Role::Passive => b'P',
    }
}

/// What goes beside a message: whose it is, and which.
pub fn label(call: usize, sender: Role, number: usize) -> u32 {
    u32::from_be_bytes([call as u8, side(sender), (number >> 8) as u8, number as u8])
}

/// The number of a message, if it is one of this sender's.
pub fn number_of(label: u32, call: usize, sender: Role) -> Option<usize> {
    let [of_call, of_side, high, low] = label.to_be_bytes();
    let is_its = (usize::from(of_call), of_side) == (call, side(sender));
    is_its.then(|| usize::from(u16::from_be_bytes([high, low])))
}

/// The bytes of a message.
pub fn message(label: u32, len: usize) -> Vec<u8> {
    (0..len as u32).map(|at| (label.wrapping_add(at).wrapping_mul(0x9e37_79b9) >> 24) as u8).collect()
}
