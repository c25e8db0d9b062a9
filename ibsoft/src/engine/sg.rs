//! The local memory of work requests: messages are gathered from buffers and scattered into them.

use std::ops::Range;

use ibdev::Buf;

/// How long a message fits into `bufs`.
pub(super) fn capacity(bufs: &[Buf]) -> usize {
    bufs.iter().map(Buf::capacity).sum()
}

/// Appends the bytes `range` of the message in `bufs` to `out`.
pub(super) fn gather(bufs: &[Buf], range: Range<usize>, out: &mut Vec<u8>) {
    let (mut skip, mut left) = (range.start, range.len());
    for buf in bufs {
        if left == 0 {
            break;
        }
        if skip >= buf.len() {
            skip -= buf.len();
            continue;
        }
        let part = &buf[skip..buf.len().min(skip + left)];
        out.extend_from_slice(part);
        (skip, left) = (0, left - part.len());
    }
}

/// Places `bytes` behind the first `at` bytes of the buffers' capacities. False, and nothing is placed, if there is no
/// room.
pub(super) fn scatter(bufs: &mut [Buf], at: usize, bytes: &[u8]) -> bool {
    if at + bytes.len() > capacity(bufs) {
        return false;
    }
    place(bufs.iter_mut().map(Buf::memory_mut), at, bytes);
    true
}

/// Places `bytes` behind the first `at` bytes of the buffers' lengths. False, and nothing is placed, if there is no room.
pub(super) fn fill(bufs: &mut [Buf], at: usize, bytes: &[u8]) -> bool {
    if at + bytes.len() > bufs.iter().map(|buf| buf.len()).sum() {
        return false;
    }
    place(bufs.iter_mut().map(|buf| &mut buf[..]), at, bytes);
    true
}

fn place<'a>(rooms: impl Iterator<Item = &'a mut [u8]>, at: usize, mut bytes: &[u8]) {
    let mut skip = at;
    for room in rooms {
        if bytes.is_empty() {
            break;
        }
        if skip >= room.len() {
            skip -= room.len();
            continue;
        }
        let room = &mut room[skip..];
        let (now, later) = bytes.split_at(bytes.len().min(room.len()));
        room[..now.len()].copy_from_slice(now);
        (skip, bytes) = (0, later);
    }
}

/// Sets the lengths of buffers that a message of `len` bytes was scattered into.
pub(super) fn set_filled(bufs: &mut [Buf], mut len: usize) {
    for buf in bufs {
        let part = len.min(buf.capacity());
        buf.set_filled(part);
        len -= part;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bufs(lens: &[usize]) -> Vec<Buf> {
        lens.iter().map(|len| Buf::unregistered(*len)).collect()
    }

    #[test]
    fn a_read_fills_what_the_buffers_hold() {
        let mut bufs = bufs(&[4, 4]);
        bufs[0].resize(1, 0);
        assert!(!fill(&mut bufs, 2, b"abcd"));
        assert!(fill(&mut bufs, 0, b"ab") && fill(&mut bufs, 2, b"cde"));
        assert_eq!((&bufs[0][..], &bufs[1][..]), (&b"a"[..], &b"bcde"[..]));
        assert_eq!(bufs[0].memory_mut(), b"a\0\0\0");
    }

    proptest! {
        #[test]
        fn what_was_scattered_is_gathered(
            lens in prop::collection::vec(0usize..20, 0..6),
            message in prop::collection::vec(any::<u8>(), 0..80),
            mtu in 1usize..30,
        ) {
            let mut bufs = bufs(&lens);
            let fits = message.len() <= capacity(&bufs);
            let mut placed = true;
            for (n, packet) in message.chunks(mtu).enumerate() {
                placed = placed && scatter(&mut bufs, n * mtu, packet);
            }
            prop_assert_eq!(placed, fits);
            if fits {
                set_filled(&mut bufs, message.len());
                prop_assert_eq!(bufs.iter().map(|buf| buf.len()).sum::<usize>(), message.len());
                let mut back = Vec::new();
                for start in (0..message.len()).step_by(mtu) {
                    gather(&bufs, start..message.len().min(start + mtu), &mut back);
                }
                prop_assert_eq!(back, message);
            }
        }
    }
}
