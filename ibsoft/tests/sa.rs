//! Subnet administration: what was captured from OpenSM, and the rules (spec/sa.md sections 9 and 10).
#![allow(clippy::unwrap_used, reason = "test helpers outside #[test] functions")]

#[path = "sa/answers.rs"]
mod answers;
#[path = "sa/bounds.rs"]
mod bounds;
#[path = "sa/captured.rs"]
mod captured;
#[path = "sa/net.rs"]
mod net;
#[path = "sa/rights.rs"]
mod rights;
#[path = "sa/rules.rs"]
mod rules;
