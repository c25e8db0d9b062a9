//! QP1, the general services interface: MAD agents (spec/softhca.md 3.4).

use std::collections::VecDeque;

use ibdev::{AgentSpec, DeviceError, MAD_LEN, MadSource, OutgoingMad, ReceivedMad};
use ibwire::mad::MadHeader;
use ibwire::packet::{Bth, Deth, Opcode};
use ibwire::{PKey, Psn, QKey, Qpn};

use super::EngineEvent;
use super::net::{Destination, Framing, Ingress, NetHeader, write_packet};
use super::shared::Shared;

/// Names a MAD agent of an engine. Never used again for another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AgentId(u32);

#[derive(Debug)]
struct Agent {
    id: AgentId,
    spec: AgentSpec,
    received: VecDeque<ReceivedMad>,
    /// MADs of this agent that wait for the link.
    sending: usize,
    /// Whether a MAD did not fit the send window.
    refused: bool,
}

/// A MAD on its way out.
#[derive(Debug)]
struct Sending {
    agent: AgentId,
    port: u8,
    net: NetHeader,
    qpn: Qpn,
    qkey: QKey,
    pkey: PKey,
    mad: [u8; MAD_LEN],
}

/// QP1 of all ports.
#[derive(Debug)]
pub(super) struct Gsi {
    agents: Vec<Agent>,
    last_id: u32,
    sending: VecDeque<Sending>,
    psn: Psn,
    send_window: usize,
    recv_queue: usize,
}

impl Agent {
    /// Whether a MAD with this header that came in on `port` is for this agent.
    fn takes(&self, port: u8, header: &MadHeader) -> bool {
        let spec = &self.spec;
        (spec.port, spec.class) == (port, header.class)
            && (header.method.is_response() || spec.methods.contains(&header.method))
    }
}

impl Gsi {
    pub(super) fn new(psn: Psn, send_window: usize, recv_queue: usize) -> Self {
        Self { agents: Vec::new(), last_id: 0, sending: VecDeque::new(), psn, send_window, recv_queue }
    }

    fn agent(&self, id: AgentId) -> Option<&Agent> {
        self.agents.iter().find(|agent| agent.id == id)
    }

    fn agent_mut(&mut self, id: AgentId) -> Option<&mut Agent> {
        self.agents.iter_mut().find(|agent| agent.id == id)
    }

    pub(super) fn open(&mut self, spec: AgentSpec) -> Result<AgentId, DeviceError> {
        if self.agents.iter().any(|agent| (agent.spec.port, agent.spec.class) == (spec.port, spec.class)) {
            return Err(DeviceError::InUse {
                what: "the management class",
                holder: "another MAD agent on the same port of this device",
            });
        }
        self.last_id += 1;
        let id = AgentId(self.last_id);
        self.agents.push(Agent { id, spec, received: VecDeque::new(), sending: 0, refused: false });
        Ok(id)
    }

    /// What the agent has sent still leaves.
    pub(super) fn close(&mut self, id: AgentId) {
        self.agents.retain(|agent| agent.id != id);
    }

    pub(super) fn room(&self, id: AgentId) -> usize {
        self.agent(id).map_or(0, |agent| self.send_window.saturating_sub(agent.sending))
    }

    pub(super) fn waiting(&self, id: AgentId) -> usize {
        self.agent(id).map_or(0, |agent| agent.received.len())
    }

    pub(super) fn send(&mut self, id: AgentId, batch: &mut VecDeque<OutgoingMad>, shared: &mut Shared) {
        let window = self.send_window;
        let Some(agent) = self.agents.iter_mut().find(|agent| agent.id == id) else { return };
        while agent.sending < window {
            let Some(OutgoingMad { to, mad }) = batch.pop_front() else { return };
            let way = shared.port(to.av.port).and_then(|port| {
                let pkey = *port.pkeys.get(usize::from(to.pkey_index))?;
                Some((port.resolve(&to.av).ok()?, pkey))
            });
            match way.filter(|_| to.av.port == agent.spec.port) {
                Some((net, pkey)) => {
                    agent.sending += 1;
                    let port = to.av.port;
                    self.sending.push_back(Sending {
                        agent: id,
                        port,
                        net,
                        qpn: to.qpn,
                        qkey: to.qkey,
                        pkey,
                        mad,
                    });
                }
                None => {
                    tracing::debug!(to = ?to.av, "no way to send this MAD");
                    shared.counters.drop_mad_unroutable += 1;
                }
            }
        }
        agent.refused |= !batch.is_empty();
    }

