//! An agent of one class on one port.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::task::{Context, Poll};

use ibdev::{AgentSpec, DeviceError, MadAgent, OutgoingMad, ReceivedMad};
use ibwire::mad::MgmtClass;
use rustix::fs::OFlags;
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;

use super::abi::{self, NoMad, PACKET};
use super::lane::Lanes;
use crate::LinuxError;
use crate::counters::{Counters, count};
use crate::events::{Events, GoneWatch};
use crate::fd::readable;

/// An agent of one class on one port. Dropped, the class is free again.
///
/// What it sends goes through [`Lanes`]. Those of CM have agents of their own, because CM messages are no responses; other
/// classes send by the agent that receives, because the kernel brings a response to the agent that sent the request.
#[derive(Debug)]
pub(crate) struct UmadAgent {
    port: u8,
    receive: AsyncFd<Arc<File>>,
    lanes: Lanes,
    /// Of who receives, and of who waits to send.
    gone: [GoneWatch; 2],
    counters: Arc<Counters>,
}

impl UmadAgent {
    /// Registers, waited for in the runtime of the caller.
    pub(crate) fn open(
        device: &str,
        spec: &AgentSpec,
        events: &Arc<Events>,
        counters: &Arc<Counters>,
    ) -> Result<Self, DeviceError> {
        let path = super::path(device, spec.port)?;
        let nonblock = OFlags::NONBLOCK.bits() as i32;
        let file = OpenOptions::new().read(true).write(true).custom_flags(nonblock).open(&path);
        let file = file.map_err(|error| opening(&path, error))?;
        let id = abi::register(&file, spec).map_err(|errno| refused(spec.class, errno))?;
        let file = Arc::new(file);
        let lanes = match spec.class {
            MgmtClass::CM => Lanes::open(&path, counters),
            _ => Lanes::of_receiver(file.clone(), id, counters),
        };
        let lanes = lanes.map_err(|error| opening(&path, error))?;
        // SAFETY: a file keeps its descriptor.
        let receive = unsafe { readable(file) }?;
        let gone = [GoneWatch::new(events), GoneWatch::new(events)];
        Ok(Self { port: spec.port, receive, lanes, gone, counters: counters.clone() })
    }
}

/// Why the kernel registers no agent of this class.
fn refused(class: MgmtClass, errno: Errno) -> DeviceError {
    match errno {
        Errno::INVAL => DeviceError::InUse {
            what: if class == MgmtClass::CM { "management class 7 (CM)" } else { "the management class" },
            holder: "a kernel module, ib_cm for class 7 (unload rdma_ucm, rdma_cm, ib_ipoib and ib_cm; or connect from a software HCA; or leave connections to librdmacm), or another program",
        },
        errno => DeviceError::os("register a MAD agent", errno.into()),
    }
}

fn opening(path: &Path, error: io::Error) -> DeviceError {
    const WHAT: &str = "open the port's MAD device";
    match error.kind() {
        io::ErrorKind::PermissionDenied => DeviceError::Permission {
            need: "read and write access to /dev/infiniband/umad*: run as root, or add a udev rule for the files",
        },
        // The driver of a file that is there without its device.
        _ if matches!(Errno::from_io_error(&error), Some(Errno::NXIO | Errno::NODEV)) => DeviceError::Gone,
        io::ErrorKind::NotFound => LinuxError::NoFile { path: path.display().to_string() }.met(WHAT),
        _ => DeviceError::os(WHAT, error),
    }
}

impl MadAgent for UmadAgent {
    fn send(&self, batch: &mut VecDeque<OutgoingMad>) -> Result<(), DeviceError> {
        if self.gone[0].is_gone() {
            return Err(DeviceError::Gone);
        }
        self.lanes.send(batch)
    }

    fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<Result<(), DeviceError>> {
        if self.gone[1].poll(cx) {
            return Poll::Ready(Err(DeviceError::Gone));
        }
        self.lanes.poll_ready(cx)
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        out: &mut Vec<ReceivedMad>,
        max: usize,
    ) -> Poll<Result<(), DeviceError>> {
        if self.gone[0].poll(cx) {
            return Poll::Ready(Err(DeviceError::Gone));
        }
        let before = out.len();
        let mut reads = 0;
        while reads < max {
            let mut guard = match self.receive.poll_read_ready(cx) {
                Poll::Ready(Ok(guard)) => guard,
                Poll::Ready(Err(_)) => return Poll::Ready(Err(DeviceError::Gone)), // the runtime is ending
                Poll::Pending => break,
            };
            let mut packet = [0; PACKET];
            match guard.try_io(|file| (&**file.get_ref()).read(&mut packet)) {
                Ok(Ok(len)) => {
                    reads += 1;
                    match abi::decode(self.port, &packet[..len]) {
                        Ok(mad) => {
                            count(&self.counters.mads_received);
                            out.push(mad);
                        }
                        // Who asked has a deadline of its own.
                        Err(NoMad::Unanswered) => count(&self.counters.mads_unanswered),
                        Err(NoMad::Malformed) => count(&self.counters.mads_malformed),
                    }
                }
                Ok(Err(error)) => return Poll::Ready(Err(failed(error))),
                Err(_would_block) => {}
            }
        }
        if out.len() > before || max == 0 {
            return Poll::Ready(Ok(()));
        }
        if reads == max {
            cx.waker().wake_by_ref(); // there may be more, behind what was left out
        }
        Poll::Pending
    }
}

fn failed(error: io::Error) -> DeviceError {
    match Errno::from_io_error(&error) {
        Some(Errno::IO | Errno::NODEV) => DeviceError::Gone,
        _ => DeviceError::os("read a MAD", error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sa_t82_a_refused_agent_says_why() {
        let error = refused(MgmtClass::SA, Errno::PROTO);
        let DeviceError::Os { what, error } = error else { panic!("{error}") };
        assert_eq!((what, error.raw_os_error()), ("register a MAD agent", Some(Errno::PROTO.raw_os_error())));
        let error = refused(MgmtClass::CM, Errno::INVAL).to_string();
        assert!(error.contains("class 7 (CM)") && error.contains("ib_cm"), "{error}");
    }
}
