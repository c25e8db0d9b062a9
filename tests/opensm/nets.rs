//! Subnets in the format that ibsim reads, larger than those that it ships.

use std::fmt::Write;

/// A node's number of ports and its name.
type Node<'a> = (&'a str, u8, String);

/// A subnet of these links, each `(node, port, node, port)`.
fn text(nodes: &[Node<'_>], links: &[(String, u8, String, u8)]) -> String {
    let mut text = String::new();
    for (kind, ports, name) in nodes {
        _ = writeln!(text, "{kind} {ports} \"{name}\"");
        for (a, port_a, b, port_b) in links {
            if a == name {
                _ = writeln!(text, "[{port_a}] \"{b}\"[{port_b}]");
            }
            if b == name {
                _ = writeln!(text, "[{port_b}] \"{a}\"[{port_a}]");
            }
        }
        _ = writeln!(text);
    }
    text
}

fn hca(number: usize) -> String {
    format!("Hca{}", number + 1)
}

fn switch(number: usize) -> String {
    format!("Switch{}", number + 1)
}

/// Four leaves with three hosts each and a cable to each of two spines; two cables from the first leaf to the first spine.
pub(crate) fn fat_tree() -> String {
    let mut nodes: Vec<Node<'_>> = (0..6).map(|at| ("Switch", 8, switch(at))).collect();
    nodes.extend((0..12).map(|at| ("Hca", 2, hca(at))));
    let mut links: Vec<_> = (0..12).map(|at| (hca(at), 1, switch(at / 3), (at % 3 + 1) as u8)).collect();
    for leaf in 0..4 {
        links.extend((4..6).map(|spine| (switch(leaf), spine as u8, switch(spine), leaf as u8 + 1)));
    }
    links.push((switch(0), 6, switch(4), 6));
    text(&nodes, &links)
}

/// Five switches in a ring with a chord; a host with two ports at each, on it and on the next.
pub(crate) fn ring() -> String {
    let mut nodes: Vec<Node<'_>> = (0..5).map(|at| ("Switch", 8, switch(at))).collect();
    nodes.extend((0..5).map(|at| ("Hca", 2, hca(at))));
    let mut links = Vec::new();
    for at in 0..5 {
        let next = (at + 1) % 5;
        links.push((hca(at), 1, switch(at), 1));
        links.push((hca(at), 2, switch(next), 2));
        links.push((switch(at), 3, switch(next), 4));
    }
    links.push((switch(0), 5, switch(2), 5));
    text(&nodes, &links)
}
