//! How a bench is called.

use crate::machine;

/// The command line of a bench.
#[derive(Debug, Clone)]
pub struct Options {
    /// A smoke run of seconds: `--quick`, or not called by `cargo bench`. Its numbers say nothing.
    pub quick: bool,
    /// `--count=N`: each case is done so often and timed once. For profilers.
    pub count: Option<u64>,
    filter: Option<String>,
}

impl Options {
    /// Reads the command line: `cargo bench` passes `--bench`, `cargo test` does not. A word that is no flag selects the
    /// cases whose names contain it. Prints what runs and where.
    pub fn start(title: &str) -> Self {
        let (flags, words): (Vec<_>, Vec<_>) = std::env::args().skip(1).partition(|arg| arg.starts_with('-'));
        let has = |wanted: &str| flags.iter().any(|flag| flag == wanted);
        let options = Self {
            quick: has("--quick") || !has("--bench"),
            count: flags.iter().find_map(|flag| flag.strip_prefix("--count=")?.parse().ok()),
            filter: words.into_iter().next(),
        };
        println!("\n{title}");
        println!("{}", machine());
        if options.quick {
            println!("quick run: it shows that the bench works, its numbers mean nothing");
        }
        println!();
        options
    }

    /// Whether the case with this name is wanted.
    pub fn selects(&self, name: &str) -> bool {
        self.filter.as_ref().is_none_or(|filter| name.contains(filter.as_str()))
    }
}
