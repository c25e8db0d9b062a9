//! Ports that are not what they were.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use ibdev::{Device, DeviceError, PortTables};

use crate::driver::local_port;
use crate::events::HcaEvent;
use crate::shared::Shared;

/// Reads ports that have changed, off the driver's task where that is slow, and then tells: whoever hears of a change finds
/// the port as it is. One read at a time a port, so that the last one has the last word.
#[derive(Debug, Default)]
pub(crate) struct PortNews(BTreeMap<u8, Change>);

/// What happens to one port.
#[derive(Default)]
struct Change {
    reading: Option<Reading>,
    /// What came since the read began: at most one of a kind, the last one last.
    since: Vec<HcaEvent>,
}

struct Reading {
    tables: BoxFuture<'static, Result<PortTables, DeviceError>>,
    /// What is told when they are there.
    events: Vec<HcaEvent>,
}

impl PortNews {
    /// The device says that this has happened to the port.
    pub(crate) fn came(&mut self, port: u8, event: HcaEvent) {
        let since = &mut self.0.entry(port).or_default().since;
        since.retain(|known| *known != event);
        since.push(event);
    }

    /// Goes on with the reads. The driver is woken when there is more to do.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>, device: &Arc<dyn Device>, shared: &Shared) {
        self.0.retain(|port, change| change.poll(cx, *port, device, shared).is_pending());
    }
}

impl Change {
    /// Ready when the port is known as it is.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        port: u8,
        device: &Arc<dyn Device>,
        shared: &Shared,
    ) -> Poll<()> {
        loop {
            let reading = match &mut self.reading {
                Some(reading) => reading,
                None if self.since.is_empty() => return Poll::Ready(()),
                None => {
                    let device = Arc::clone(device);
                    let tables = Box::pin(async move { device.read_port(port).await });
                    self.reading.insert(Reading { tables, events: std::mem::take(&mut self.since) })
                }
            };
            let Poll::Ready(tables) = reading.tables.as_mut().poll(cx) else { return Poll::Pending };
            match tables {
                Ok(tables) => {
                    let (local, mut engine) = (local_port(tables), shared.engine());
                    // Not one of those that it was opened with.
                    if engine.endpoint.local_ca().port(local.number).is_some() {
                        engine.endpoint.update_port(local);
                    }
                    drop(engine);
                    shared.sockets().iter().for_each(|socket| socket.port_changed(port));
                }
                Err(error) => tracing::warn!(hca = %shared.name, port, %error, "port not readable"),
            }
            reading.events.drain(..).for_each(|event| shared.events.push(event));
            self.reading = None;
        }
    }
}

impl fmt::Debug for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Change").field("since", &self.since).finish_non_exhaustive()
    }
}
