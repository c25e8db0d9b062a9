//! What the errors say and into what they convert.

use std::error::Error as _;
use std::io;
use std::time::Duration;

use ibwire::PrivateData;

use super::*;

#[test]
fn texts_are_lower_case_without_a_full_stop() {
    let errors = [
        ConnectError::Unreachable { sent: 9, waited: Duration::from_secs(10), busy: false }.to_string(),
        ConnectError::Unreachable { sent: 1, waited: Duration::from_secs(1), busy: true }.to_string(),
        AcceptError::Unconfirmed { sent: 1, waited: Duration::from_secs(1) }.to_string(),
    ];
    assert_eq!(errors[0], "no answer to 9 requests in 10s");
    assert_eq!(errors[1], "no answer to 1 request in 1s, though the peer said that it is busy");
    assert_eq!(errors[2], "no confirmation of 1 reply in 1s");
}

#[test]
fn the_source_stays_through_the_conversions() {
    let error = OpenError::Device { device: "soft".into(), source: ibdev::DeviceError::Gone };
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
fn cm_t55_private_data_that_is_too_long_names_value_and_limit() {
    let error = PrivateData::<92>::new(&[0; 93]).map_err(Error::from).unwrap_err();
    assert_eq!(error.to_string(), "private data length is 93, at most 92 is allowed");
}

#[test]
fn what_is_worth_a_retry() {
    let silence = ConnectError::Unreachable { sent: 1, waited: Duration::ZERO, busy: false };
    assert!(silence.is_retryable() && !silence.is_local());
    let zero = ConnectError::Invalid(Invalid::at_least("retries", 0, 1));
    assert!(!zero.is_retryable() && zero.is_local());
    assert!(ConnectError::PortDown { port: 1 }.is_retryable());
}
