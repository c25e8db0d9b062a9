//! Paths that the SA gave before.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ibwire::PathRecord;
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
    /// Who waits for a query that somebody has sent already.
    pub(super) waiting: BTreeMap<Key, Vec<oneshot::Sender<Found>>>,
    /// Counts events: an answer that was asked for before one is not kept.
    pub(super) era: u64,
    pub(super) hits: u64,
    pub(super) misses: u64,
}

impl Cache {
    pub(super) fn configure(&mut self, config: CacheConfig) {
        self.config = config;
        while self.paths.len() > config.entries {
            self.paths.pop_first();
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
            // The oldest makes room; a full cache is rare, so that it is looked for costs little.
            let oldest = self.paths.iter().min_by_key(|(_, (since, _))| *since).map(|(key, _)| *key);
            oldest.and_then(|oldest| self.paths.remove(&oldest));
        }
        self.paths.insert(key, (now, path));
    }

    pub(super) fn clear(&mut self) {
        self.paths.clear();
        self.era += 1;
    }
}
