//! How a case runs: on a thread of its own, because it moves between network namespaces, with two more threads for its tasks.

use std::ops::Deref;
use std::time::Duration;

use ibraw::{BindEther, EtherType, Link, RawEtherSocket, Ring};
use libtest_mimic::{Failed, Trial};
use tests::veth::Net;

/// How long a case may take that takes a part of a second on an idle machine.
const LIMIT: Duration = Duration::from_secs(60);

pub(crate) type Outcome = Result<(), Failed>;

/// The programs that the cases need beside those of the link.
const PROGRAMS: [(&str, &str); 4] = [("ping", "-V"), ("python3", "-V"), ("tc", "-V"), ("tshark", "-v")];

/// Why the cases cannot run here, if they cannot.
pub(crate) fn hindrance() -> Option<String> {
    tests::veth::hindrance(&PROGRAMS)
}

/// A network, and how sockets for EtherTypes receive in it.
pub(crate) struct Place {
    net: Net,
    by_ring: bool,
}

impl Place {
    /// A socket with all defaults but that.
    pub(crate) fn bind(&self, link: &Link, types: impl IntoIterator<Item = EtherType>) -> BindEther {
        let bind = RawEtherSocket::bind(link, types);
        if self.by_ring { bind.ring(Ring::new(4 << 20)) } else { bind }
    }

    /// One with so many bytes for what it has not received yet.
    pub(crate) fn bind_with_room(
        &self,
        link: &Link,
        types: impl IntoIterator<Item = EtherType>,
        bytes: usize,
    ) -> BindEther {
        let bind = RawEtherSocket::bind(link, types);
        if self.by_ring { bind.ring(Ring::new(bytes).block(64 << 10)) } else { bind.recv_buffer(bytes) }
    }

    pub(crate) fn has_ring(&self) -> bool {
        self.by_ring
    }
}

impl Deref for Place {
    type Target = Net;

    fn deref(&self) -> &Net {
        &self.net
    }
}

/// What sockets do that have nothing to do with rings.
pub(crate) fn plainly<F>(body: fn(Place) -> F) -> impl Fn(Net) -> F {
    move |net| body(Place { net, by_ring: false })
}

/// A case of sockets for EtherTypes, as it is and with rings.
pub(crate) fn both<F>(name: &str, body: fn(Place) -> F) -> [Trial; 2]
where
    F: Future<Output = Outcome> + 'static,
{
    let of = move |by_ring| move |net| body(Place { net, by_ring });
    [case(name, of(false)), case(&format!("{name}_by_ring"), of(true))]
}

/// A case with a network of its own.
pub(crate) fn case<F>(name: &str, body: impl Fn(Net) -> F + Send + 'static) -> Trial
where
    F: Future<Output = Outcome>,
{
    Trial::test(name, move || {
        let run = move || {
            let runtime =
                tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
            let net = Net::new()?;
            runtime.block_on(async { tokio::time::timeout(LIMIT, body(net)).await? })
        };
        // A panic stays one, with its message.
        std::thread::spawn(run).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
