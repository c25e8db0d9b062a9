//! The receiving side of a byte stream.

use std::io;
use std::task::{Context, Poll, ready};

use tokio::task::coop::poll_proceed;

use crate::error::RecvError;
use crate::established::Established;
use crate::message::Message;
use crate::parked::Ticket;

/// The message that is being read.
pub(super) struct Reading {
    message: Option<Message>,
    /// How much of it was read.
    read: usize,
    ticket: Ticket,
}

impl Reading {
    pub(super) fn new(conn: &Established) -> Self {
        Self { message: None, read: 0, ticket: Ticket::new(&conn.slot().parked) }
    }

    /// What was not read yet of the message.
    pub(super) fn rest(&self) -> &[u8] {
        self.message.as_ref().map_or(&[], |message| &message[self.read..])
    }

    /// Until there is something to read, or the stream is at its end. If this side is `closing` it, that is no error.
    pub(super) fn poll_fill(
        &mut self,
        conn: &Established,
        closing: bool,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.rest().is_empty() {
            return Poll::Ready(Ok(()));
        }
        let budget = ready!(poll_proceed(cx));
        // Messages may be empty.
        while self.rest().is_empty() {
            let received = ready!(conn.poll_recv(&mut self.ticket, cx));
            budget.made_progress();
            self.ticket.leave();
            self.read = 0;
            self.message = match received {
                Ok(message) => message,
                Err(RecvError::Closed) if closing => None,
                Err(error) => return Poll::Ready(Err(error.into())),
            };
            if self.message.is_none() {
                break;
            }
        }
        Poll::Ready(Ok(()))
    }

    /// So much was read. A message that was read gives its buffer back.
    pub(super) fn consume(&mut self, count: usize) {
        self.read += count;
        if self.rest_len() == 0 {
            self.message = None;
        }
    }

    fn rest_len(&self) -> usize {
        self.message.as_ref().map_or(0, |message| message.len().saturating_sub(self.read))
    }
}
