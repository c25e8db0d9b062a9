//! The software HCA in a subnet of this process: two devices with two ports each, in virtual time.

use std::cell::RefCell;
use std::sync::Arc;

use futures::future::LocalBoxFuture;
use ibdev::Device;
use ibsa::{Client, Group, Membership};
use ibsoft::sim::{BuildSubnet, Subnet};
use ibwire::{Gid, Lid, QKey, Rate};
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
        Box::pin(opened(Subnet::rails(2, ["a", "b"])))
    }
}

/// The same devices at two switches, with two links of unlike kinds between those.
#[derive(Debug)]
pub struct OverSwitches {
    /// With a subnet manager, which has given the LIDs and sees to ports that come back, and an SA, of which groups are asked.
    pub managed: bool,
}

impl Fixture for OverSwitches {
    fn name(&self) -> &'static str {
        if self.managed { "managed" } else { "switches" }
    }

    fn lacks(&self) -> &'static [Feature] {
        InSubnet.lacks()
    }

    fn runtime(&self) -> Runtime {
        InSubnet.runtime()
    }

    fn open(&self) -> LocalBoxFuture<'_, Bench> {
        let net = Subnet::builder().switch("left").switch("right").link("left", "right");
        let net = net.link("left", "right").rate(Rate::GBPS_25);
        let net = net.hca_with_ports("a", 2).link("a/1", "left").link("a/2", "left");
        let net = net.hca_with_ports("b", 2).link("b/1", "right").link("b/2", "right").timed();
        Box::pin(opened(if self.managed { net.managed() } else { net }))
    }
}

async fn opened(net: BuildSubnet) -> Bench {
    let net = net.seed(1).await.expect("a subnet");
    let [a, b]: [Arc<dyn Device>; 2] = ["a", "b"].map(|name| Arc::new(net.device(name)) as _);
    Bench { a, b, hands: Box::new(Wires { net, joined: RefCell::default() }), differs: &[] }
}

#[derive(Debug)]
struct Wires {
    net: Subnet,
    /// Who has asked the SA for both devices, and the groups that they are in.
    joined: RefCell<(Vec<Client>, Vec<Membership>)>,
}

impl Hands for Wires {
    fn set_ports_of_b(&self, up: bool) {
        if up {
            self.net.link_up("b");
        } else {
            self.net.link_down("b");
        }
    }

    fn take_port_of_b_down(&self, port: u8) {
        self.net.port_down("b", port);
    }

    fn remove_b(&self) {
        self.net.remove("b");
    }

    fn open_a(&self) -> LocalBoxFuture<'_, Arc<dyn Device>> {
        Box::pin(async { Arc::new(self.net.device("a")) as Arc<dyn Device> })
    }

    /// A subnet without managers makes a group for the first who asks, and whoever attaches is in it. An SA has both ports
    /// join, and the switches have learnt of it when all is swept.
    fn group(&self, mgid: Gid) -> LocalBoxFuture<'_, Lid> {
        Box::pin(async move {
            if let Some(path) = self.net.device("a").resolve(1, mgid) {
                return path.dlid;
            }
            let asks =
                |name| Client::new(Arc::new(self.net.device(name)), 1, ibsa::Config::default(), [3; 32]);
            let (mut clients, mut groups) = self.joined.take();
            if clients.is_empty() {
                clients.extend(["a", "b"].map(asks));
            }
            let mut mlid = Lid::NONE;
            for sa in &clients {
                let joined = sa.join(mgid).or_create(Group::new(QKey(7))).await.expect("a group");
                mlid = joined.mlid();
                groups.push(joined);
            }
            self.joined.replace((clients, groups));
            self.net.sweep().await.expect("managers that are done");
            mlid
        })
    }

    fn nothing_left(&self) -> LocalBoxFuture<'_, ()> {
        Box::pin(async {
            if let Err(left) = self.net.quiet().await {
                panic!("{left}");
            }
        })
    }
}
