//! The software HCA in a subnet of this process: two devices with two ports each, in virtual time.

use std::sync::Arc;

use futures::future::LocalBoxFuture;
use ibdev::Device;
use ibsoft::sim::Subnet;
use ibwire::Rate;
use tokio::runtime::Runtime;

use super::bench::{Bench, Feature, Fixture, Hands};

#[derive(Debug)]
pub struct InSubnet;

impl Fixture for InSubnet {
    fn name(&self) -> &'static str {
        "subnet"
    }

    /// Its devices belong to the subnet, not to their handles.
    fn lacks(&self) -> &'static [Feature] {
        &[Feature::Close]
    }

    fn runtime(&self) -> Runtime {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().start_paused(true).build().expect("a runtime")
    }

    fn open(&self) -> LocalBoxFuture<'_, Bench> {
        Box::pin(async {
            let net = Subnet::rails(2, ["a", "b"]).seed(1).await.expect("a subnet");
            Bench {
                a: Arc::new(net.device("a")),
                b: Arc::new(net.device("b")),
                hands: Box::new(Wires(net)),
                differs: &[],
            }
        })
    }
}

/// The same devices at two switches, with two links of unlike kinds between those.
#[derive(Debug)]
pub struct OverSwitches;

impl Fixture for OverSwitches {
    fn name(&self) -> &'static str {
        "switches"
    }

    fn lacks(&self) -> &'static [Feature] {
        InSubnet.lacks()
    }

    fn runtime(&self) -> Runtime {
        InSubnet.runtime()
    }

    fn open(&self) -> LocalBoxFuture<'_, Bench> {
        Box::pin(async {
            let net = Subnet::builder().switch("left").switch("right").link("left", "right");
            let net = net.link("left", "right").rate(Rate::GBPS_25);
            let net = net.hca_with_ports("a", 2).link("a/1", "left").link("a/2", "left");
            let net = net.hca_with_ports("b", 2).link("b/1", "right").link("b/2", "right");
            let net = net.timed().seed(1).await.expect("a subnet");
            Bench {
                a: Arc::new(net.device("a")),
                b: Arc::new(net.device("b")),
                hands: Box::new(Wires(net)),
                differs: &[],
            }
        })
    }
}

#[derive(Debug)]
struct Wires(Subnet);

impl Hands for Wires {
    fn set_ports_of_b(&self, up: bool) {
        if up {
            self.0.link_up("b");
        } else {
            self.0.link_down("b");
        }
    }

    fn take_port_of_b_down(&self, port: u8) {
        self.0.port_down("b", port);
    }

    fn remove_b(&self) {
        self.0.remove("b");
    }

    fn open_a(&self) -> LocalBoxFuture<'_, Arc<dyn Device>> {
        Box::pin(async { Arc::new(self.0.device("a")) as Arc<dyn Device> })
    }

    fn nothing_left(&self) -> LocalBoxFuture<'_, ()> {
        Box::pin(async {
            if let Err(left) = self.0.quiet().await {
                panic!("{left}");
            }
        })
    }
}
