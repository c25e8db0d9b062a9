//! Waiting until nothing is left, and saying what is.

use std::fmt;
use std::time::Duration;

use super::probe::Held;
use super::subnet::Subnet;

/// What was still there when [`Subnet::quiet`] gave up.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct NotQuiet {
    /// How long it waited.
    pub waited: Duration,
    /// The subnet's seed.
    pub seed: u64,
    /// Each thing that is left.
    pub held: Vec<Held>,
}

impl fmt::Display for NotQuiet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "after {:?} the subnet with seed {} still has", self.waited, self.seed)?;
        for (n, held) in self.held.iter().enumerate() {
            write!(f, "{} {}", if n == 0 { "" } else { "," }, held.what)?;
        }
        Ok(())
    }
}

impl std::error::Error for NotQuiet {}

/// How long what ends by itself may take: longer than any TimeWait or exchange that peers agree on.
const ENDS_WITHIN: Duration = Duration::from_secs(600);
/// How long what someone holds may still be held when nothing is left that ends by itself: the time of the tasks
/// that are about to drop it.
const GRACE: Duration = Duration::from_secs(1);
/// How often it looks, at first and later.
const FIRST_LOOK: Duration = Duration::from_millis(1);
const LAST_LOOK: Duration = Duration::from_millis(100);

impl Subnet {
    /// Waits until no connection, QP, memory region, shared receive queue or TimeWait is left and no packet is under way.
    ///
    /// What ends by itself is waited for, at most ten minutes of the runtime's clock. What does not is a leak: it is
    /// reported a second after nothing else is left. Layers above the devices take part by
    /// [`SoftDevice::add_probe`](crate::SoftDevice::add_probe). HCAs that were removed are not looked at.
    ///
    /// # Errors
    /// [`NotQuiet`] names each QP with what is posted, region, queue, connection and timer that is left.
    ///
    /// # Cancel safety
    /// Only looks; can be dropped and called again.
    pub async fn quiet(&self) -> Result<(), NotQuiet> {
        let start = tokio::time::Instant::now();
        let mut last_moving = start;
        let mut pause = FIRST_LOOK;
        loop {
            let held = self.held();
            if held.is_empty() {
                return Ok(());
            }
            let now = tokio::time::Instant::now();
            if held.iter().any(|held| held.ends) && now - start < ENDS_WITHIN {
                last_moving = now;
            } else if now - last_moving >= GRACE {
                return Err(NotQuiet { waited: now - start, seed: self.seed(), held });
            }
            tokio::time::sleep(pause).await;
            pause = (2 * pause).min(LAST_LOOK);
        }
    }

    fn held(&self) -> Vec<Held> {
        let mut held: Vec<_> = self.0.devices().flat_map(|device| device.0.held()).collect();
        let under_way = self.0.wires.fabric().under_way();
        if under_way > 0 {
            held.push(Held { what: format!("{under_way} packets under way"), ends: true });
        }
        held
    }
}
