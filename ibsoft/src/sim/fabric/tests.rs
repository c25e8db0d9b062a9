use std::time::Duration;

use ibwire::packet::{Lrh, NextHeader};
use ibwire::{Guid, ServiceLevel};

use super::super::node::PortShape;
use super::*;

const FIRST: PortId = PortId { node: 0, port: 1 };
const SECOND: PortId = PortId { node: 1, port: 1 };

/// Two HCAs with a port each at a switch: LIDs 2, 3 and 1.
fn fabric(start: Instant) -> Fabric {
    let shape = |number, guid| PortShape { number, guid: Guid(guid), mtu: Fabric::MTU, rate: Fabric::RATE };
    let hca = |n: u64| Node::hca(n.to_string(), Guid(n), [shape(1, n)]);
    let switch = Node::switch("switch".into(), Guid(9), [shape(1, 0), shape(2, 0)]);
    let links = [Link(FIRST, PortId { node: 2, port: 1 }), Link(SECOND, PortId { node: 2, port: 2 })];
    let mut fabric = Fabric::new(vec![hca(1), hca(2), switch], &links, 7, start);
    assert_eq!(fabric.configure_at_once(start), 0);
    while fabric.take_configured().is_some() {}
    // The switch's trap: nobody is there to hear it.
    assert!(fabric.next_event(start).is_none());
    fabric
}

fn send_to(fabric: &mut Fabric, now: Instant, lid: u16, number: u32) {
    let lrh = Lrh {
        vl: 0,
        sl: ServiceLevel::truncate(0),
        next: NextHeader::Bth,
        dlid: Lid(lid),
        words: 3,
        slid: Lid(2),
        reserved: 0,
    };
    fabric.send(now, FIRST, [&lrh.to_bytes()[..], &number.to_be_bytes()].concat().into());
}

fn send(fabric: &mut Fabric, now: Instant, number: u32) {
    send_to(fabric, now, 3, number);
}

/// The numbers of all packets in the order of their arrival.
fn arrivals(fabric: &mut Fabric, until: Instant) -> Vec<u32> {
    let mut numbers = Vec::new();
    let mut last = None;
    while let Some((due, event)) = fabric.next_event(until) {
        assert!(last.replace(due) <= Some(due));
        let Event::Arrival { frame, .. } = event else { continue };
        numbers.push(u32::from_be_bytes(*frame.last_chunk().unwrap()));
    }
    numbers
}

#[test]
fn delays_keep_the_order_and_reordering_does_not() {
    let start = Instant::now();
    let mut fabric = fabric(start);
    fabric.dice.rates.delay = Duration::ZERO..=Duration::from_millis(5);
    (0..100).for_each(|n| send(&mut fabric, start + Duration::from_micros(n.into()), n));
    let later = start + Duration::from_secs(1);
    assert_eq!(arrivals(&mut fabric, start), []);
    assert_eq!(arrivals(&mut fabric, later), (0..100).collect::<Vec<_>>());

    fabric.dice.rates.reorder = 0.5;
    (0..100).for_each(|n| send(&mut fabric, later, n));
    let mut numbers = arrivals(&mut fabric, later + Duration::from_secs(1));
    assert!(!numbers.is_sorted());
    numbers.sort_unstable();
    assert_eq!(numbers, (0..100).collect::<Vec<_>>());
}

#[test]
fn every_packet_is_counted_once() {
    let start = Instant::now();
    let mut fabric = fabric(start);
    fabric.dice.rates.loss = 0.2;
    fabric.dice.rates.duplicate = 0.2;
    (0..1_000).for_each(|n| send(&mut fabric, start, n));
    send_to(&mut fabric, start, 9, 0);
    let arrived = arrivals(&mut fabric, start).len() as u64;
    let FabricCounters { sent, delivered, duplicated, lost, no_route, .. } = fabric.counters;
    assert_eq!((sent, no_route, delivered), (1_001, 1, arrived));
    assert_eq!(delivered, 1_000 - lost + duplicated);
    assert!(lost > 100 && duplicated > 100);
}

#[test]
fn packets_under_way_are_bounded() {
    let start = Instant::now();
    let mut fabric = fabric(start);
    let last = MOST_FLYING as u32 + 10;
    (0..last).for_each(|n| send(&mut fabric, start, n));
    assert_eq!((fabric.under_way(), fabric.counters.overrun), (MOST_FLYING, 10));
    arrivals(&mut fabric, start);
    send(&mut fabric, start, last);
    assert_eq!(arrivals(&mut fabric, start), [last]);
}

#[test]
fn what_is_under_way_meets_the_partition() {
    let start = Instant::now();
    let mut fabric = fabric(start);
    send(&mut fabric, start, 1);
    fabric.partition(BY_HAND, [0].into(), [1].into());
    send(&mut fabric, start, 2);
    assert_eq!(arrivals(&mut fabric, start), []);
    fabric.heal();
    assert_eq!(fabric.counters.partitioned, 2);
    send(&mut fabric, start, 3);
    fabric.set_plugged(start, SECOND, BY_HAND, false);
    assert_eq!((arrivals(&mut fabric, start), fabric.counters.link_down), (vec![], 1));
}

#[test]
fn timers_come_in_their_turn() {
    let start = Instant::now();
    let mut fabric = fabric(start);
    let at = |ms| start + Duration::from_millis(ms);
    fabric.set_timer(Owner::Hca(1), Some(at(5)));
    fabric.set_timer(Owner::Hca(0), Some(at(3)));
    fabric.set_timer(Owner::Hca(1), Some(at(2)));
    assert_eq!(fabric.next_due(), Some(at(2)));
    assert!(matches!(fabric.next_event(at(9)), Some((due, Event::Timer { hca: 1 })) if due == at(2)));
    fabric.set_timer(Owner::Hca(0), None);
    assert!(fabric.next_event(at(9)).is_none());
}

/// A mishap takes a link, whichever end it counts as.
#[test]
fn the_user_ends_the_mishap_of_a_link_at_either_end() {
    const MISHAP: u64 = 7;
    let start = Instant::now();
    let mut fabric = fabric(start);
    let there = fabric.peer(FIRST).unwrap();
    let is_up = |fabric: &Fabric| fabric.nodes[0].port(1).unwrap().info.port_state != PortState::DOWN;
    for (taken, lifted) in [(FIRST, FIRST), (FIRST, there), (there, FIRST), (there, there)] {
        fabric.set_plugged(start, taken, MISHAP, false);
        assert!(!is_up(&fabric));
        fabric.set_plugged(start, lifted, BY_HAND, true);
        assert!(is_up(&fabric), "{taken:?} {lifted:?}");
        // Its end changes nothing.
        fabric.set_plugged(start, taken, MISHAP, true);
        assert!(is_up(&fabric));
    }
    // What the user took down at the other end stays down.
    fabric.set_plugged(start, there, BY_HAND, false);
    fabric.set_plugged(start, FIRST, BY_HAND, true);
    assert!(!is_up(&fabric));
}
