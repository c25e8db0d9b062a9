//! Transfers between OpenSM's answers and Linux's RMPP, replayed byte for byte at both ends.

#![allow(clippy::unwrap_used, reason = "a test that cannot read its data fails")]

mod common;

use std::time::Instant;

use common::messages;
use ibsa::mad::{RmppType, SaHeader, table};
use ibsa::proto::rmpp::{Mad, Received, Receiver, RmppConfig, Sender, Sent, turn_around};
use ibsa::record::{NodeRecord, PathRecord};

fn parts(mad: &[u8]) -> (SaHeader, [u8; SaHeader::DATA_LEN]) {
    let (head, data) = mad.split_at(SaHeader::LEN);
    (SaHeader::parse(head).unwrap(), data.try_into().unwrap())
}

/// The MADs of an exchange from the first DATA of the SA on: who sent it and its bytes.
fn transfer(file: &str, exchange: &str) -> Vec<(bool, Mad)> {
    let of_exchange = messages(file).into_iter().filter_map(|(label, bytes)| {
        let sender = label.strip_prefix(exchange)?.strip_prefix('/')?;
        Some((sender.starts_with("sa"), <Mad>::try_from(bytes).unwrap()))
    });
    let from_data = |(from_sa, mad): &(bool, Mad)| !*from_sa || parts(mad).0.rmpp.kind != RmppType::DATA;
    of_exchange.skip_while(from_data).collect()
}

const TRANSFERS: [(&str, &str, usize); 8] = [
    ("03-noderecord-gettable-4seg", "node-table", 672),
    ("04-noderecord-gettable-13seg", "node13", 2576),
    ("05-portinforecord", "portinfo-table-lid2", 648),
    ("07-pathrecord-gettable-1seg", "path-table-pair", 64),
    ("07-pathrecord-gettable-1seg", "path-table-empty", 0),
    ("08-pathrecord-gettable-2seg", "path-table-sgid", 384),
    ("09-pathrecord-gettable-170seg", "path170", 33856),
    ("17-multipath-getmulti-7seg", "multi7", 1280),
];

fn received(file: &str, exchange: &str) -> (SaHeader, Vec<u8>) {
    let now = Instant::now();
    let mut receiver = Receiver::new(now, &RmppConfig::default());
    let (mut ours, mut message) = (Vec::new(), None);
    let all = transfer(file, exchange);
    for (_, mad) in all.iter().filter(|(from_sa, _)| *from_sa) {
        let (header, data) = parts(mad);
        match receiver.handle(now, &header, &data) {
            Received::Going(back) => ours.extend(back),
            Received::Done(data, back) => {
                ours.push(back);
                assert!(message.replace((header, data)).is_none());
            }
            Received::Failed(error, _) => panic!("{exchange}: {error}"),
        }
    }
    let theirs: Vec<Mad> = all.iter().filter(|(from_sa, _)| !from_sa).map(|(_, mad)| *mad).collect();
    assert_eq!(ours, theirs, "{exchange}: what goes back");
    message.unwrap()
}

#[test]
fn sa_t54_receivers_answer_as_linux_does() {
    for (file, exchange, len) in TRANSFERS {
        let (_, data) = received(file, exchange);
        assert_eq!(data.len(), len, "{exchange}");
    }
}

#[test]
fn sa_t53_records_that_straddle_segments_are_read_from_the_whole() {
    let (header, data) = received("04-noderecord-gettable-13seg", "node13");
    assert_eq!(table::<NodeRecord>(&data, header.attribute_offset).unwrap().len(), 23);
    let (header, data) = received("09-pathrecord-gettable-170seg", "path170");
    let paths: Vec<PathRecord> = table(&data, header.attribute_offset).unwrap();
    assert_eq!(paths.len(), 529);
    assert!(paths.iter().all(|path| path.reversible && path.mtu.bytes().is_some()));
}

#[test]
fn senders_send_as_linux_does() {
    for (file, exchange, _) in TRANSFERS {
        let (header, data) = received(file, exchange);
        let now = Instant::now();
        let mut sender = Sender::new(header, data, &RmppConfig::default()).unwrap();
        let (mut state, mut last) = (Sent::Going, 0);
        for (at, (from_sa, mad)) in transfer(file, exchange).iter().enumerate() {
            if *from_sa {
                let ours = sender.poll_transmit(now).unwrap_or_else(|| panic!("{exchange}: MAD {at}"));
                assert_eq!(parts(&ours).0, parts(mad).0, "{exchange}: MAD {at}");
                // Behind the data the sender of the capture left what was there.
                let len = parts(mad).0.rmpp.length_or_window as usize;
                let ends = parts(mad).0.rmpp.flags & 4 != 0;
                let end = if ends { SaHeader::LEN + len - 20 } else { mad.len() };
                assert_eq!(ours[..end], mad[..end], "{exchange}: MAD {at}");
                last = parts(mad).0.rmpp.segment;
            } else {
                state = sender.handle(now, &parts(mad).0);
            }
        }
        assert_eq!((state, last), (Sent::Done, sender.segments()), "{exchange}");
    }
}

#[test]
fn a_query_in_several_parts_turns_the_direction() {
    // Request, its ACK, our turn-around, the answer, our ACK (spec/sa.md 2.5).
    let all: Vec<Mad> = messages("16-multipath-getmulti")
        .into_iter()
        .filter(|(label, _)| label.starts_with("multipath-getmulti/"))
        .map(|(_, bytes)| bytes.try_into().unwrap())
        .collect();
    let now = Instant::now();
    let (request, data) = parts(&all[0]);
    let len = request.rmpp.length_or_window as usize - 20;
    let mut sender = Sender::new(request, data[..len].to_vec(), &RmppConfig::default()).unwrap();
    assert_eq!(sender.poll_transmit(now).unwrap(), all[0]);
    assert_eq!(sender.handle(now, &parts(&all[1]).0), Sent::Done);
    assert_eq!(turn_around(&request), all[2]);
    let (answer, data) = parts(&all[3]);
    let Received::Done(paths, back) = Receiver::new(now, &RmppConfig::default()).handle(now, &answer, &data)
    else {
        panic!()
    };
    assert_eq!(back, all[4]);
    assert_eq!(table::<PathRecord>(&paths, answer.attribute_offset).unwrap().len(), 2);
}
