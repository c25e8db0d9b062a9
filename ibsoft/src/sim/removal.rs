//! HCAs and switches go, and come back.

use std::sync::Arc;
use std::time::Instant;

use super::builder::engine_config;
use super::fabric::{BY_HAND, Fabric, Owner, PortId};
use super::link::SimLink;
use super::managers::Absent;
use super::subnet::{Inner, Subnet};
use crate::device::{Core, SoftDevice};
use crate::engine::Engine;

impl Fabric {
    /// Takes a node out. What it was told is lost.
    pub(super) fn remove(&mut self, now: Instant, node: usize, by: u64) {
        self.held_out.insert((node, by));
        if std::mem::replace(&mut self.removed[node], true) {
            return;
        }
        if let Some(config) = self.end_manager(now, node) {
            self.absent.insert(node, Absent::new(config));
        }
        self.refresh_links(now, node);
        self.members.values_mut().for_each(|members| members.retain(|(id, _)| id.node != node));
        self.nodes[node].reset();
        for owner in [Owner::Hca(node), Owner::Agent(node)] {
            self.set_timer(owner, None);
        }
    }

    /// Puts a node back that was taken out: for the user whoever has done that, for a mishap only if nobody else has. A manager
    /// that was on it starts anew. Whether it is back.
    pub(super) fn put_back(&mut self, now: Instant, node: usize, by: u64) -> bool {
        self.held_out.retain(|(other, who)| *other != node || by != BY_HAND && *who != by);
        let is_held = self.held_out.iter().any(|(other, _)| *other == node);
        if is_held || !std::mem::take(&mut self.removed[node]) {
            return false;
        }
        self.refresh_links(now, node);
        self.start_absent(now, node);
        true
    }

    fn refresh_links(&mut self, now: Instant, node: usize) {
        for port in 1..=self.nodes[node].port_count() {
            self.refresh_link(now, PortId { node, port });
        }
    }
}

impl Inner {
    pub(super) fn remove(&self, now: Instant, node: usize, by: u64) {
        if node < self.hcas() {
            self.device(node).0.remove();
        }
        self.change(now, |fabric, now| fabric.remove(now, node, by));
    }

    pub(super) fn put_back(&self, now: Instant, node: usize, by: u64) {
        // What happens to the HCA from now on the new device has to learn: it is there before the fabric is let go.
        let old = self.change(now, |fabric, now| {
            let is_new = fabric.put_back(now, node, by) && node < self.hcas();
            fabric.configure_at_once(now);
            is_new.then(|| {
                let engine = Engine::new(engine_config(&fabric.nodes[node], self.draw()));
                let link = SimLink::new(self.wires.clone(), node, self.draw());
                let device = SoftDevice::new(Arc::new(Core::new(engine, Box::new(link), now)));
                self.replace_device(node, device)
            })
        });
        drop(old);
    }
}

impl Subnet {
    /// Takes an HCA out: its posted work is flushed, and all calls on it answer
    /// [`DeviceError::Gone`](ibdev::DeviceError::Gone) from now on.
    ///
    /// # Panics
    /// If there is no HCA of that name.
    pub fn remove(&self, name: &str) {
        self.0.remove(now(), self.hca(name), BY_HAND);
    }

    /// Puts an HCA back that was taken out. It is another device, with the same GUIDs, which [`device`](Self::device) answers
    /// from now on. Nothing happens if it was not out.
    ///
    /// # Panics
    /// If there is no HCA of that name.
    pub fn put_back(&self, name: &str) -> SoftDevice {
        let hca = self.hca(name);
        self.0.put_back(now(), hca, BY_HAND);
        self.0.device(hca)
    }

    /// Takes a switch out, as if its power failed: all its links go down, a subnet manager on it ends, and packets find other
    /// ways if there are some.
    ///
    /// # Panics
    /// If there is no switch of that name.
    pub fn remove_switch(&self, name: &str) {
        self.0.remove(now(), self.switch(name), BY_HAND);
    }

    /// Puts a switch back that was taken out; a subnet manager that was on it starts anew.
    ///
    /// # Panics
    /// If there is no switch of that name.
    pub fn put_switch_back(&self, name: &str) {
        self.0.put_back(now(), self.switch(name), BY_HAND);
    }
}

fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
