//! What is asked, and what becomes of it.

use std::time::{Duration, Instant};
use std::{fmt, io};

use ibdev::{DeviceError, MadSource};
use ibwire::mad::{AttributeId, MadStatus, Method};
use ibwire::{Gid, PKey, ServiceId};

use crate::mad::{MalformedTable, SaHeader, table};
use crate::proto::rmpp::RmppError;
use crate::record::{InvalidField, JoinState, Layout, MultiPath, MultiPathRecord, Notice, Record, Template};

/// A request to the SA.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Request {
    /// Get, Set, GetTable, GetMulti or Delete.
    pub method: Method,
    /// What is asked about.
    pub attribute: AttributeId,
    /// Which variant of it; 0 but for [`PortInfoRecord`](crate::record::PortInfoRecord::CAPABILITIES_AT_LEAST).
    pub attribute_modifier: u32,
    /// Which components count.
    pub component_mask: u64,
    /// Makes the request a trusted one. SAs drop requests with a wrong key. Default 0: not trusted.
    pub sm_key: u64,
    /// The record, and what follows it.
    pub data: Vec<u8>,
    /// When to give up.
    pub deadline: Instant,
}

/// Without the key, and of the record, which may hold others, only how long it is.
impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Request");
        shown.field("method", &self.method).field("attribute", &self.attribute);
        shown.field("attribute_modifier", &self.attribute_modifier);
        shown.field("component_mask", &self.component_mask).field("data", &self.data.len());
        shown.field("deadline", &self.deadline).finish_non_exhaustive()
    }
}

impl Request {
    /// A request with this method about the records that match `wanted`.
    ///
    /// # Errors
    /// [`InvalidField`]: a value of the template does not fit.
    pub fn new<R: Record>(
        method: Method,
        wanted: Template<R>,
        deadline: Instant,
    ) -> Result<Self, InvalidField> {
        let (record, component_mask) = wanted.checked()?;
        let data = Layout::to_bytes(&record);
        let attribute = R::ATTRIBUTE;
        Ok(Self { method, attribute, attribute_modifier: 0, component_mask, sm_key: 0, data, deadline })
    }

    /// A query for paths between several ports.
    ///
    /// # Errors
    /// As [`MultiPath::to_bytes`].
    pub fn multi(query: &MultiPath, deadline: Instant) -> Result<Self, InvalidField> {
        let (data, component_mask) = query.to_bytes()?;
        Ok(Self {
            method: Method::GET_MULTI,
            attribute: MultiPathRecord::ATTRIBUTE,
            attribute_modifier: 0,
            component_mask,
            sm_key: 0,
            data,
            deadline,
        })
    }

    /// Whether the answer is a table.
    pub(super) const fn wants_table(&self) -> bool {
        matches!(self.method, Method::GET_TABLE | Method::GET_TRACE_TABLE | Method::GET_MULTI)
    }
}

/// Names a request of one client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub(super) u64);

/// An answer without an error.
#[derive(Clone, PartialEq, Eq)]
pub struct Answer {
    /// Its headers; of a transfer those of the last segment.
    pub header: SaHeader,
    /// What came behind them.
    pub data: Vec<u8>,
    /// Whether all of it came. `false` where something on the way cut a table to one MAD: then the records behind the
    /// last real one are whatever was in that memory.
    pub complete: bool,
    /// What it took.
    pub effort: Effort,
}

/// Of the records, which may hold keys, only how many bytes they are.
impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Answer");
        shown.field("header", &self.header).field("data", &self.data.len());
        shown.field("complete", &self.complete).field("effort", &self.effort).finish()
    }
}

impl Answer {
    /// The only record.
    ///
    /// # Errors
    /// [`QueryError::Malformed`] if there are fewer bytes.
    pub fn record<R: Record>(&self) -> Result<R, QueryError> {
        <R as Layout>::parse(&self.data).map_err(|_| {
            QueryError::Malformed(MalformedTable {
                record: R::NAME,
                need: R::LEN,
                stride: self.data.len(),
                len: self.data.len(),
            })
        })
    }

