//! The right to a management class.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};

use ibdev::{AgentSpec, DeviceError, MadAgent, OutgoingMad, ReceivedMad};
use ibwire::mad::MgmtClass;
use ibwire::{Lid, Qpn};

use super::core::{Agent, Core};
use super::packet::Packet;

#[derive(Debug)]
pub(super) struct SimAgent {
    core: Arc<Core>,
    id: u32,
    /// QP0 for the subnet management classes, QP1 for all others.
    qp: Qpn,
}

impl SimAgent {
    pub(super) fn open(core: &Arc<Core>, spec: AgentSpec) -> Result<Self, DeviceError> {
        let mut state = core.lock();
        if state.gone {
            return Err(DeviceError::Gone);
        }
        if state.agents.values().any(|agent| agent.spec.class == spec.class) {
            return Err(DeviceError::InUse {
                what: "the management class",
                holder: "another agent of this device",
            });
        }
        let id = state.next_agent;
        state.next_agent += 1;
        state.agents.insert(id, Agent { spec, received: VecDeque::new(), waker: None });
        drop(state);
        let is_smi = matches!(spec.class, MgmtClass::SUBN_LID_ROUTED | MgmtClass::SUBN_DIRECTED_ROUTE);
        Ok(Self { core: Arc::clone(core), id, qp: if is_smi { Qpn::SMI } else { Qpn::GSI } })
    }
}

impl MadAgent for SimAgent {
    fn send(&self, batch: &mut VecDeque<OutgoingMad>) -> Result<(), DeviceError> {
        if self.core.lock().gone {
            return Err(DeviceError::Gone);
        }
        while let Some(out) = batch.front() {
            // LID 0 of the source is filled in, but not where a directed route is all there is. There are neither GRHs
            // nor P_Keys.
            let dlid = out.to.av.dlid;
            let packet = Packet {
                dlid,
                slid: if dlid == Lid::PERMISSIVE { Lid::PERMISSIVE } else { Lid::NONE },
                dqp: out.to.qpn,
                sqp: self.qp,
                status: 0,
                mad: out.mad,
            };
            match self.core.data.try_send(&packet.to_bytes()) {
                Ok(_) => _ = batch.pop_front(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(_) => {
                    self.core.close();
                    return Err(DeviceError::Gone);
                }
            }
        }
        Ok(())
    }

    fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<Result<(), DeviceError>> {
        if self.core.lock().gone {
            return Poll::Ready(Err(DeviceError::Gone));
        }
        self.core.data.poll_send_ready(cx).map(|ready| ready.map_err(|_| DeviceError::Gone))
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        out: &mut Vec<ReceivedMad>,
        max: usize,
    ) -> Poll<Result<(), DeviceError>> {
        let mut state = self.core.lock();
        let gone = state.gone;
        let Some(agent) = state.agents.get_mut(&self.id) else { return Poll::Ready(Err(DeviceError::Gone)) };
        if !agent.received.is_empty() {
            let count = agent.received.len().min(max);
            out.extend(agent.received.drain(..count));
            return Poll::Ready(Ok(()));
        }
        if gone {
            return Poll::Ready(Err(DeviceError::Gone));
        }
        let replaced = agent.waker.replace(cx.waker().clone());
        drop(state);
        drop(replaced);
        Poll::Pending
    }
}

impl Drop for SimAgent {
    fn drop(&mut self) {
        let agent = self.core.lock().agents.remove(&self.id);
        drop(agent);
    }
}
