//! The side that connects.

use std::sync::Arc;

use ibcm::{Connection, DeviceError, QueryError, Recv, Role, ServicePath};

use super::content;
use super::plan::Call;
use super::records::{Attempt, Attempted};
use super::side;
use super::world::{NOWHERE, SERVICE, SLACK, World, unless};

pub async fn run(world: Arc<World>, number: usize) {
    let Some(call) = world.call(number) else { return };
    world.moment(Some(call.at)).await;
    let (conn, came_to) = match path(&world, call).await {
        Ok(path) => connect(&world, call, path).await,
        Err(error) => {
            world.note(call.from, format_args!("call {number} finds no path: {error}"));
            // The HCA at one of its ends is gone, or a port is down.
            let can_be = matches!(
                error,
                QueryError::PortDown { .. }
                    | QueryError::Closed
                    | QueryError::Device(DeviceError::Gone)
                    | QueryError::NoPath { .. }
            );
            assert!(can_be, "call {number} finds no path: {error:?}");
            (None, Attempted::NoPath(error))
        }
    };
    world.records().attempts.push(Attempt { call: number, came_to });
    if let Some(conn) = conn {
        check(&conn, call);
        side::live(&world, call, call.from, Role::Active, call.active_bound(), conn).await;
    }
}

async fn path(world: &World, call: &Call) -> Result<ServicePath, QueryError> {
    let service = if call.served { SERVICE } else { NOWHERE };
    let port = world.hca(call.from).port(call.port).ok_or(QueryError::Closed)?;
    port.path_to(world.gid(call.to, call.port)).mtu(call.mtu).service_id(service).await
}

async fn connect(world: &World, call: &Call, path: ServicePath) -> (Option<Connection>, Attempted) {
    let Call { number, deadline, .. } = *call;
    let mut connect = Connection::connect(path)
        .private_data(&content::request(number))
        .disconnect_data(&content::farewell(number, Role::Active))
        .recv(Recv::buffers(call.active.buffers, content::LONGEST))
        .retry_count(call.retry_count)
        .deadline(deadline);
    if let Some(timeout) = call.response_timeout {
        connect = connect.response_timeout(timeout);
    }
    if let Some(retries) = call.max_cm_retries {
        connect = connect.max_cm_retries(retries);
    }
    world.note(call.from, format_args!("call {number} to {} begins", world.name(call.to)));
    let begun = world.journal.now();
    let ended = unless(call.gives_up, connect).await;
    let took = world.journal.now() - begun;
    assert!(took <= deadline + SLACK, "call {number} took {took:?}, its deadline is {deadline:?}");
    match ended {
        Some(Ok(conn)) => {
            world.note(call.from, format_args!("call {number} connected as {:?}", conn.local_qpn()));
            (Some(conn), Attempted::Connected)
        }
        Some(Err(error)) => {
            world.note(call.from, format_args!("call {number} failed: {error}"));
            (None, Attempted::Failed(error))
        }
        None => {
            world.note(call.from, format_args!("call {number} given up"));
            (None, Attempted::GaveUp)
        }
    }
}

fn check(conn: &Connection, call: &Call) {
    let number = call.number;
    let reply = content::reply(number);
    assert_eq!(conn.private_data()[..reply.len()], reply, "the reply to call {number}");
    assert!(conn.private_data()[reply.len()..].iter().all(|&byte| byte == 0));
    assert_eq!((conn.role(), conn.service_id()), (Role::Active, SERVICE));
}