    /// Whether it is a table without records: one that was cut on its way says so by its records' length alone, what follows
    /// is whatever was in that memory (spec/sa.md T04, 8.6).
    pub const fn is_empty_table(&self) -> bool {
        self.data.is_empty() || !self.complete && self.header.attribute_offset == 0
    }

    /// All records.
    ///
    /// # Errors
    /// [`QueryError::Malformed`] if the data is no row of such records.
    pub fn table<R: Record>(&self) -> Result<Vec<R>, QueryError> {
        if self.is_empty_table() {
            return Ok(Vec::new());
        }
        table(&self.data, self.header.attribute_offset).map_err(QueryError::Malformed)
    }
}

/// What a request took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Effort {
    /// How often it was sent.
    pub sent: u32,
    /// How often the answer was BUSY.
    pub busy: u32,
    /// From the first copy until the end.
    pub waited: Duration,
}

/// Why a request failed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum QueryError {
    /// The SA refused it.
    #[error("the SA answers: {0}")]
    Status(SaStatus),
    /// The SA did not answer, or was busy all the time.
    #[error("no answer of the SA: {} requests in {:?}, busy {} times", .0.sent, .0.waited, .0.busy)]
    Silent(Effort),
    /// The port knew no SA until the request's deadline.
    #[error("the port has no SA: it is down, or no subnet manager has set it up")]
    NoSa,
    /// The transfer of the request or of the answer failed.
    #[error("the transfer failed")]
    Transfer(#[source] RmppError),
    /// The answer is not what it says to be.
    #[error("the answer is malformed")]
    Malformed(#[source] MalformedTable),
    /// The SA redirects to where we cannot go.
    #[error("the SA redirects {0}")]
    Redirect(RedirectFault),
    /// Too many requests wait.
    #[error("{limit} requests are with the SA already, there is no room for more")]
    QueueFull {
        /// [`Config::queue`](super::Config::queue).
        limit: usize,
    },
    /// The method is none that an SA answers.
    #[error("{0} is no request to an SA")]
    Method(Method),
    /// A value does not fit its field.
    #[error(transparent)]
    Invalid(#[from] InvalidField),
    /// No paths at all were asked for.
    #[error("a count of 0 paths asks for none, at least 1 is possible")]
    Count,
    /// The address is none of a multicast group.
    #[error("{0} is not the address of a multicast group")]
    NoGroup(Gid),
    /// Only who keeps a group alive can make it.
    #[error("a group is made by a full member, not as {0}")]
    NoMember(JoinState),
    /// The SA answered about another group than it was asked about.
    #[error("the SA answers about another group, {0}")]
    OtherGroup(Gid),
    /// A lease is at least a second long, and at most 4,294,967,294.
    #[error("a lease of {0:?}, from 1 s to 4,294,967,294 s are possible")]
    Lease(Duration),
    /// This client has registered the service already.
    #[error("{0} is registered by this client already")]
    Registered(ServiceId),
    /// A table was cut on its way to us.
    #[error("the answer was cut on its way: {0} records came, how many there are is not known")]
    Incomplete(usize),
    /// The caller's own limit passed first.
    #[error("no answer of the SA within {0:?}")]
    Late(Duration),
    /// The client is closed, or its runtime has ended.
    #[error("the SA's client is closed")]
    Closed,
    /// The device does not work any more.
    #[error(transparent)]
    Device(DeviceError),
}

impl QueryError {
    /// The kind that it has as an [`io::Error`].
    pub fn io_kind(&self) -> io::ErrorKind {
        match self {
            Self::Status(SaStatus::NO_RECORDS) => io::ErrorKind::NotFound,
            Self::Status(_) | Self::NoSa => io::ErrorKind::Other,
            Self::Silent(_) | Self::Late(_) => io::ErrorKind::TimedOut,
            Self::Transfer(_) | Self::Malformed(_) | Self::OtherGroup(_) | Self::Incomplete(_) => {
                io::ErrorKind::InvalidData
            }
            Self::Redirect(_) => io::ErrorKind::HostUnreachable,
            Self::QueueFull { .. } => io::ErrorKind::ResourceBusy,
            Self::Method(_)
            | Self::Invalid(_)
            | Self::Count
            | Self::NoGroup(_)
            | Self::NoMember(_)
            | Self::Lease(_) => io::ErrorKind::InvalidInput,
            Self::Registered(_) => io::ErrorKind::AlreadyExists,
            Self::Closed => io::ErrorKind::NotConnected,
            Self::Device(error) => error.io_kind(),
        }
    }
}

impl From<QueryError> for io::Error {
    fn from(error: QueryError) -> Self {
        Self::new(error.io_kind(), error)
    }
}

/// What is wrong with a redirection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RedirectFault {
    /// More often than is followed.
    #[error("{0} times")]
    TooOften(u32),
    /// Into a partition of which the port is no member.
    #[error("into partition {0}, of which the port is no member")]
    Partition(PKey),
    /// To nowhere.
    #[error("to neither a LID nor a GID")]
    Nowhere,
}

/// A status of the SA that is an error (spec/sa.md 1.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SaStatus(pub MadStatus);

impl SaStatus {
    /// The SA cannot store or allocate.
    pub const NO_RESOURCES: Self = Self(MadStatus(0x0100));
    /// The request makes no sense or conflicts with what is there.
    pub const REQUEST_INVALID: Self = Self(MadStatus(0x0200));
    /// Nothing matches.
    pub const NO_RECORDS: Self = Self(MadStatus(0x0300));
    /// More than one matches; ask for a table.
    pub const TOO_MANY_RECORDS: Self = Self(MadStatus(0x0400));
    /// A GID is unknown or has a wrong prefix.
    pub const INVALID_GID: Self = Self(MadStatus(0x0500));
    /// The component mask lacks a bit that is required.
    pub const INSUFFICIENT_COMPONENTS: Self = Self(MadStatus(0x0600));
    /// It is not permitted.
    pub const DENIED: Self = Self(MadStatus(0x0700));
    /// A path, but another service level is suggested.
    pub const PRIORITY_SUGGESTED: Self = Self(MadStatus(0x0800));
}

impl fmt::Display for SaStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match Self(MadStatus(self.0.0 & 0xff00)) {
            _ if self.0.invalid_field() != MadStatus::OK => return write!(f, "{}", self.0),
            Self::NO_RESOURCES => "no resources",
            Self::REQUEST_INVALID => "invalid request",
            Self::NO_RECORDS => "no records",
            Self::TOO_MANY_RECORDS => "too many records, ask for a table",
            Self::INVALID_GID => "invalid GID",
            Self::INSUFFICIENT_COMPONENTS => "insufficient components",
            Self::DENIED => "denied",
            Self::PRIORITY_SUGGESTED => "another priority is suggested",
            _ => return write!(f, "status {}", self.0),
        };
        f.write_str(word)
    }
}

/// Something that happened.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Event {
    /// A request was answered.
    Answered {
        /// Which.
        id: RequestId,
        /// How.
        answer: Answer,
    },
    /// A request failed.
    Failed {
        /// Which.
        id: RequestId,
        /// Why.
        error: QueryError,
    },
    /// A subscription brought a notice. It has been acknowledged; copies are acknowledged without an event.
    Report {
        /// The notice.
        notice: Notice,
        /// Who sent it.
        from: MadSource,
    },
}

impl Event {
    /// The request that it ends.
    pub const fn request(&self) -> Option<RequestId> {
        match self {
            Self::Answered { id, .. } | Self::Failed { id, .. } => Some(*id),
            Self::Report { .. } => None,
        }
    }
}
