//! What two ends do together.

use std::fmt;
use std::str::FromStr;

use super::Result;

/// What is done again and again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// 64 bytes there and back.
    PingPong,
    /// Writes of 64 KiB.
    Write,
    /// Reads of 64 KiB.
    Read,
    /// Messages of 64 KiB.
    Send,
}

/// What an end does while nothing comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    /// It sleeps until it is woken.
    Blocking,
    /// It looks again.
    Spinning,
}

/// So much of one kind of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Task {
    /// What.
    pub work: Work,
    /// How it is waited for.
    pub waiting: Waiting,
    /// How often.
    pub count: u64,
}

const WORKS: [(&str, Work); 4] =
    [("ping-pong", Work::PingPong), ("write", Work::Write), ("read", Work::Read), ("send", Work::Send)];
const WAITINGS: [(&str, Waiting); 2] = [("blocking", Waiting::Blocking), ("spinning", Waiting::Spinning)];

fn name<T: PartialEq>(names: &'static [(&str, T)], thing: &T) -> &'static str {
    names.iter().find(|(_, named)| named == thing).map_or("", |(name, _)| name)
}

fn named<T: Copy>(names: &[(&str, T)], word: Option<&str>) -> Result<T> {
    let found = names.iter().find(|(name, _)| Some(*name) == word);
    found.map(|(_, thing)| *thing).ok_or_else(|| format!("{word:?} is not a task").into())
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(name(&WORKS, self))
    }
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(name(&WAITINGS, self))
    }
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.work, self.waiting, self.count)
    }
}

impl FromStr for Task {
    type Err = Box<dyn std::error::Error + Send + Sync>;

    fn from_str(line: &str) -> Result<Self> {
        let mut words = line.split(' ');
        let work = named(&WORKS, words.next())?;
        let waiting = named(&WAITINGS, words.next())?;
        let count = words.next().unwrap_or_default().parse()?;
        Ok(Self { work, waiting, count })
    }
}
