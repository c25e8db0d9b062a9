//! Whether a link is up, and whether it is still there (rtnetlink(7)).

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ibcm_sys::{Watch as Watched, packet};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};
use tokio::sync::Notify;

use crate::RawError;
use crate::link::Interface;
use crate::outages::Outages;
use crate::stats::{Counters, count};

/// The multicast group of changes of links, `RTMGRP_LINK`.
const LINKS: u32 = 1;

/// The protocol of changes of links is number 0.
const NETLINK_ROUTE: Option<Protocol> = None;

/// The message of a link that is new or has changed.
const RTM_NEWLINK: u16 = 16;

/// `IFF_UP` and `IFF_RUNNING`: a link with both carries packets.
const CARRIES: u32 = 0x41;

/// Watches one link for one socket.
#[derive(Debug)]
pub(super) struct Watch {
    changes: Watched,
    link: Arc<Interface>,
    state: Mutex<State>,
    /// That the link is gone is for all who wait.
    gone: Notify,
    counters: Arc<Counters>,
}

#[derive(Debug, Default)]
struct State {
    outages: Outages,
    is_gone: bool,
}

impl Watch {
    /// Of a link that is taken for up.
    pub(super) fn new(link: Arc<Interface>, counters: Arc<Counters>) -> Result<Self, RawError> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let open = || -> rustix::io::Result<_> {
            let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, NETLINK_ROUTE)?;
            bind(&socket, &SocketAddrNetlink::new(0, LINKS))?;
            Ok(socket)
        };
        let failed = |error| RawError::io("watch the links", error);
        let socket = open().map_err(|error| failed(error.into()))?;
        let changes = Watched::readable(Arc::new(socket)).map_err(failed)?;
        let watch = Self { changes, link, state: Mutex::default(), gone: Notify::new(), counters };
        // What it became since it was opened: only changes are announced.
        watch.see(&mut watch.state());
        Ok(watch)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is to be said of the link that was not said before. That it is gone is said to all.
    pub(super) fn look(&self) -> Result<(), RawError> {
        let mut state = self.state();
        // The descriptor itself is asked: the runtime may not know yet that there is something.
        self.take(&mut state, |message| receive(self.changes.as_fd(), message))?;
        Self::tell(&mut state)
    }

    fn tell(state: &mut State) -> Result<(), RawError> {
        if state.is_gone {
            return Err(RawError::LinkGone);
        }
        if state.outages.tell() { Err(RawError::LinkDown) } else { Ok(()) }
    }

    /// What is wrong with the link for who sends, if anything: it takes no news from who receives.
    pub(super) fn refuses(&self) -> Option<RawError> {
        match self.carries() {
            None => Some(RawError::LinkGone),
            Some(false) => Some(RawError::LinkDown),
            Some(true) => None,
        }
    }

    /// Whether it does at this moment; none if it is gone.
    fn carries(&self) -> Option<bool> {
        packet::exists(self.changes.as_fd(), &self.link.name, self.link.index)
    }

    pub(super) fn is_gone(&self) -> bool {
        self.state().is_gone
    }

    /// Until there is something to say.
    pub(super) async fn news(&self) -> RawError {
        loop {
            let gone = self.gone.notified();
            tokio::pin!(gone);
            gone.as_mut().enable();
            if let Err(news) = Self::tell(&mut self.state()) {
                return news;
            }
            tokio::select! {
                ready = self.changes.ready() => {
                    if let Err(error) = ready {
                        return RawError::io("watch the links", error);
                    }
                }
                () = gone => continue,
            }
            let receive = |message: &mut [u8]| self.changes.try_io(|socket| receive(socket, message));
            if let Err(error) = self.take(&mut self.state(), receive) {
                return error;
            }
        }
    }

    /// Takes the announcements that are there.
    fn take(
        &self,
        state: &mut State,
        mut receive: impl FnMut(&mut [u8]) -> io::Result<usize>,
    ) -> Result<(), RawError> {
        // What is of interest is at the front.
        let mut message = [0; 256];
        loop {
            match receive(&mut message) {
                Ok(len) => {
                    let Some(carries) = change(&message[..len.min(message.len())], self.link.index) else {
                        continue;
                    };
                    self.hear(state, carries);
                    // With another name or in another namespace it is gone, too.
                    if self.carries().is_none() {
                        self.is_away(state);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Some were missed.
                Err(error) if Errno::from_io_error(&error) == Some(Errno::NOBUFS) => self.see(state),
                Err(error) => return Err(RawError::io("watch the links", error)),
            }
        }
    }

    fn hear(&self, state: &mut State, carries: bool) {
        if state.outages.hear(carries) {
            count(&self.counters.link_down_events);
        }
    }

    /// Looks at the link itself.
    fn see(&self, state: &mut State) {
        match self.carries() {
            Some(carries) => self.hear(state, carries),
            None => self.is_away(state),
        }
    }

    fn is_away(&self, state: &mut State) {
        state.is_gone = true;
        self.gone.notify_waiters();
    }
}

fn receive(socket: BorrowedFd<'_>, message: &mut [u8]) -> io::Result<usize> {
    Ok(recv(socket, message, RecvFlags::empty()).map(|(_, len)| len)?)
}

/// Whether the link with this index carries packets after what an announcement says; none if it is of another link.
///
/// `struct nlmsghdr` (length, type, flags, number, sender) and `struct ifinfomsg` (family, type, index, flags, mask).
fn change(message: &[u8], index: u32) -> Option<bool> {
    let word = |at| {
        message.get(at..at + 4).map(|bytes| u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    };
    let kind = u16::from_ne_bytes([*message.get(4)?, *message.get(5)?]);
    let flags = word(24)?;
    // Of another family it is about what the link does in that: a bridge's port, for example.
    let is_ours = message[16] == 0 && word(20)? == index;
    is_ours.then_some(kind == RTM_NEWLINK && flags & CARRIES == CARRIES)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, index: u32, flags: u32) -> Vec<u8> {
        let mut message = vec![0; 32];
        message[4..6].copy_from_slice(&kind.to_ne_bytes());
        message[20..24].copy_from_slice(&index.to_ne_bytes());
        message[24..28].copy_from_slice(&flags.to_ne_bytes());
        message
    }

    #[test]
    fn announcements_of_a_link() {
        assert_eq!(change(&message(16, 7, 0x1_1043), 7), Some(true));
        assert_eq!(change(&message(16, 7, 0x1003), 7), Some(false), "up without a carrier");
        assert_eq!(change(&message(16, 7, 0x1002), 7), Some(false));
        assert_eq!(change(&message(17, 7, 0x1_1043), 7), Some(false), "deleted");
        assert_eq!(change(&message(16, 8, 0x1_1043), 7), None);
        let mut of_bridge = message(17, 7, 0x1_1043);
        of_bridge[16] = 7;
        assert_eq!(change(&of_bridge, 7), None, "it has left a bridge");
        assert_eq!(change(&message(16, 7, 0x1_1043)[..27], 7), None, "cut");
    }
}
