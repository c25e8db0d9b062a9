//! What is to be said of a link that goes down: once each time, however late somebody asks.

/// Of one link for one socket.
#[derive(Debug, Default)]
pub(crate) struct Outages {
    is_down: bool,
    untold: u32,
}

impl Outages {
    /// Takes what is heard of the link, in order; whether it has gone down with that.
    pub(crate) fn hear(&mut self, is_up: bool) -> bool {
        let goes_down = !is_up && !self.is_down;
        self.is_down = !is_up;
        self.untold = self.untold.saturating_add(goes_down.into());
        goes_down
    }

    /// Whether there is one that nobody was told of; it counts as told then.
    pub(crate) fn tell(&mut self) -> bool {
        let untold = self.untold > 0;
        self.untold = self.untold.saturating_sub(1);
        untold
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_time_is_told_once() {
        let mut outages = Outages::default();
        assert!(!outages.tell());
        let heard = [true, false, false, true, false, true, true].map(|is_up| outages.hear(is_up));
        assert_eq!(heard, [false, true, false, false, true, false, false]);
        assert_eq!([outages.tell(), outages.tell(), outages.tell()], [true, true, false]);
        assert!(outages.hear(false) && outages.tell() && !outages.tell());
    }
}
