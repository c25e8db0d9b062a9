//! What a subscriber sees: a span for each connection, an event for each CM message.

mod common;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use common::{Net, Result};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Fields by name.
#[derive(Debug, Clone, Default)]
struct Fields(BTreeMap<&'static str, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}").trim_matches('"').to_owned());
    }
}

/// Keeps spans and events.
#[derive(Debug, Clone, Default)]
struct Seen {
    spans: Arc<Mutex<Vec<Fields>>>,
    mads: Arc<Mutex<Vec<Fields>>>,
}

impl Subscriber for Seen {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("ibcm")
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        let mut spans = self.spans.lock().expect("no holder panicked");
        spans.push(fields);
        Id::from_u64(spans.len() as u64)
    }

    fn record(&self, id: &Id, record: &Record<'_>) {
        record.record(&mut self.spans.lock().expect("no holder panicked")[id.into_u64() as usize - 1]);
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        if event.metadata().target() == ibcm::MAD_TARGET {
            let mut fields = Fields::default();
            event.record(&mut fields);
            self.mads.lock().expect("no holder panicked").push(fields);
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[tokio::test(start_paused = true)]
async fn spans_and_messages() -> Result {
    let seen = Seen::default();
    let _guard = tracing::subscriber::set_default(seen.clone());
    let net = Net::new(1).await?;
    let (client, server) = net.pair().await?;
    let ids = (server.peer().comm_id.to_string(), client.peer().comm_id.to_string());
    client.disconnect().await;
    drop((client, server));
    net.quiet().await?;

    let spans = seen.spans.lock().expect("no holder panicked").clone();
    let conns: Vec<_> =
        spans.iter().map(|span| (span.0["local"].clone(), span.0["remote"].clone())).collect();
    assert_eq!(conns, [(ids.0.clone(), ids.1.clone()), (ids.1.clone(), ids.0.clone())]);
    assert!(spans.iter().all(|span| span.0["service"] == "0x1000000000000001"));

    let mads = seen.mads.lock().expect("no holder panicked").clone();
    let line = |mad: &Fields| format!("{} {} {}", mad.0["hca"], mad.0["direction"], mad.0["mad"]);
    let lines: Vec<_> = mads.iter().map(line).collect();
    assert_eq!(
        lines,
        [
            "client out REQ",
            "server in REQ",
            "server out REP",
            "client in REP",
            "client out RTU",
            "server in RTU",
            "client out DREQ",
            "server in DREQ",
            "server out DREP",
            "client in DREP",
        ]
    );
    Ok(())
}
