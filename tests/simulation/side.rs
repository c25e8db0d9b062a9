//! What a program does with its side of a connection.

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::{Either, join_all, join3, select};
use ibcm::{Closed, Connection, Message, OpCause, OpError, RecvError, Role};
use tokio::time::timeout;

use super::content;
use super::plan::{Burst, Call, Leave, Life};
use super::records::{Ended, Fate, Left, Side};
use super::world::{World, within};

/// Reading and sending stop so soon after the end of a connection: what is there is read, pauses pass.
const STOPS_WITHIN: Duration = Duration::from_secs(2);

/// A program's work on one connection.
struct Program<'a> {
    world: &'a Arc<World>,
    call: &'a Call,
    host: usize,
    role: Role,
    life: &'a Life,
    /// How long its DREQs can be tried.
    bound: Duration,
    conn: &'a Connection,
    /// Held by those that send, so that the last message is the last.
    talking: tokio::sync::Mutex<()>,
    record: Mutex<Side>,
}

/// Sends, receives, and ends as the call's plan says.
pub async fn live(
    world: &Arc<World>,
    call: &Call,
    host: usize,
    role: Role,
    bound: Duration,
    conn: Connection,
) {
    let life = call.life(role);
    let messages = life.talk.iter().map(|burst| burst.lens.len()).sum::<usize>() + 1;
    let side = Side {
        call: call.number,
        host,
        role,
        qpn: conn.local_qpn(),
        peer_qpn: conn.peer().qpn,
        since: world.journal.now(),
        sent: vec![Fate::Unknown; messages],
        received: Vec::new(),
        ended: None,
        left: Left::No,
        closed: None,
    };
    let (record, talking) = (Mutex::new(side), tokio::sync::Mutex::default());
    let program = Program { world, call, host, role, life, bound, conn: &conn, talking, record };
    program.run().await;
    let side = program.record.into_inner().unwrap_or_else(PoisonError::into_inner);
    drop(conn);
    world.records().sides.push(side);
}

