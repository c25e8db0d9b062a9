//! MADs of any bytes.

use proptest::prelude::*;

use super::*;

proptest! {
    #[test]
    fn any_mads_are_survived_by_the_client(
        mads in prop::collection::vec(prop::collection::vec(any::<u8>(), 256), 1..60),
    ) {
        let now = Instant::now();
        let mut client = client(now);
        client.request(now, node(Method::GET_TABLE, now)).unwrap();
        let (header, _) = sent(&mut client).unwrap();
        for (at, bytes) in mads.into_iter().enumerate() {
            let mut mad: Mad = bytes.try_into().unwrap();
            mad[..3].copy_from_slice(&[1, 3, 2]);
            (mad[3], mad[24]) = (if at % 5 == 0 { 6 } else { 0x92 }, mad[24] & 1);
            mad[8..16].copy_from_slice(&header.mad.tid.0.to_be_bytes());
            mad[16..18].copy_from_slice(&[0, 0x11]);
            if at % 2 == 0 {
                mad[4..6].fill(0);
                mad[28..31].fill(0);
            }
            client.handle(now, &source(SA), &mad);
            client.handle_timeout(now);
            while client.poll_transmit().is_some() {}
        }
        prop_assert!(client.events.len() <= 61);
    }
}
