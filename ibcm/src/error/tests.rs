//! What the errors say and into what they convert.

use std::error::Error as _;
use std::io;
use std::time::{Duration, Instant};

use ibdev::DeviceError;
use ibwire::{Gid, PrivateData, RejReason};

use super::*;
use crate::proto::message::{MessageId, RejectInfo};

#[test]
fn texts_are_lower_case_without_a_full_stop() {
    let errors = [
        silence(1, 9, 10, false).to_string(),
        silence(1, 1, 1, true).to_string(),
        silence(3, 27, 10, false).to_string(),
        AcceptError::Unconfirmed { sent: 1, waited: Duration::from_secs(1) }.to_string(),
    ];
    assert_eq!(errors[0], "no answer to 9 requests in 10s");
    assert_eq!(errors[1], "no answer to 1 request in 1s, though the peer said that it is busy");
    assert_eq!(errors[2], "no answer to the last of 3 attempts, 27 requests in 10s");
    assert_eq!(errors[3], "no confirmation of 1 reply in 1s");
}

#[test]
fn the_source_stays_through_the_conversions() {
    let error = OpenError::Device { device: "soft".into(), source: DeviceError::Gone };
    let error = Error::from(ConnectError::from(error));
    let io = io::Error::from(error);
    assert_eq!(io.kind(), io::ErrorKind::NotConnected);
    let mut last = io.source();
    while let Some(next) = last.and_then(|error| error.source()) {
        last = Some(next);
    }
    assert_eq!(last.map(ToString::to_string).as_deref(), Some("the device is gone"));
}

#[test]
fn what_the_system_said_reaches_who_posted() {
    let locked = io::Error::other("no more memory can be locked");
    let cause = OpCause::Device(DeviceError::os("register buffers", locked));
    let error = OpError { cause, buf: None };
    assert_eq!(error.to_string(), "cannot register buffers");
    assert_eq!(error.source().map(ToString::to_string).as_deref(), Some("no more memory can be locked"));
    let foreign = not_posted(PostError::Invalid { why: "the buffer is not registered with this domain" });
    assert_eq!(foreign.to_string(), "the buffer is not registered with this domain");
}

#[test]
fn an_error_of_another_layer_speaks_for_itself() {
    let gone = DeviceError::Gone;
    let device = || OpenError::NoRuntime;
    for (error, text) in [
        (Error::from(ConnectError::from(QueryError::from(gone.clone()))), gone.to_string()),
        (ListenError::from(device()).into(), device().to_string()),
        (AcceptError::from(gone.clone()).into(), gone.to_string()),
        (crate::sidr::QueryError::from(device()).into(), device().to_string()),
    ] {
        assert_eq!((error.to_string(), error.source().is_none()), (text, true));
    }
}

#[test]
fn cm_t55_private_data_that_is_too_long_names_value_and_limit() {
    let error = PrivateData::<92>::new(&[0; 93]).map_err(Error::from).unwrap_err();
    assert_eq!(error.to_string(), "private data length is 93, at most 92 is allowed");
}

#[test]
fn what_is_worth_a_retry() {
    let at_the_peer = [
        (silence(1, 1, 0, false), true),
        (silence(1, 1, 0, true), true),
        (rejected(RejReason::NO_QP), true),
        (rejected(RejReason::NO_RESOURCES), true),
        (rejected(RejReason::STALE_CONNECTION), true),
        (rejected(RejReason::TIMEOUT), false),
        (rejected(RejReason::INVALID_SERVICE_ID), false),
        (rejected(RejReason::CONSUMER), false),
        (ConnectError::Disconnected, false),
        (ConnectError::BadReply { reason: RejReason::NO_RESOURCES }, false),
    ];
    for (error, retryable) in at_the_peer {
        assert_eq!((error.is_retryable(), error.is_local()), (retryable, false), "{error}");
    }
    let here = [
        (ConnectError::PortDown { port: 1 }, true),
        (ConnectError::Path(QueryError::PortDown { port: 1 }), true),
        (ConnectError::Path(QueryError::NoPath { dgid: Gid([1; 16]) }), false),
        (ConnectError::Invalid(Invalid::at_least("retries", 0, 1)), false),
        (ConnectError::Device(DeviceError::Gone), false),
        (ConnectError::Qp { step: QpStep::Create, source: DeviceError::Gone }, false),
        (ConnectError::Deadline { waited: Duration::ZERO }, false),
        (ConnectError::Closed, false),
    ];
    for (error, retryable) in here {
        assert_eq!((error.is_retryable(), error.is_local()), (retryable, true), "{error}");
    }
}

#[test]
fn the_last_error_tells_of_all_attempts() {
    let start = Instant::now();
    let all = Attempts { made: 3, sent: 5, first_sent: Some(start) };
    let now = start + Duration::from_secs(2);
    let no = rejected(RejReason::NO_RESOURCES);
    let text = no.to_string();
    let all_told = format!("{text}, after 3 attempts and 5 requests in 2s");
    assert_eq!(no.of_all(&all, now).to_string(), all_told);
    let silence = silence(1, 2, 1, true).of_all(&all, now);
    let text = "no answer to the last of 3 attempts, 5 requests in 2s, though the peer said that it is busy";
    assert_eq!(silence.to_string(), text);
}

#[test]
fn errors_of_the_sa_are_errors_like_others() {
    use crate::sa::{Incomplete, NodeRecord, SaError, SaStatus};
    fn asking(error: impl Into<Error>) -> (String, io::ErrorKind) {
        let error = error.into();
        (error.to_string(), io::Error::from(error).kind())
    }
    let late = SaError::Late(Duration::from_secs(1));
    let none = SaError::Status(SaStatus::NO_RECORDS);
    assert_eq!(io::Error::from(none.clone()).kind(), io::ErrorKind::NotFound);
    assert_eq!(io::Error::from(DeviceError::Gone).kind(), io::ErrorKind::NotConnected);
    assert_eq!(asking(late.clone()), ("no answer of the SA within 1s".to_owned(), io::ErrorKind::TimedOut));
    assert_eq!(asking(none).1, io::ErrorKind::NotFound);
    assert_eq!(asking(QueryError::Sa(Box::new(late))).1, io::ErrorKind::TimedOut);
    let cut = Incomplete { records: vec![NodeRecord::default(); 2] };
    let text = "the answer was cut on its way: 2 records came, how many there are is not known";
    assert_eq!(asking(cut), (text.to_owned(), io::ErrorKind::InvalidData));
}

fn silence(attempts: u32, sent: u32, secs: u64, busy: bool) -> ConnectError {
    ConnectError::Unreachable { attempts, sent, waited: Duration::from_secs(secs), busy }
}

fn rejected(reason: RejReason) -> ConnectError {
    ConnectError::Rejected(Box::new(Rejection {
        reason,
        message: MessageId::REQ,
        info: RejectInfo::None,
        private_data: PrivateData::EMPTY,
        attempts: 1,
        sent: 1,
        waited: Duration::ZERO,
    }))
}
