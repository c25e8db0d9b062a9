//! The attributes that the queue pair of a connection is programmed with (spec/cm.md 5), and the arithmetic behind
//! them.

use ibdev::Access;
use ibdev::qp::{Init, Rtr, Rts};
use ibwire::{QKey, TimeCode};

/// What the queue pair of a connection is programmed with, step by step: RESET to INIT, to RTR, to RTS.
///
/// On both sides the QP goes to INIT, gets its receives, then goes through RTR to RTS; on the passive side before
/// the REP is sent, on the active side before the RTU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attrs {
    /// RESET to INIT.
    pub init: Init,
    /// INIT to RTR.
    pub rtr: Rtr,
    /// RTR to RTS. The passive side must not send before the connection is established.
    pub rts: Rts,
}

impl Attrs {
    pub(super) fn init(port: u8, pkey_index: u16, reads: bool) -> Init {
        let access = if reads { Access::all() } else { Access::REMOTE_WRITE };
        Init { port, pkey_index, access, qkey: QKey(0) }
    }
}

/// The ack timeout of a QP whose packets may be under way for `life_time` and whose peer may take `ack_delay` to
/// answer: 2 T(life_time) + T(ack_delay), rounded to a code as Linux does (spec/cm.md 3.4).
///
/// ```
/// use ibcm::proto::ack_timeout;
/// use ibwire::TimeCode;
/// let code = |life_time, ack_delay| ack_timeout(TimeCode::truncate(life_time), TimeCode::truncate(ack_delay)).get();
/// assert_eq!(code(16, 15), 17);
/// assert_eq!(code(16, 16), 18);
/// ```
pub const fn ack_timeout(life_time: TimeCode, ack_delay: TimeCode) -> TimeCode {
    let (round_trip, delay) = (life_time.get() + 1, ack_delay.get());
    let code = if round_trip >= delay {
        round_trip + (delay >= round_trip - 1) as u8
    } else {
        delay + (round_trip >= delay - 1) as u8
    };
    TimeCode::truncate(0).saturating_add(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cm_t65_ack_timeout_codes() {
        let vectors = [
            (16, 16, 18),
            (16, 15, 17),
            (16, 0, 17),
            (18, 16, 19),
            (4, 20, 20),
            (18, 20, 21),
            (19, 20, 21),
            (31, 31, 31),
            (31, 0, 31),
            (0, 31, 31),
            (30, 31, 31),
            (0, 0, 2),
        ];
        for (life_time, delay, expected) in vectors {
            let code = ack_timeout(TimeCode::truncate(life_time), TimeCode::truncate(delay));
            assert_eq!(code.get(), expected, "life time {life_time}, delay {delay}");
        }
    }
}
