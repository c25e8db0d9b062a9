//! Fat trees of two stages.

use ibcm::sim::{BuildSubnet, Subnet};

/// HCAs around leaf switches, each of which has a link to every spine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub hcas: usize,
    pub leaves: usize,
    pub spines: usize,
}

impl Shape {
    pub(crate) const SMALL: Self = Self { hcas: 12, leaves: 3, spines: 2 };
    pub(crate) const HUNDRED: Self = Self { hcas: 100, leaves: 16, spines: 4 };
    pub(crate) const THOUSAND: Self = Self { hcas: 1000, leaves: 40, spines: 8 };

    pub(crate) fn switches(self) -> usize {
        self.leaves + self.spines
    }

    pub(crate) fn name(self) -> String {
        format!("{} HCAs, {} switches", self.hcas, self.switches())
    }

    pub(crate) fn build(self) -> BuildSubnet {
        let mut build = Subnet::builder().seed(1);
        for spine in 0..self.spines {
            build = build.switch(format!("spine{spine}"));
        }
        for leaf in 0..self.leaves {
            build = build.switch(format!("leaf{leaf}"));
            for spine in 0..self.spines {
                build = build.link(&format!("leaf{leaf}"), &format!("spine{spine}"));
            }
        }
        for hca in 0..self.hcas {
            build = build.hca(hca_name(hca)).link(&hca_name(hca), &format!("leaf{}", hca % self.leaves));
        }
        build
    }
}

pub(crate) fn hca_name(number: usize) -> String {
    format!("hca{number}")
}

/// One of the counters of a subnet.
pub(crate) fn counter(net: &Subnet, name: &str) -> u64 {
    net.counters().into_iter().find(|(known, _)| *known == name).map_or(0, |(_, value)| value)
}
