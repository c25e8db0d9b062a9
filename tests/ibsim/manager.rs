//! Our subnet manager, with its administration, on a node of ibsim: ibsim's agents answer it as they answer OpenSM.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use ibdev::{AddressVector, AgentSpec, Device, DeviceError, MadAddr, MadAgent, OutgoingMad, ReceivedMad};
use ibsoft::manager::{Peer, SmMad, SubnetManager};
use ibwire::mad::{Method, MgmtClass};
use ibwire::{Lid, PKey, QKey, Qpn, Rate, ServiceLevel};

/// What the manager is asked without being told to, by class.
const AGENTS: [(MgmtClass, u8, &[Method]); 3] = [
    (MgmtClass::SUBN_DIRECTED_ROUTE, 1, &[Method::GET, Method::SET]),
    (MgmtClass::SUBN_LID_ROUTED, 1, &[Method::GET, Method::SET, Method::TRAP]),
    (
        MgmtClass::SA,
        2,
        &[Method::GET, Method::SET, Method::GET_TABLE, Method::GET_MULTI, Method::DELETE, Method::REPORT],
    ),
];

/// How long the manager sleeps at most.
const NAP: Duration = Duration::from_secs(1);

/// Runs a manager on the node of a device, until that is gone.
///
/// # Errors
/// What the device says.
pub async fn run(device: Arc<dyn Device>, mut manager: SubnetManager) -> Result<(), DeviceError> {
    let open = |(class, class_version, methods)| {
        device.open_agent(AgentSpec { port: 1, class, class_version, methods })
    };
    let agents: Vec<Box<dyn MadAgent>> = AGENTS.into_iter().map(open).collect::<Result<_, _>>()?;
    let mut out: [VecDeque<OutgoingMad>; 3] = Default::default();
    manager.handle_timeout(Instant::now());
    loop {
        while let Some(mad) = manager.poll_transmit(Instant::now()) {
            let (agent, mad) = outgoing(mad);
            out[agent].push_back(mad);
        }
        for (agent, batch) in agents.iter().zip(&mut out) {
            agent.send(batch)?;
        }
        let now = Instant::now();
        let due = manager.poll_timeout().unwrap_or(now + NAP);
        match tokio::time::timeout_at(due.into(), next(&agents, &out)).await {
            Ok(received) => {
                let received = received?;
                received.into_iter().for_each(|mad| take(&mut manager, mad));
            }
            Err(_) => manager.handle_timeout(Instant::now()),
        }
    }
}

/// What has arrived; nothing if there is room to send again.
fn next<'a>(
    agents: &'a [Box<dyn MadAgent>],
    out: &'a [VecDeque<OutgoingMad>],
) -> impl Future<Output = Result<Vec<ReceivedMad>, DeviceError>> + 'a {
    poll_fn(move |cx| {
        let mut received = Vec::new();
        for agent in agents {
            if let Poll::Ready(Err(gone)) = agent.poll_recv(cx, &mut received, usize::MAX) {
                return Poll::Ready(Err(gone));
            }
        }
        let waits = agents.iter().zip(out).find(|(_, batch)| !batch.is_empty());
        let is_ready = waits.is_some_and(|(agent, _)| agent.poll_ready(cx).is_ready());
        if received.is_empty() && !is_ready { Poll::Pending } else { Poll::Ready(Ok(received)) }
    })
}

fn take(manager: &mut SubnetManager, received: ReceivedMad) {
    let (now, from, mut mad) = (Instant::now(), received.from, received.mad);
    if mad[1] == MgmtClass::SA.0 {
        let (sl, p_key) = (ServiceLevel::default(), PKey::DEFAULT);
        manager.handle_sa(now, Peer { lid: from.slid, qpn: from.qpn, gid: None, sl, p_key }, &mad);
        return;
    }
    if Method(mad[3]).is_response() {
        mad[8..10].fill(0); // ibsim's word on who asked
    }
    manager.handle_smp(now, from.slid, &mad);
}

/// The agent that sends a MAD.
fn outgoing(mad: SmMad) -> (usize, OutgoingMad) {
    let (lid, qpn, sl, mad) = match mad {
        SmMad::Smp(lid, mad) => (lid, Qpn::SMI, ServiceLevel::default(), mad),
        SmMad::Sa(sent) => (sent.peer.lid, sent.peer.qpn, sent.peer.sl, sent.mad),
    };
    let av = AddressVector { port: 1, dlid: lid, sl, path_bits: 0, rate: Rate::PORT_CURRENT, grh: None };
    let qkey = if qpn == Qpn::SMI { QKey(0) } else { QKey::GSI };
    let agent = match qpn {
        Qpn::SMI if lid == Lid::PERMISSIVE => 0,
        Qpn::SMI => 1,
        _ => 2,
    };
    (agent, OutgoingMad { to: MadAddr { av, qpn, qkey, pkey_index: 0 }, mad })
}
