//! A request that a program answers itself.

use std::sync::{Arc, Weak};

use ibwire::{Gid, Lid, PKey, ServiceId};

use super::backlog::Waiting;
use super::{Answer, Status};
use crate::proto::message::{IpHeader, SidrReq};
use crate::proto::{Invalid, Limit, Value};
use crate::shared::Shared;

/// A peer's request for the socket of a service.
///
/// It is answered by moving it. Dropped, it is refused with status 2. The same answer meets the peer's repetitions for two
/// seconds.
#[derive(Debug)]
#[must_use = "dropped, the request is refused"]
pub struct Request {
    shared: Arc<Shared>,
    /// `None` once it is answered.
    waiting: Option<Waiting>,
    req: SidrReq,
    ip: Option<IpHeader>,
    port: u8,
    gid: Option<Gid>,
    lid: Lid,
}

impl Request {
    pub(super) fn new(shared: Arc<Shared>, waiting: Waiting) -> Self {
        let request = &waiting.request;
        let (req, ip, from) = (request.req.clone(), request.ip, request.from);
        let gid = from.grh.map(|grh| grh.dgid);
        Self { shared, waiting: Some(waiting), req, ip, port: from.port, gid, lid: from.slid }
    }

    /// What the peer's program sent along, zero-padded: 216 bytes, or the 180 behind the IP header of a request that is
    /// addressed by IP.
    pub fn private_data(&self) -> &[u8] {
        let area = self.req.private_data.as_bytes();
        match self.ip {
            Some(_) => &area[IpHeader::LEN..],
            None => area,
        }
    }

    /// The service ID that it asks for.
    pub const fn service_id(&self) -> ServiceId {
        self.req.service_id
    }

    /// The IP addresses and ports of a request that came to [`Responder::bind_ip`](super::Responder::bind_ip).
    pub const fn ip(&self) -> Option<&IpHeader> {
        self.ip.as_ref()
    }

    /// The partition that it names.
    pub const fn pkey(&self) -> PKey {
        self.req.pkey
    }

    /// The number of the port that it came to.
    pub const fn port(&self) -> u8 {
        self.port
    }

    /// The GID of who asks; on RoCE the IP address. `None` where packets carry none.
    pub const fn gid(&self) -> Option<Gid> {
        self.gid
    }

    /// The LID of who asks; [`Lid::NONE`] on RoCE.
    pub const fn lid(&self) -> Lid {
        self.lid
    }

    /// Answers with a socket, or with an [`Answer`] that has private data. It does not wait, and whether the peer still wants
    /// it is not known.
    ///
    /// # Errors
    /// The socket is of another HCA or port than the request came to, where the peer would look for it in vain: the request is
    /// refused with status 3.
    pub fn answer(mut self, answer: impl Into<Answer>) -> Result<(), Invalid> {
        let answer = answer.into();
        let is_here = answer.at.as_ref().is_none_or(|(shared, port)| {
            Weak::ptr_eq(&Arc::downgrade(shared), &Arc::downgrade(&self.shared)) && *port == self.port
        });
        if !is_here {
            self.end(&Answer::refusal(Status::NO_QP));
            let port = answer.at.map_or(0, |(_, port)| port);
            let must = Limit::Must("the one, of the same HCA, that the request came to");
            return Err(Invalid::new("the port of the socket", Value::Number(port.into()), must));
        }
        self.end(&answer);
        Ok(())
    }

    /// Refuses.
    pub fn refuse(mut self, status: Status) {
        self.end(&Answer::refusal(status));
    }

    /// Sends the peer elsewhere, to the CM at this GID: see [`Answer::redirect`] for one that says more.
    pub fn redirect(mut self, gid: Gid) {
        self.end(&Answer::redirect_to(gid));
    }

    fn end(&mut self, answer: &Answer) {
        if let Some(waiting) = self.waiting.take() {
            waiting.answer(&self.shared, answer);
        }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if let Some(waiting) = self.waiting.take() {
            waiting.refuse(&self.shared);
        }
    }
}