impl Program<'_> {
    fn record(&self) -> MutexGuard<'_, Side> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, line: std::fmt::Arguments<'_>) {
        self.world.note(self.host, format_args!("{} {:?}: {line}", self.call.number, self.role));
    }

    async fn run(&self) {
        let work = pin!(join3(self.watch(), self.talk(), self.receive()));
        let end = pin!(self.end());
        match select(end, work).await {
            Either::Left((true, work)) => _ = within("stopping work", STOPS_WITHIN, work).await,
            Either::Left((false, _)) => {}
            Either::Right((_, end)) => _ = end.await,
        }
    }

    // Sending.

    async fn talk(&self) {
        let _talking = self.talking.lock().await;
        for (n, burst) in self.life.talk.iter().enumerate() {
            self.world.pause(burst.after).await;
            if !self.burst(n, burst).await {
                return;
            }
        }
    }

    /// Whether more can be sent.
    async fn burst(&self, n: usize, burst: &Burst) -> bool {
        let numbers = burst.first..burst.first + burst.lens.len();
        let sends = numbers.zip(&burst.lens).map(|(number, &len)| self.send(number, len));
        let sends = join_all(sends);
        match burst.gives_up {
            Some(time) => {
                if timeout(time, sends).await.is_err() {
                    self.note(format_args!("burst {n} given up"));
                    return true;
                }
            }
            None => _ = within("sending", self.call.send_bound(self.role, n), sends).await,
        }
        let broken = |fate: &Fate| matches!(fate, Fate::Failed(OpCause::Status(_)));
        if self.fates(burst).iter().any(broken) {
            self.ends("a broken connection").await;
        }
        self.fates(burst).iter().all(|fate| matches!(fate, Fate::Done))
    }

    fn fates(&self, burst: &Burst) -> Vec<Fate> {
        self.record().sent[burst.first..][..burst.lens.len()].to_vec()
    }

    /// Odd numbers by copy, even ones in a buffer.
    async fn send(&self, number: usize, len: usize) {
        let label = content::label(self.call.number, self.role, number);
        let data = content::message(label, len);
        let sent = match number % 2 {
            0 => self.send_buf(label, &data).await,
            _ => self.conn.send_copy(&data).imm(label).await,
        };
        match sent {
            Ok(()) => self.record().sent[number] = Fate::Done,
            Err(OpError { cause, .. }) => {
                self.note(format_args!("message {number} not sent: {cause}"));
                assert!(!matches!(cause, OpCause::Invalid(_)), "message {number} refused: {cause}");
                self.record().sent[number] = Fate::Failed(cause);
            }
        }
    }

    async fn send_buf(&self, label: u32, data: &[u8]) -> Result<(), OpError> {
        let Ok(mut buf) = self.world.hca(self.host).alloc(data.len()).await else {
            // The HCA is closed or gone; then so is the connection.
            return self.conn.send_copy(data).imm(label).await;
        };
        buf.clear();
        buf.put_slice(data);
        let buf = self.conn.send(buf).imm(label).await?;
        assert_eq!(buf[..], *data, "the buffer that comes back");
        Ok(())
    }

    // Receiving.

    async fn receive(&self) {
        let ended = loop {
            match self.conn.recv().await {
                Ok(Some(message)) => {
                    self.check(&message);
                    if !self.life.reads.is_zero() {
                        self.world.pause(self.life.reads).await;
                    }
                }
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        self.note(format_args!("receiving ended: {ended:?}"));
        if let Err(RecvError::Broken(_)) = ended {
            self.ends("a broken connection").await;
        }
        let again = self.conn.recv().await.map(|message| message.map(|message| message.len()));
        assert_eq!(again, ended.clone().map(|()| None), "the end of receiving, seen again");
        self.record().ended = Some(ended);
    }

    /// It is one that the peer's program sent, and the next.
    fn check(&self, message: &Message) {
        let (call, sender) = (self.call.number, other(self.role));
        let label = message.imm().expect("each message has a label");
        let number = content::number_of(label, call, sender);
        let number = number.unwrap_or_else(|| panic!("a message of another connection: {label:#x}"));
        let lens = self.call.life(sender).talk.iter().flat_map(|burst| &burst.lens).copied();
        let len = lens.chain([PROBE]).nth(number).expect("one of those in the plan");
        assert!(message[..] == content::message(label, len), "message {number} has come as {message:?}");
        let mut record = self.record();
        if let Some(&last) = record.received.last() {
            assert!(number > last, "message {number} after {last}");
        }
        record.received.push(number);
    }

    // The end.

    /// Whether the program waits until the connection is over.
    async fn end(&self) -> bool {
        let at = self.life.end.at;
        let closed = match select(pin!(self.conn.closed()), pin!(self.world.moment(at))).await {
            Either::Left((closed, _)) => closed,
            Either::Right(_) => match self.leave(self.life.end.how).await {
                Some(closed) => closed,
                None => {
                    self.record().left = Left::Dropped;
                    self.note(format_args!("dropped"));
                    return false;
                }
            },
        };
        self.over(closed).await;
        true
    }

    /// How it ended, unless it is to be dropped.
    async fn leave(&self, how: Leave) -> Option<Closed> {
        match how {
            Leave::Disconnect { deadline } => Some(self.disconnect(deadline).await),
            Leave::Drop => None,
            Leave::DropDisconnecting { after } => {
                let parting = content::parting(self.call.number, self.role);
                self.note(format_args!("disconnects, for {after:?}"));
                self.record().left = Left::Disconnected;
                timeout(after, self.conn.disconnect().private_data(&parting)).await.ok()
            }
            Leave::Probe => {
                let first = self.record().sent.len() - 1;
                let probe = Burst { after: Duration::ZERO, first, lens: vec![PROBE], gives_up: None };
                let _talking = self.talking.lock().await;
                self.note(format_args!("sends one more message"));
                self.burst(self.life.talk.len(), &probe).await;
                Some(self.disconnect(Duration::from_secs(10)).await)
            }
        }
    }

    async fn disconnect(&self, deadline: Duration) -> Closed {
        let parting = content::parting(self.call.number, self.role);
        self.note(format_args!("disconnects"));
        self.record().left = Left::Disconnected;
        let disconnect = self.conn.disconnect().private_data(&parting).deadline(deadline);
        within("disconnecting", deadline, disconnect).await
    }

    /// A connection that cannot go on is over when its DREQs are.
    async fn ends(&self, what: &str) {
        within(what, self.bound, self.conn.closed()).await;
    }

    /// Sees the end when it comes, whatever the program is at.
    async fn watch(&self) {
        let closed = self.conn.closed().await;
        self.note(format_args!("is over: {closed}"));
        self.record().closed = Some(Ended::new(self.world.journal.now(), &closed));
    }

    /// The report is always the same.
    async fn over(&self, closed: Closed) {
        let again = within("asking again", Duration::ZERO, self.conn.closed()).await;
        assert_eq!(again, closed, "how it ended, asked again");
        let again = within("disconnecting again", Duration::ZERO, self.conn.disconnect()).await;
        assert_eq!(again, closed, "how it ended, after disconnecting again");
    }
}

/// Length of the message that only asks whether the peer is there.
const PROBE: usize = 1;

fn other(role: Role) -> Role {
    match role {
        Role::Active => Role::Passive,
        Role::Passive => Role::Active,
    }
}
