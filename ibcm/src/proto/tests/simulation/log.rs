//! What is told of a simulation that fails.

use std::path::PathBuf;

use super::super::capture;
use super::super::pair::Flight;
use super::{Move, Sim};
use crate::proto::message::Message;
use crate::proto::{ConnHandle, Event};

/// A line of the log.
#[derive(Debug)]
pub(super) enum Line {
    Sent { fate: &'static str, flight: Box<Flight> },
    Arrived { to: usize, message: Message },
    Told(usize, Event),
    Did(usize, Move, ConnHandle, bool),
    Restarted(usize),
}

impl Drop for Sim {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        eprintln!("seed {} fails; {:?}", self.seed, self.weather);
        for (at, line) in &self.log {
            match line {
                Line::Sent { fate, flight } => {
                    eprintln!("{at:>12.3?} {} {fate} {}", flight.from, name(&flight.message));
                }
                Line::Arrived { to, message } => eprintln!("{at:>12.3?}      {} > {to}", name(message)),
                Line::Restarted(host) => eprintln!("{at:>12.3?} {host} restarts"),
                Line::Told(host, event) => eprintln!("{at:>12.3?} {host} is told {}", told(event)),
                Line::Did(host, what, conn, possible) => {
                    eprintln!(
                        "{at:>12.3?} {host} does {what:?} to {conn:?}{}",
                        if *possible { "" } else { ": refused" }
                    );
                }
            }
        }
        match self.write_pcap() {
            Ok(file) => eprintln!("the packets, lost ones too: {}", file.display()),
            Err(error) => eprintln!("the packets could not be written: {error}"),
        }
    }
}

/// An event without the messages in it, which the log has already.
fn told(event: &Event) -> String {
    let conn = event.conn();
    match event {
        Event::Request { .. } => format!("Request {conn:?}"),
        Event::PeerRequest { .. } => format!("PeerRequest {conn:?}"),
        Event::Reply { .. } => format!("Reply {conn:?}"),
        Event::Busy { .. } => format!("Busy {conn:?}"),
        Event::ReplyRefused { reason, .. } => format!("ReplyRefused {conn:?} {reason:?}"),
        Event::AlternateRequest { request, .. } => format!("AlternateRequest {conn:?} {:?}", request.attr),
        other => format!("{other:?}"),
    }
}

fn name(message: &Message) -> String {
    let mut text =
        format!("{} {} {}", message.attribute(), message.local_comm_id(), message.remote_comm_id());
    match message {
        Message::Req(req) => text += &format!(" QP {}", req.local_qpn),
        Message::Rep(rep) => text += &format!(" QP {}", rep.local_qpn),
        Message::Dreq(dreq) => text += &format!(" to QP {}", dreq.remote_qpn),
        Message::Rej(rej) => text += &format!(" {} {:?}", rej.reason, rej.message),
        Message::Mra(mra) => text += &format!(" {:?}", mra.message),
        Message::Lap(lap) => {
            text += &format!(" {:?} to {:?}", lap.alternate.local_gid, lap.alternate.remote_gid);
        }
        Message::Apr(apr) => text += &format!(" {}", apr.status),
        _ => {}
    }
    text
}

impl Sim {
    /// All that was sent, for Wireshark.
    fn write_pcap(&self) -> Result<PathBuf, pcap_file::PcapError> {
        let file = std::env::temp_dir().join(format!("ibcm-engines-seed-{}.pcap", self.seed));
        let sent = self.log.iter().filter_map(|(at, line)| match line {
            Line::Sent { flight, .. } => Some((*at, &**flight)),
            _ => None,
        });
        capture::write(
            std::fs::File::create(&file).map_err(pcap_file::PcapError::IoError)?,
            &self.net,
            sent,
        )?;
        Ok(file)
    }

    pub(super) fn note(&mut self, line: Line) {
        self.log.push((self.net.now - self.start, line));
    }
}
