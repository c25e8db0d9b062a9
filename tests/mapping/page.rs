//! The tables of docs/mapping.md.

/// A line of a table.
#[derive(Debug)]
pub(crate) struct Row {
    /// The heading above the table.
    pub(crate) heading: &'static str,
    /// What the first cell names: what is in backticks there, else all of it.
    pub(crate) names: Vec<&'static str>,
    /// All cells.
    pub(crate) cells: Vec<&'static str>,
}

impl Row {
    /// The last cell: where it is.
    pub(crate) fn here(&self) -> &'static str {
        self.cells.last().expect("a line of a table has cells")
    }

    /// The Rust paths there.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &'static str> + use<> {
        paths(self.here())
    }
}

/// The page.
pub(crate) const PAGE: &str = include_str!("../../docs/mapping.md");

/// The Rust paths in a piece of it.
pub(crate) fn paths(text: &'static str) -> impl Iterator<Item = &'static str> {
    text.lines().flat_map(quoted).filter(|path| path.starts_with("ibcm::"))
}

/// All lines of all tables, without their heads.
pub(crate) fn rows() -> Vec<Row> {
    let (mut heading, mut in_table, mut rows) = ("", false, Vec::new());
    for line in PAGE.lines() {
        if let Some(text) = line.strip_prefix('#') {
            heading = text.trim_start_matches('#').trim();
        }
        let Some(line) = line.strip_prefix("| ").and_then(|line| line.strip_suffix(" |")) else {
            in_table = line.starts_with("|---");
            continue;
        };
        if !in_table {
            continue;
        }
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        let mut names: Vec<_> = quoted(cells[0]).collect();
        if names.is_empty() {
            names.push(cells[0]);
        }
        rows.push(Row { heading, names, cells });
    }
    rows
}

/// What is in backticks.
fn quoted(cell: &'static str) -> impl Iterator<Item = &'static str> {
    cell.split('`').skip(1).step_by(2)
}
