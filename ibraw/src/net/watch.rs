//! Whether a link is up, and whether it is still there (rtnetlink(7)).

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use ibcm_sys::{Watch as Watched, packet};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};

use crate::RawError;
use crate::link::Interface;
use crate::stats::{Counters, count};

/// The multicast group of changes of links, `RTMGRP_LINK`.
const LINKS: u32 = 1;

/// The protocol of changes of links is number 0.
const NETLINK_ROUTE: Option<Protocol> = None;

const UP: u8 = 0;
const DOWN: u8 = 1;
const GONE: u8 = 2;

/// Watches one link for one socket.
#[derive(Debug)]
pub(super) struct Watch {
    changes: Watched,
    link: Arc<Interface>,
    /// What was said last.
    said: AtomicU8,
    counters: Arc<Counters>,
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
        let socket = open().map_err(|error| RawError::io("watch the links", error.into()))?;
        let changes = Watched::readable(Arc::new(socket));
        let changes = changes.map_err(|error| RawError::io("watch the links", error))?;
        Ok(Self { changes, link, said: AtomicU8::new(UP), counters })
    }

    /// Looks at the link: what is to be said of it that was not said before. That it is gone is said to all.
    pub(super) fn look(&self) -> Result<(), RawError> {
        let now = self.now();
        let before = self.said.fetch_max(now, Ordering::AcqRel);
        match (before.max(now), now) {
            (GONE, _) => Err(RawError::LinkGone),
            (_, DOWN) if before == UP => {
                count(&self.counters.link_down_events);
                Err(RawError::LinkDown)
            }
            (DOWN, UP) => {
                _ = self.said.compare_exchange(DOWN, UP, Ordering::AcqRel, Ordering::Relaxed);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// What is wrong with the link for who sends, if anything: it takes no news from who receives.
    pub(super) fn refuses(&self) -> Option<RawError> {
        match self.now() {
            GONE => Some(RawError::LinkGone),
            DOWN => Some(RawError::LinkDown),
            _ => None,
        }
    }

    fn now(&self) -> u8 {
        match packet::exists(self.changes.as_fd(), &self.link.name, self.link.index) {
            Some(true) => UP,
            Some(false) => DOWN,
            None => GONE,
        }
    }

    pub(super) fn is_gone(&self) -> bool {
        self.said.load(Ordering::Acquire) == GONE
    }

    /// Until a link has changed, this one or another.
    pub(super) async fn changed(&self) -> Result<(), RawError> {
        let failed = |error| RawError::io("watch the links", error);
        self.changes.ready().await.map_err(failed)?;
        let mut message = [0; 4096];
        loop {
            let received = self
                .changes
                .try_io(|socket| recv(socket, &mut message[..], RecvFlags::empty()).map_err(io::Error::from));
            match received {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                // What was missed does not matter: the link is looked at.
                Err(error) if Errno::from_io_error(&error) == Some(Errno::NOBUFS) => {}
                Err(error) => return Err(failed(error)),
            }
        }
    }
}
