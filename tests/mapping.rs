//! docs/mapping.md names everything of Intel's C API and of the messages, and nothing that is not here.
#![forbid(unsafe_code)]

#[path = "mapping/names.rs"]
mod names;
#[path = "mapping/page.rs"]
mod page;
#[path = "mapping/paths.rs"]
mod paths;

use std::collections::BTreeSet;
use std::error::Error;

use ibcm::proto::message::{Apr, Ari, Drep, Dreq, Lap, Rej, Rep, Req, Rtu, SidrRep, SidrReq};
use ibcm::{ConnectError, Connection, Hca, Listener, PrivateData, RejReason, ServiceId};
use names::NAMES;
use page::{PAGE, rows};

/// What one side has and the other lacks.
fn difference<T: Ord + Copy>(one: &BTreeSet<T>, other: &BTreeSet<T>) -> (Vec<T>, Vec<T>) {
    (one.difference(other).copied().collect(), other.difference(one).copied().collect())
}

#[test]
fn every_name_has_its_row() {
    let wanted: BTreeSet<(&str, &str)> =
        NAMES.iter().flat_map(|(heading, names)| names.iter().map(|name| (*heading, *name))).collect();
    let rows = rows();
    let there: Vec<_> =
        rows.iter().flat_map(|row| row.names.iter().map(|name| (row.heading, *name))).collect();
    let once: BTreeSet<_> = there.iter().copied().collect();
    let (missing, unknown) = difference(&wanted, &once);
    assert!(missing.is_empty(), "without a row: {missing:?}");
    assert!(unknown.is_empty(), "rows for what is no name: {unknown:?}");
    assert_eq!(there.len(), once.len(), "some name has two rows");
}

#[test]
fn every_row_says_where_or_why_not() {
    for row in rows() {
        let said = row.paths().next().is_some()
            || row.here().starts_with("none")
            || row.here().starts_with("modules ");
        assert!(said, "{row:?}");
    }
}

#[test]
fn every_path_exists() {
    let page: BTreeSet<&str> = page::paths(PAGE).collect();
    let paths = paths::paths();
    let (unproven, unused) = difference(&page, &paths.iter().map(String::as_str).collect());
    assert!(unproven.is_empty(), "missing in tests/mapping/paths.rs: {unproven:?}");
    assert!(unused.is_empty(), "not on the page: {unused:?}");
}

/// Reasons by the names of their constants.
macro_rules! reasons {
    ($($name:ident)*) => { [$((concat!("ibcm::RejReason::", stringify!($name)), RejReason::$name)),*] };
}

#[test]
fn the_numbers_of_rejections_are_right() {
    let reasons = reasons![
        NO_QP NO_EEC NO_RESOURCES TIMEOUT UNSUPPORTED_REQUEST INVALID_COMM_ID INVALID_COMM_INSTANCE
        INVALID_SERVICE_ID INVALID_TRANSPORT STALE_CONNECTION RDC_NOT_EXIST PRIMARY_GID PRIMARY_LID PRIMARY_SL
        PRIMARY_TRAFFIC_CLASS PRIMARY_HOP_LIMIT PRIMARY_PACKET_RATE ALTERNATE_GID ALTERNATE_LID ALTERNATE_SL
        ALTERNATE_TRAFFIC_CLASS ALTERNATE_HOP_LIMIT ALTERNATE_PACKET_RATE PORT_AND_CM_REDIRECT PORT_REDIRECT
        INVALID_PATH_MTU INSUFFICIENT_RESPONDER_RESOURCES CONSUMER RNR_RETRY_COUNT
    ];
    let rows: Vec<_> = rows().into_iter().filter(|row| row.heading == "Rejections").collect();
    assert_eq!(rows.len(), reasons.len());
    // Intel's enum counts on from one to the next.
    let mut intels = 0;
    for (row, (path, reason)) in rows.iter().zip(reasons) {
        assert_eq!(row.paths().next(), Some(path));
        assert_eq!(row.cells[1], reason.0.to_string(), "{path}");
        let has_a_name = row.names[0].starts_with("RC_");
        intels += u16::from(has_a_name);
        let number = if has_a_name { intels.to_string() } else { String::new() };
        assert_eq!(row.cells[2], number, "{path}");
    }
}

/// How long the private data of a message is.
const fn len<M, const N: usize>(_: fn(&M) -> &PrivateData<N>) -> usize {
    N
}

#[test]
fn the_lengths_are_right() {
    let lengths = [
        ("CM_REQUEST_INFO_USER_LEN", len(|m: &Req| &m.private_data)),
        ("CM_REPLY_INFO_USER_LEN", len(|m: &Rep| &m.private_data)),
        ("CM_REJECT_INFO_USER_LEN", len(|m: &Rej| &m.private_data)),
        ("CM_RTU_INFO_USER_LEN", len(|m: &Rtu| &m.private_data)),
        ("CM_DREQUEST_INFO_USER_LEN", len(|m: &Dreq| &m.private_data)),
        ("CM_DREPLY_INFO_USER_LEN", len(|m: &Drep| &m.private_data)),
        ("SIDR_REQ_INFO_USER_LEN", len(|m: &SidrReq| &m.private_data)),
        ("SIDR_RESP_INFO_USER_LEN", len(|m: &SidrRep| &m.private_data)),
        ("CM_LAP_INFO_USER_LEN", len(|m: &Lap| &m.private_data)),
        ("CM_APR_INFO_USER_LEN", len(|m: &Apr| &m.private_data)),
        ("CM_GEN_INFO_USER_LEN", 224),
        ("CM_REJ_ADD_INFO_LEN", Ari::MAX_LEN),
        ("CM_APR_ADD_INFO_LEN", Ari::MAX_LEN),
    ];
    let rows: Vec<_> = rows().into_iter().filter(|row| row.heading == "Lengths").collect();
    let page: Vec<_> = rows.iter().map(|row| (row.names[0], row.cells[1].to_owned())).collect();
    assert_eq!(page, lengths.map(|(name, len)| (name, len.to_string())));
}

/// What a program of Intel's sends when it rejects by `RC_USER_REJ`, and what one of ours sends.
#[tokio::test]
async fn cm_t37_both_numbers_of_a_programs_refusal() -> Result<(), Box<dyn Error>> {
    const SERVICE: ServiceId = ServiceId::new(0x1000_0000_0000_0001);
    const INTEL_USER_REJ: RejReason = RejReason(27);
    let (server, client) = (Hca::open("soft").await?, Hca::open("soft").await?);
    let listener = Listener::bind(SERVICE).device(&server).await?;
    for (reason, is_consumer) in
        [(INTEL_USER_REJ, true), (RejReason::CONSUMER, true), (RejReason::INVALID_PATH_MTU, false)]
    {
        let path = client.path_to(server.gid()).service_id(SERVICE).await?;
        let (connected, request) = tokio::join!(Connection::connect(path), async {
            listener.accept().await.map(|request| request.reject(reason))
        });
        request?;
        let Err(ConnectError::Rejected(rejection)) = connected else {
            return Err(format!("{reason}: {connected:?}").into());
        };
        assert_eq!((rejection.reason, rejection.is_consumer()), (reason, is_consumer));
    }
    Ok(())
}
