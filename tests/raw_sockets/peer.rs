//! A Python program at the other end: its sockets are the interpreter's.

use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Stdio};

use tests::veth::{Ended, Net, Side};

const SCRIPT: &str = include_str!("peer.py");

/// The program and its two pipes. It gives up by itself when nothing arrives for ten seconds.
#[derive(Debug)]
pub(crate) struct Peer {
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    _ended: Ended,
}

impl Peer {
    /// Starts it with a socket of this kind (`ether`, `ipv6`, `udp`) and number, and waits until that is bound.
    pub(crate) fn start(net: &Net, side: Side, kind: &str, number: u16) -> io::Result<Self> {
        Self::start_on(net, side, side.interface(), kind, number)
    }

    /// The same on an interface beside the side's own.
    pub(crate) fn start_on(
        net: &Net,
        side: Side,
        interface: &str,
        kind: &str,
        number: u16,
    ) -> io::Result<Self> {
        let mut command = net.command(side, "python3");
        command.args(["-c", SCRIPT, kind, interface, &number.to_string()]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let _ended = Ended(child);
        let input = input.ok_or(io::ErrorKind::BrokenPipe)?;
        let output = BufReader::new(output.ok_or(io::ErrorKind::BrokenPipe)?);
        let mut peer = Self { input, output, _ended };
        peer.answer()?;
        Ok(peer)
    }

    /// Says what to do, without waiting until it is done.
    pub(crate) fn tell(&mut self, line: &str) -> io::Result<()> {
        writeln!(self.input, "{line}")?;
        self.input.flush()
    }

    /// What it says when it has done what it was told.
    pub(crate) fn answer(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            return Err(io::Error::other("the peer has ended"));
        }
        Ok(line.trim_end().to_owned())
    }

    /// Says what to do and waits until it is done.
    pub(crate) fn ask(&mut self, line: &str) -> io::Result<String> {
        self.tell(line)?;
        self.answer()
    }

    /// Sends a frame as it is.
    pub(crate) fn send(&mut self, frame: &[u8]) -> io::Result<()> {
        self.ask(&format!("send {}", hex(frame))).map(drop)
    }

    /// Sends a payload to an address.
    pub(crate) fn send_to(&mut self, payload: &[u8], to: &str) -> io::Result<()> {
        self.ask(&format!("send {} {to}", hex(payload))).map(drop)
    }

    /// The next that it receives, and the address that Python has for the sender.
    pub(crate) fn recv(&mut self) -> io::Result<(Vec<u8>, String)> {
        let answer = self.ask("recv")?;
        let (data, sender) = answer.split_once(' ').ok_or(io::ErrorKind::InvalidData)?;
        Ok((bytes(data)?, sender.to_owned()))
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        _ = write!(text, "{byte:02x}"); // to a string: it cannot fail
        text
    })
}

fn bytes(hex: &str) -> io::Result<Vec<u8>> {
    let byte = |at| hex.get(at..at + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok());
    let bytes = (0..hex.len()).step_by(2).map(byte).collect::<Option<_>>();
    bytes.ok_or_else(|| io::Error::other(format!("not bytes: {hex}")))
}