    pub(super) fn receive(&mut self, id: AgentId, out: &mut Vec<ReceivedMad>, max: usize) -> usize {
        let Some(agent) = self.agent_mut(id) else { return 0 };
        let count = agent.received.len().min(max);
        out.extend(agent.received.drain(..count));
        count
    }

    /// Appends the next MAD to `out`.
    pub(super) fn poll_transmit(&mut self, out: &mut Vec<u8>, shared: &mut Shared) -> Option<usize> {
        let Sending { agent, port, net, qpn, qkey, pkey, mad } = self.sending.pop_front()?;
        let bth = Bth { pkey, ..Bth::new(Opcode::UD_SEND_ONLY, qpn, self.psn) };
        self.psn = self.psn.offset(1);
        let deth = Deth::new(Self::own_key(qkey), Qpn::GSI).to_bytes();
        let len = write_packet(out, bth, &[&deth], mad.len(), |out| out.extend_from_slice(&mad));
        if let Some(agent) = self.agent_mut(agent) {
            agent.sending -= 1;
            if std::mem::take(&mut agent.refused) {
                shared.events.push_back(EngineEvent::MadRoom(agent.id));
            }
        }
        shared.destination = Destination { port, net, framing: Framing::Transport };
        Some(len)
    }

    /// Whether a MAD waits to be sent.
    pub(super) fn has_packets(&self) -> bool {
        !self.sending.is_empty()
    }

    /// The Q_Key to send: a privileged one stands for the key of QP1 itself.
    const fn own_key(asked: QKey) -> QKey {
        if asked.is_privileged() { QKey::GSI } else { asked }
    }

    /// Handles a packet for QP1.
    pub(super) fn handle_packet(&mut self, ingress: &Ingress<'_>, shared: &mut Shared) {
        let packet = ingress.packet;
        let Some(port) = shared.port(ingress.port) else { return };
        let arrival = port.arrival(ingress.net);
        let pkey_index = port.pkey_index(packet.bth().pkey);
        let counters = &mut shared.counters;
        if packet.bth().opcode != Opcode::UD_SEND_ONLY {
            counters.drop_transport += 1;
            return;
        }
        let Some(arrival) = arrival else {
            counters.drop_address += 1;
            return;
        };
        let Some(pkey_index) = pkey_index else {
            counters.drop_pkey += 1;
            return;
        };
        let Some(deth) = packet.deth().filter(|deth| deth.qkey == QKey::GSI) else {
            counters.drop_qkey += 1;
            return;
        };
        let Ok(mad) = <[u8; MAD_LEN]>::try_from(packet.payload()) else {
            counters.drop_mad_malformed += 1;
            return;
        };
        let version = MadHeader::BASE_VERSION;
        let Some(header) = MadHeader::parse(&mad).ok().filter(|header| header.base_version == version) else {
            counters.drop_mad_malformed += 1;
            return;
        };
        let Some(agent) = self.agents.iter_mut().find(|agent| agent.takes(ingress.port, &header)) else {
            counters.drop_mad_no_agent += 1;
            return;
        };
        if agent.received.len() >= self.recv_queue {
            counters.drop_mad_queue_full += 1;
            return;
        }
        let from = MadSource {
            port: ingress.port,
            slid: ingress.net.slid,
            sl: ingress.net.sl,
            path_bits: arrival.path_bits,
            qpn: deth.src_qp,
            pkey_index,
            grh: arrival.grh,
        };
        agent.received.push_back(ReceivedMad { from, mad });
        if agent.received.len() == 1 {
            shared.events.push_back(EngineEvent::MadReady(agent.id));
        }
    }
}
