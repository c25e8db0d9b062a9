//! How many packets are to be on the way: what the peer, or a wire between, has shown to hold.

/// Losses do not make it smaller than this: a socket's buffer as the system grants it unasked holds about as many
/// (spec/softhca.md 6.2).
const LEAST: u32 = 64;

/// How many packets of sends and writes, and how many of read responses, are to be on the way at most; of the latter, one
/// request less than twice as many. A loss halves it, each whole window without one lets it grow by an eighth.
#[derive(Debug, Clone, Copy)]
pub(super) struct Window {
    packets: u32,
    most: u32,
    /// Packets that have arrived since it grew.
    arrived: u32,
}

impl Window {
    pub(super) const fn new(most: u32) -> Self {
        Self { packets: most, most, arrived: 0 }
    }

    pub(super) const fn packets(&self) -> u32 {
        self.packets
    }

    /// So many packets have arrived.
    pub(super) fn grow(&mut self, packets: u32) {
        self.arrived += packets;
        while self.packets < self.most && self.arrived >= self.packets {
            self.arrived -= self.packets;
            self.packets = (self.packets + self.packets.div_ceil(8)).min(self.most);
        }
        if self.packets == self.most {
            self.arrived = 0;
        }
    }

    /// Packets were lost.
    pub(super) fn shrink(&mut self) {
        self.arrived = 0;
        self.packets = (self.packets / 2).max(LEAST).min(self.packets);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_halve_it_and_arrivals_bring_it_back() {
        let mut window = Window::new(300);
        window.grow(1000);
        assert_eq!(window.packets(), 300);
        for expected in [150, 75, 64, 64] {
            window.shrink();
            assert_eq!(window.packets(), expected);
        }
        window.grow(63);
        assert_eq!(window.packets(), 64);
        window.grow(1);
        assert_eq!(window.packets(), 72);
        let mut arrived = 0;
        while window.packets() < 300 {
            window.grow(1);
            arrived += 1;
        }
        assert!((1500..3000).contains(&arrived), "{arrived}");
    }

    #[test]
    fn a_small_window_stays() {
        let mut window = Window::new(4);
        window.shrink();
        assert_eq!(window.packets(), 4);
    }
}
