//! Paths that the SA gave before.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::{Duration, Instant};

use ibwire::{Gid, PathRecord};
use tokio::sync::oneshot;

use crate::proto::client::QueryError;

/// Bounds of the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheConfig {
    /// How many paths it holds; 0 turns it off. Default 4,096.
    pub entries: usize,
    /// How old a path may be. Default 5 minutes. Events of the port end all of them at once.
    pub max_age: Duration,
}

impl Default for CacheConfig {
    fn default() -> Self {
        Self { entries: 4096, max_age: Duration::from_secs(300) }
    }
}

/// What was asked: the component mask and the record's bytes.
pub(super) type Key = (u64, [u8; PathRecord::LEN]);

pub(super) type Found = Result<PathRecord, QueryError>;

/// Paths by what was asked, and the queries that are under way, each once.
#[derive(Debug, Default)]
pub(super) struct Cache {
    config: CacheConfig,
    paths: BTreeMap<Key, (Instant, PathRecord)>,
    /// Who waits for a query that somebody has sent already, and the era in which that was.
    waiting: BTreeMap<(u64, Key), Vec<oneshot::Sender<Found>>>,
    /// Counts events: an answer that was asked for before one is not kept.
    pub(super) era: u64,
    pub(super) hits: u64,
    pub(super) misses: u64,
}

impl Cache {
    pub(super) fn configure(&mut self, config: CacheConfig) {
        self.config = config;
        while self.paths.len() > config.entries {
            self.make_room();
        }
    }

    pub(super) fn get(&mut self, now: Instant, key: &Key) -> Option<(PathRecord, Duration)> {
        let (since, path) = self.paths.get(key)?;
        let age = now.saturating_duration_since(*since);
        let found = (*path, age);
        if age > self.config.max_age {
            self.paths.remove(key);
            return None;
        }
        self.hits += 1;
        Some(found)
    }

    pub(super) fn put(&mut self, now: Instant, key: Key, path: PathRecord) {
        if self.config.entries == 0 {
            return;
        }
        if self.paths.len() >= self.config.entries && !self.paths.contains_key(&key) {
            self.make_room();
        }
        self.paths.insert(key, (now, path));
    }

    /// The oldest goes; a full cache is rare, so that it is looked for costs little.
    fn make_room(&mut self) {
        let oldest = self.paths.iter().min_by_key(|(_, (since, _))| *since).map(|(key, _)| *key);
        oldest.and_then(|oldest| self.paths.remove(&oldest));
    }

    /// Waits for an answer. The era if the query has to be made; otherwise it is under way.
    pub(super) fn wait(&mut self, key: Key, found: oneshot::Sender<Found>) -> Option<u64> {
        self.misses += 1;
        match self.waiting.entry((self.era, key)) {
            Entry::Vacant(place) => {
                place.insert(vec![found]);
                Some(self.era)
            }
            Entry::Occupied(mut place) => {
                let waiting = place.get_mut();
                waiting.retain(|waiter| !waiter.is_closed());
                waiting.push(found);
                None
            }
        }
    }

    /// Those who wait for a query that is over.
    pub(super) fn answered(&mut self, key: Key, era: u64) -> Vec<oneshot::Sender<Found>> {
        self.waiting.remove(&(era, key)).unwrap_or_default()
    }

    /// What is known of the way to a GID.
    pub(super) fn forget(&mut self, dgid: Gid) {
        self.paths.retain(|_, (_, path)| path.dgid != dgid);
    }

    pub(super) fn clear(&mut self) {
        self.paths.clear();
        self.era += 1;
    }
}
