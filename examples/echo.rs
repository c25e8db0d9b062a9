//! Runs both ends of an echo service.
fn main() {}
