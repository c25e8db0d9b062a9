//! What holds for the events of every connection, whatever happens.

use std::collections::BTreeMap;

use crate::proto::{ConnHandle, Event};

/// Checks the order of each connection's events as they come.
#[derive(Debug, Default)]
pub(super) struct Monitor(BTreeMap<ConnHandle, Seen>);

#[derive(Debug, Default)]
struct Seen {
    request: bool,
    reply: bool,
    established: bool,
    busy: bool,
    /// Our LAP is out, and whether the peer has asked for more time.
    lap: Option<bool>,
    /// The peer's is here, undecided.
    asked: bool,
    ended: bool,
    released: bool,
    /// Given up here: nothing but Released may follow, or not even that.
    given_up: Option<Ending>,
}

/// What may follow when a connection was given up here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// Aborted or rejected.
    Released,
    /// Detached.
    Nothing,
}

impl Monitor {
    /// Panics if the event may not come now.
    pub(super) fn check(&mut self, event: &Event) {
        let seen = self.0.entry(event.conn()).or_default();
        assert!(!seen.released, "an event after Released: {event:?}");
        assert_ne!(seen.given_up, Some(Ending::Nothing), "an event of a detached connection: {event:?}");
        let once = |flag: &mut bool| assert!(!std::mem::replace(flag, true), "a second {event:?}");
        match event {
            Event::Released { .. } => once(&mut seen.released),
            _ if seen.given_up.is_some() => panic!("given up, and yet: {event:?}"),
            _ if event.is_final() => once(&mut seen.ended),
            _ => {
                assert!(!seen.ended, "an event after the final one: {event:?}");
                match event {
                    Event::Request { .. } | Event::PeerRequest { .. } => once(&mut seen.request),
                    Event::Reply { .. } => once(&mut seen.reply),
                    Event::Established { .. } => once(&mut seen.established),
                    Event::Busy { .. } => once(seen.lap.as_mut().unwrap_or(&mut seen.busy)),
                    Event::AlternateLoaded { .. }
                    | Event::AlternateRefused { .. }
                    | Event::AlternateTimeout { .. } => {
                        assert!(seen.lap.take().is_some(), "nobody has asked for a path: {event:?}");
                    }
                    Event::AlternateRequest { .. } => once(&mut seen.asked),
                    Event::Migrated { .. } => {}
                    other => panic!("an event that the monitor does not know: {other:?}"),
                }
            }
        }
    }

    /// The connection is given up here. What was reported before and not looked at yet does not count.
    pub(super) fn give_up(&mut self, conn: ConnHandle, ending: Ending) {
        let seen = self.0.entry(conn).or_default();
        if !seen.released {
            seen.given_up = Some(ending);
        }
    }

    /// A LAP leaves here.
    pub(super) fn ask_for_path(&mut self, conn: ConnHandle) {
        let before = self.0.entry(conn).or_default().lap.replace(false);
        assert_eq!(before, None, "a second LAP");
    }

    /// Whether a LAP has been sent whose end was not reported.
    pub(super) fn awaits_apr(&self, conn: ConnHandle) -> bool {
        self.0.get(&conn).is_some_and(|seen| seen.lap.is_some())
    }

    /// The peer's LAP is answered here.
    pub(super) fn answer_path(&mut self, conn: ConnHandle) {
        let asked = self.0.get_mut(&conn).map(|seen| std::mem::take(&mut seen.asked));
        assert_eq!(asked, Some(true), "an answer to nothing");
    }

    /// The connections that were ever reported.
    pub(super) fn connections(&self) -> impl Iterator<Item = ConnHandle> + '_ {
        self.0.keys().copied()
    }

    /// Whether every connection that was ever reported has been released, but for those that were detached.
    pub(super) fn all_released(&self) -> bool {
        self.0.values().all(|seen| seen.released || seen.given_up == Some(Ending::Nothing))
    }
}
