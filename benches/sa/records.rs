//! How long a record takes to and from its bytes, next to a copy of the 200 bytes of data that a MAD has room for.

use std::hint::black_box;
use std::time::Duration;

use benches::{Aligned, Case, Clock, Options, Sampling, Table, side_by_side};
use ibsa::mad::SaHeader;
use ibsa::record::{
    InformInfo, LinkRecord, McMemberRecord, NodeRecord, Notice, PathRecord, PortInfoRecord, Record,
    ServiceRecord, SwitchInfoRecord,
};

const MEMCPY: &str = "copy of 200 bytes";

pub(crate) fn run(options: &Options) {
    let sampling = Sampling::new(options, Clock::Cpu, Duration::from_millis(2), 101);
    let (source, mut target) = (Aligned([0x5a; SaHeader::DATA_LEN]), Aligned([0; SaHeader::DATA_LEN]));
    let mut cases = vec![Case::new(MEMCPY, |count| {
        for _ in 0..count {
            black_box(&mut target.0).copy_from_slice(black_box(&source.0));
        }
    })];
    cases.extend(both::<PathRecord>());
    cases.extend(both::<NodeRecord>());
    cases.extend(both::<PortInfoRecord>());
    cases.extend(both::<SwitchInfoRecord>());
    cases.extend(both::<LinkRecord>());
    cases.extend(both::<McMemberRecord>());
    cases.extend(both::<ServiceRecord>());
    cases.extend(both::<InformInfo>());
    cases.extend(both::<Notice>());
    let estimates = side_by_side(sampling, cases);
    let mut table = Table::new(["per record", "ns", "quartiles", "of a copy"]);
    for case in estimates.iter().filter(|case| options.selects(&case.name)) {
        table.row([
            case.name.clone(),
            format!("{:.1}", case.median),
            case.spread(),
            format!("{:.1}", case.median / estimates[0].median),
        ]);
    }
    println!("{table}");
}

/// There and back, of a record without a field that is zero.
fn both<R: Record>() -> [Case<'static>; 2] {
    let bytes = Aligned([0x5a; SaHeader::DATA_LEN]);
    let record = R::parse(&bytes.0).expect("as long as it can be");
    let mut encoded = Aligned([0; SaHeader::DATA_LEN]);
    [
        Case::new(format!("{} encode", R::NAME), move |count| {
            for _ in 0..count {
                black_box(&record).write_to(black_box(&mut encoded.0[..R::LEN]));
            }
        }),
        Case::new(format!("{} decode", R::NAME), move |count| {
            for _ in 0..count {
                _ = black_box(R::parse(black_box(&bytes.0)));
            }
        }),
    ]
}
