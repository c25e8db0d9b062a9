//! Opening a datagram socket.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use ibdev::qp::{Init, QpSpec, QpType, Transition};
use ibdev::{Access, DeviceError};
use ibwire::packet::GrhArea;
use ibwire::{PKey, Psn, QKey};
use pin_project::pin_project;

use super::DEFAULT_QKEY;
use super::queue::{Parts, Queue, SEND_DEPTH};
use super::socket::Socket;
use crate::error::{Error, not_posted};
use crate::hca::Hca;
use crate::proto::{Invalid, Limit, Value};
use crate::recv::{Recv, Source};

/// Receive buffers unless the program says otherwise.
const RECEIVES: usize = 64;

/// How to open a datagram socket: a builder that is itself the future of the [`Socket`].
///
/// # Errors
/// [`Error::Invalid`] for a value out of range, [`Error::Device`] if the device refuses, [`Error::Closed`] once the HCA is
/// closed.
///
/// # Cancel safety
/// Dropped, nothing is open.
#[pin_project(!Unpin)]
#[must_use = "nothing is opened before it is awaited"]
pub struct Open {
    config: Option<Config>,
    run: Option<BoxFuture<'static, Result<Socket, Error>>>,
}

#[derive(Debug, Clone)]
struct Config {
    hca: Hca,
    port: Option<u8>,
    qkey: QKey,
    recv: Option<Recv>,
}

impl Open {
    pub(super) fn new(hca: &Hca) -> Self {
        let config = Config { hca: hca.clone(), port: None, qkey: DEFAULT_QKEY, recv: None };
        Self { config: Some(config), run: None }
    }

    fn set(mut self, f: impl FnOnce(&mut Config)) -> Self {
        if let Some(config) = &mut self.config {
            f(config);
        }
        self
    }

    /// The port to use, from 1. Default: the first that is active.
    pub fn port(self, port: u8) -> Self {
        self.set(|config| config.port = Some(port))
    }

    /// The Q_Key that datagrams for this socket must carry; others are dropped. Below 0x80000000. Default: that of rdma_cm,
    /// [`DEFAULT_QKEY`].
    pub fn qkey(self, qkey: QKey) -> Self {
        self.set(|config| config.qkey = qkey)
    }

    /// The receive buffers, `len` being room for a datagram. Default: 64, each as long as the port's MTU. Shared ones are for
    /// connections.
    pub fn recv(self, recv: Recv) -> Self {
        self.set(|config| config.recv = Some(recv))
    }
}

impl Config {
    async fn run(self) -> Result<Socket, Error> {
        let shared = self.hca.shared();
        let device = shared.device()?;
        if self.qkey.is_privileged() {
            let (value, must) = (Value::Number(self.qkey.0.into()), Limit::Must("below 0x80000000"));
            return Err(Invalid::new("Q_Key", value, must).into());
        }
        let port = {
            let engine = shared.engine();
            let ports = &engine.endpoint.local_ca().ports;
            let found = match self.port {
                Some(number) => ports.iter().find(|port| port.number == number),
                None => ports.iter().find(|port| port.active).or(ports.first()),
            };
            found.cloned()
        };
        let port = port.ok_or_else(|| {
            let number = Value::Number(self.port.unwrap_or(1).into());
            Invalid::new("port", number, Limit::Must("a port of the device"))
        })?;
        let mtu = port.mtu.bytes().unwrap_or(256) as usize;
        let (count, len) = match self.recv.as_ref().map(Recv::source) {
            None => (RECEIVES, mtu),
            Some(Source::Own { count, len }) => (*count, *len),
            Some(Source::Shared(queue)) => {
                let number = Value::Number(queue.queue().number().into());
                let must = Limit::Must("of connections: a datagram socket has its own");
                return Err(Invalid::new("the shared receive queue", number, must).into());
            }
        };
        let attr = device.attr();
        Recv::buffers(count, len).check(attr)?;
        let memory = shared.memory()?;
        let (send_cq, recv_cq) = (device.create_cq(SEND_DEPTH).await?, device.create_cq(count as u32).await?);
        let spec = QpSpec {
            recv_cq: Arc::clone(&recv_cq),
            ..QpSpec::new(QpType::Ud, &send_cq, SEND_DEPTH, count as u32)
        };
        let qp = memory.domain.create_qp(spec).await?;
        let pkey_index = port.pkey_index(PKey::DEFAULT).unwrap_or(0);
        let init = Init { port: port.number, pkey_index, access: Access::empty(), qkey: self.qkey };
        qp.modify(Transition::Init(init)).await?;
        let bufs = memory.take(count, len.saturating_add(GrhArea::LEN)).await?;
        let sq_psn = Psn::truncate(shared.engine().draw());
        let parts = Parts {
            shared: Arc::clone(shared),
            port: port.number,
            qkey: self.qkey,
            pkey: port.pkeys.get(usize::from(pkey_index)).copied().unwrap_or(PKey::DEFAULT),
            mtu,
            qp: Arc::clone(&qp),
            memory,
            send_cq,
            recv_cq,
        };
        let queue = Queue::new(parts, bufs);
        queue.refill().map_err(not_posted)?;
        qp.modify(Transition::DatagramRtr).await?;
        qp.modify(Transition::DatagramRts { sq_psn }).await?;
        if shared.device().is_err() {
            return Err(Error::Device(DeviceError::Gone));
        }
        Ok(Socket::new(self.hca.clone(), queue))
    }
}

impl Future for Open {
    type Output = Result<Socket, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        crate::builder::poll(this.config, this.run, Config::run, cx)
    }
}

impl std::fmt::Debug for Open {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Open").field("config", &self.config).finish_non_exhaustive()
    }
}
