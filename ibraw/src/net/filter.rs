//! Filter programs in the kernel: classic BPF (linux/filter.h).

use std::os::fd::BorrowedFd;

use ibcm_sys::packet::{self, Instruction};
use rustix::io::Errno;

use crate::{EtherType, RawError};

/// The longest program in instructions (`BPF_MAXINSNS`).
const MOST: usize = 4096;

/// Load what the kernel takes the frame's type for (`SKF_AD_OFF + SKF_AD_PROTOCOL`).
const LOAD_TYPE: Instruction = Instruction { code: 0x28, jt: 0, jf: 0, k: 0xffff_f000 };
const LOAD_ZERO: Instruction = Instruction { code: 0x00, jt: 0, jf: 0, k: 0 };
const ACCEPT: Instruction = Instruction { code: 0x06, jt: 0, jf: 0, k: u32::MAX };
const REJECT: Instruction = Instruction { code: 0x06, jt: 0, jf: 0, k: 0 };

/// The program that takes nothing.
pub(super) const NOTHING: [Instruction; 1] = [REJECT];

/// The program that takes of frames of these types, or if none is named of all, those that the caller's program takes; all if that
/// is empty.
pub(super) fn program(types: &[EtherType], of_caller: &[Instruction]) -> Result<Vec<Instruction>, RawError> {
    const EQUAL: u16 = 0x15;
    const MOST_TYPES: usize = 255; // a jump is 8 bits
    let invalid = |field, value: usize, limit: usize| {
        Err(RawError::Invalid { field, value: value as u64, limit: limit as u64 })
    };
    if types.len() > MOST_TYPES {
        return invalid("EtherTypes of one socket", types.len(), MOST_TYPES);
    }
    let mut program = Vec::new();
    if !types.is_empty() {
        let tests = types.iter().enumerate().map(|(n, ether_type)| Instruction {
            code: EQUAL,
            jt: (types.len() - n) as u8, // over the others and the end
            jf: 0,
            k: ether_type.0.into(),
        });
        program.push(LOAD_TYPE);
        program.extend(tests);
        program.push(REJECT);
    }
    if of_caller.is_empty() {
        program.push(ACCEPT);
        return Ok(program);
    }
    if !types.is_empty() {
        program.push(LOAD_ZERO); // as every program finds it
    }
    let room = MOST - program.len();
    if of_caller.len() > room {
        return invalid("instructions of the filter program", of_caller.len(), room);
    }
    program.extend(of_caller);
    Ok(program)
}

/// Puts a program in the place of the one that the socket has.
pub(super) fn attach(socket: BorrowedFd<'_>, program: &[Instruction]) -> Result<(), RawError> {
    packet::attach_filter(socket, program).map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::INVAL) => RawError::InvalidFilter,
        _ => RawError::io("attach a filter program", error),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a program of loads, equals and returns gives for a frame of this type, and how many instructions that takes.
    fn run(program: &[Instruction], ether_type: u16) -> (u32, usize) {
        let (mut at, mut accumulator, mut steps) = (0, 0, 0);
        loop {
            let Instruction { code, jt, jf, k } = program[at];
            (at, steps) = (at + 1, steps + 1);
            match code {
                0x28 if k == LOAD_TYPE.k => accumulator = ether_type.into(),
                0x00 => accumulator = k,
                0x15 => at += usize::from(if accumulator == k { jt } else { jf }),
                0x06 => return (k, steps),
                _ => panic!("{code:#x}"),
            }
        }
    }

    #[test]
    fn a_program_of_the_caller_runs_behind_that_of_the_types() {
        let types: Vec<_> = (0..255).map(|n| EtherType(0x9000 + n)).collect();
        // 9 if the accumulator is 0 at its begin.
        let is_zero =
            [Instruction { code: 0x15, jt: 0, jf: 1, k: 0 }, Instruction { k: 9, ..ACCEPT }, REJECT];
        for len in [1, 2, 255] {
            let (bare, full) =
                (program(&types[..len], &[]).unwrap(), program(&types[..len], &is_zero).unwrap());
            assert_eq!((bare.len(), full.len()), (len + 3, len + 3 + is_zero.len()));
            for ether_type in [types[0], types[len / 2], types[len - 1]] {
                assert_eq!((run(&bare, ether_type.0).0, run(&full, ether_type.0).0), (u32::MAX, 9));
            }
            for other in [0x8fff, 0x9000 + len as u16] {
                assert_eq!((run(&bare, other).0, run(&full, other).0), (0, 0));
            }
        }
        assert_eq!(
            (program(&[], &[]).unwrap(), program(&[], &is_zero).unwrap()),
            (vec![ACCEPT], is_zero.to_vec())
        );
    }

    #[test]
    fn programs_are_as_long_as_the_kernel_takes_them() {
        let types = vec![EtherType::LOCAL_1; 256];
        let limit = |types, len| match program(types, &vec![ACCEPT; len]) {
            Ok(program) => Err(program.len()),
            Err(RawError::Invalid { value, limit, .. }) => Ok((value, limit)),
            Err(error) => panic!("{error}"),
        };
        assert_eq!((limit(&[], 4096), limit(&[], 4097)), (Err(4096), Ok((4097, 4096))));
        assert_eq!((limit(&types[..2], 4091), limit(&types[..2], 4092)), (Err(4096), Ok((4092, 4091))));
        assert_eq!((limit(&types[..255], 1), limit(&types, 1)), (Err(259), Ok((256, 255))));
    }
}
