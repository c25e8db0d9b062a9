//! Raw sockets on real links: veth pairs between network namespaces, with Python, `ping`, `tc` and tshark around them. Only
//! root makes namespaces: for others, and without the programs, the cases count as ignored; with CI=true they fail.
#![forbid(unsafe_code)]

#[path = "raw_sockets/case.rs"]
mod case;
#[path = "raw_sockets/ends.rs"]
mod ends;
#[path = "raw_sockets/ether.rs"]
mod ether;
#[path = "raw_sockets/ipv6.rs"]
mod ipv6;
#[path = "raw_sockets/links.rs"]
mod links;
#[path = "raw_sockets/loss.rs"]
mod loss;
#[path = "raw_sockets/options.rs"]
mod options;
#[path = "raw_sockets/peer.rs"]
mod peer;

use std::process::ExitCode;

use libtest_mimic::Arguments;

use crate::case::{Outcome, both, case, hindrance, plainly};
use crate::peer::Peer;
use tests::veth::{Here, Net, There};

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let hindrance = hindrance();
    let left_out = hindrance.is_some() && std::env::var_os("CI").is_none_or(|ci| ci != "true");
    if let Some(reason) = &hindrance {
        eprintln!("raw sockets on real links: {reason}");
    }
    let one_way = [
        case("the_link_carries_what_python_sends", the_link_carries),
        case("ipv6_to_python_and_back", ipv6::python_answers),
        case("ipv6_ping_all_nodes", ipv6::ping_all_nodes),
        case("ipv6_lengths_that_lie", ipv6::lengths_that_lie),
        case("raw_t14_each_filter_gets_its_own", ipv6::each_filter_gets_its_own),
        case("raw_t14_each_next_header_in_its_turn", ipv6::each_next_header_in_its_turn),
        case("raw_t16_nobody_hears_himself", ipv6::nobody_hears_himself),
        case("raw_t17_equal_on_ethernet", ipv6::equal_on_ethernet),
        case("raw_t18_joined_twice_left_twice", ipv6::joined_twice_left_twice),
        case("ipv6_hops_and_checksums", ipv6::hops_and_checksums),
        case("raw_t29_every_lost_packet_is_counted", ipv6::every_lost_packet_is_counted),
        case("raw_t26_a_group_that_others_joined", ipv6::a_group_that_others_joined),
        case("raw_t27_never_in_fragments", ipv6::never_in_fragments),
        case("raw_t28_headers_of_the_caller", ipv6::headers_of_the_caller),
        case("raw_t36_next_headers_without_a_name", ipv6::next_headers_without_a_name),
        case("ipv6_times_of_arrival", options::times_of_packets),
        case("raw_t14_types_of_icmpv6", options::types_of_icmpv6),
        case("ipv6_an_address_of_its_own", options::an_address_of_its_own),
        case("ipv6_a_program_of_the_caller", options::a_program_for_packets),
        case("a_queue_beyond_the_limit", plainly(links::a_queue_beyond_the_limit)),
        case("ether_frames_that_tshark_reads", plainly(ether::tshark_reads)),
        case("ether_the_mtu_is_the_limit", plainly(ether::the_mtu_is_the_limit)),
        case("raw_t15_claims_end_at_the_namespace", plainly(links::claims_end_at_the_namespace)),
        case("raw_t25_no_lengths_for_types", plainly(ether::no_lengths_for_types)),
        case("raw_t32_a_full_qdisc", plainly(loss::a_full_qdisc)),
        case("raw_t33_without_the_capability", plainly(links::without_the_capability)),
    ];
    let both_ways = [
        both("ether_to_python_and_back", ether::python_answers),
        both("ether_times_of_arrival", options::times_of_frames),
        both("ether_a_program_of_the_caller", options::a_program_for_frames),
        both("ether_without_waiting", ether::without_waiting),
        both("ether_batches_and_streams", loss::batches_and_streams),
        both(
            "raw_t17_t18_frames_of_groups_that_are_equal_on_ethernet",
            ether::groups_that_are_equal_on_ethernet,
        ),
        both("raw_t18_groups_are_joined", ether::groups_are_joined),
        both("raw_t19_no_frame_of_another_link", ether::no_frame_of_another_link),
        both("raw_t20_down_and_up", links::down_and_up),
        both("raw_t21_removed", links::removed),
        both("raw_t22_vlan_frames", ether::vlan_frames),
        both("raw_t23_outgoing_only_if_asked_for", ether::outgoing_only_if_asked_for),
        both("raw_t24_truncation_is_seen", ether::truncation_is_seen),
        both("raw_t24_what_is_cut_is_dropped", ether::what_is_cut_is_dropped),
        both("raw_t29_every_loss_is_counted", loss::every_loss_is_counted),
        both("raw_t30_given_up_under_load", loss::given_up_under_load),
        both("raw_t31_two_tasks_share", loss::two_tasks_share),
        both("raw_t36_types_without_a_name", ether::types_without_a_name),
    ];
    let trials = one_way.into_iter().chain(both_ways.into_iter().flatten());
    let trials = trials.map(|trial| trial.with_ignored_flag(left_out)).collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Without a socket of ours: what the cases stand on.
async fn the_link_carries(net: Net) -> Outcome {
    let (mut here, mut there) =
        (Peer::start(&net, Here, "ether", 0x88b5)?, Peer::start(&net, There, "ether", 0x88b5)?);
    let frame = [&There.mac()[..], &Here.mac(), &[0x88, 0xb5], b"hello"].concat();
    here.send(&frame)?;
    assert_eq!(there.recv()?.0, frame);
    Ok(())
}
