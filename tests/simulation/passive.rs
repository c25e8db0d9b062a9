//! The side that is called.

use std::sync::Arc;

use ibcm::{Connection, IncomingRequest, Recv, RejReason, Reject, Role};

use super::content;
use super::plan::{Call, Decision};
use super::records::{Answer, Answered};
use super::side;
use super::world::{SERVICE, World, unless, within};

pub async fn run(world: Arc<World>, host: usize, request: IncomingRequest) {
    let number = content::call_of(request.private_data());
    let call = number.and_then(|number| world.call(number)).expect("only calls of the plan make requests");
    let number = call.number;
    assert_eq!((call.to, call.served, request.service_id()), (host, true, SERVICE));
    assert_eq!(request.peer().gid, world.gid(call.from, call.port), "who makes call {number}");
    world.note(host, format_args!("has request {number} of {}", request.peer().qpn));
    world.pause(call.answer.after).await;

    let peer_qpn = request.peer().qpn;
    let (retries, period) = (request.req().max_cm_retries, request.req().local_cm_response_timeout);
    let bound = period.duration() * (u32::from(retries.get()) + 1);
    assert!(bound <= call.passive_bound(), "what call {number} grants");
    let before = world.records().answers.iter().filter(|answered| answered.call == number).count();
    let (conn, came_to) = match call.answer.what {
        _ if before < call.answer.ignores => {
            request.ignore();
            (None, Answer::Ignored)
        }
        Decision::Accept { deadline, gives_up } => {
            let mut accept = request
                .accept()
                .private_data(&content::reply(number))
                .disconnect_data(&content::farewell(number, Role::Passive))
                .recv(Recv::buffers(call.passive.buffers, content::LONGEST));
            if let Some(deadline) = deadline {
                accept = accept.deadline(deadline);
            }
            let bound = deadline.map_or(bound, |deadline| deadline.min(bound));
            within("accepting", bound, accepted(&world, host, number, unless(gives_up, accept))).await
        }
        Decision::Reject => {
            let reject = Reject::new(RejReason::CONSUMER).private_data(&content::refusal(number));
            request.reject(reject);
            (None, Answer::Rejected)
        }
        Decision::Drop => {
            drop(request);
            (None, Answer::Dropped)
        }
    };
    if conn.is_none() {
        world.note(host, format_args!("request {number} came to {came_to:?}"));
    }
    world.records().answers.push(Answered { call: number, peer_qpn, came_to });
    if let Some(conn) = conn {
        check(&conn, call);
        side::live(&world, call, host, Role::Passive, bound, conn).await;
    }
}

async fn accepted(
    world: &World,
    host: usize,
    number: usize,
    accept: impl Future<Output = Option<Result<Connection, ibcm::AcceptError>>>,
) -> (Option<Connection>, Answer) {
    match accept.await {
        Some(Ok(conn)) => {
            world.note(host, format_args!("request {number} connected as {:?}", conn.local_qpn()));
            (Some(conn), Answer::Connected)
        }
        Some(Err(error)) => (None, Answer::Failed(error)),
        None => (None, Answer::GaveUp),
    }
}

fn check(conn: &Connection, call: &Call) {
    let request = content::request(call.number);
    assert_eq!(conn.private_data()[..request.len()], request, "the request of call {}", call.number);
    assert_eq!((conn.role(), conn.service_id()), (Role::Passive, SERVICE));
}
