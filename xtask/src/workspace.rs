//! Questions to `cargo metadata`.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::process;

/// Licences that may enter the dependency graph. A dependency offers a choice or a combination of licences.
const LICENCES: [&str; 13] = [
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "CC0-1.0",
    "ISC",
    "MIT",
    "MIT-0",
    "NCSA",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Dependencies that name no licence in their manifest, and what their licence file says.
const LICENCE_FILES: [(&str, &str); 1] = [("rdma-sys", "MIT")];

/// The workspace and all that it depends on, with every feature.
#[derive(Debug)]
pub(crate) struct Workspace {
    metadata: Value,
}

impl Workspace {
    pub(crate) fn read(root: &Path) -> Result<Self, String> {
        let mut question = Command::new("cargo");
        question.args(["metadata", "--format-version", "1", "--all-features"]).current_dir(root);
        let ended = process::quiet(&mut question, Duration::from_secs(300));
        ended.result?;
        let metadata =
            serde_json::from_str(&ended.stdout).map_err(|error| format!("cargo metadata: {error}"))?;
        Ok(Self { metadata })
    }

    fn packages(&self) -> impl Iterator<Item = &Value> {
        self.metadata["packages"].as_array().into_iter().flatten()
    }

    fn members(&self) -> impl Iterator<Item = &Value> {
        self.packages().filter(|package| package["source"].is_null())
    }

    /// Names of the packages of the workspace that have this feature.
    pub(crate) fn with_feature(&self, feature: &str) -> Vec<&str> {
        self.members()
            .filter(|package| package["features"].get(feature).is_some())
            .filter_map(|package| package["name"].as_str())
            .collect()
    }

    /// Names of the packages of the workspace that are published, or of those that are not.
    pub(crate) fn named(&self, published: bool) -> Vec<&str> {
        let packages = self.members().filter(|package| package["publish"].is_null() == published);
        packages.filter_map(|package| package["name"].as_str()).collect()
    }

    /// The published packages, and the features and flags of rustdoc that each asks docs.rs for.
    pub(crate) fn docs_rs(&self) -> impl Iterator<Item = (&str, String, Vec<&str>)> {
        self.members().filter(|package| package["publish"].is_null()).filter_map(|package| {
            let settings = &package["metadata"]["docs"]["rs"];
            let list = |name: &str| -> Vec<&str> {
                settings[name].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
            };
            Some((package["name"].as_str()?, list("features").join(","), list("rustdoc-args")))
        })
    }

    /// Fails on every published package that does not say in its manifest what a registry shows.
    pub(crate) fn check_metadata(&self) -> Result<(), String> {
        const WANTED: [&str; 6] =
            ["description", "documentation", "license", "readme", "rust_version", "edition"];
        let published = self.members().filter(|package| package["publish"].is_null());
        let lacking = published.flat_map(|package| {
            let empty = |field: &&str| package[*field].as_str().is_none_or(str::is_empty);
            WANTED.into_iter().filter(empty).map(|field| format!("{field} of {}", name(package)))
        });
        nothing(lacking, "not in the manifest")
    }

    /// Names of all integration test targets that default features build, without doubles.
    pub(crate) fn test_targets(&self) -> Vec<&str> {
        let targets = self.members().flat_map(|package| package["targets"].as_array().into_iter().flatten());
        let tests = targets
            .filter(|target| target["kind"].as_array().is_some_and(|kinds| kinds.contains(&"test".into())))
            .filter(|target| target["required-features"].is_null());
        let mut names: Vec<&str> = tests.filter_map(|target| target["name"].as_str()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Fails on every package that declares a newer minimum than `msrv`.
    pub(crate) fn check_msrv(&self, msrv: &str) -> Result<(), String> {
        let newer = self.packages().filter_map(|package| {
            let version = package["rust_version"].as_str()?;
            (minor(version) > minor(msrv)).then(|| format!("{} wants Rust {version}", name(package)))
        });
        nothing(newer, "newer than the minimum")
    }

    /// Fails on every package whose licence does not go with ours.
    pub(crate) fn check_licences(&self) -> Result<(), String> {
        let foreign = self.packages().filter_map(|package| {
            let known = LICENCE_FILES.iter().find(|(name, _)| package["name"] == *name);
            let licence =
                package["license"].as_str().or(known.map(|(_, licence)| *licence)).unwrap_or("none");
            (!acceptable(licence)).then(|| format!("{} has {licence}", name(package)))
        });
        nothing(foreign, "not on the list of licences")
    }
}

fn name(package: &Value) -> String {
    format!("{} {}", package["name"].as_str().unwrap_or("?"), package["version"].as_str().unwrap_or("?"))
}

fn nothing(found: impl Iterator<Item = String>, what: &str) -> Result<(), String> {
    let found: Vec<String> = found.collect();
    if found.is_empty() { Ok(()) } else { Err(format!("{what}: {}", found.join(", "))) }
}

/// (1, 88) of "1.88" or "1.88.0".
fn minor(version: &str) -> (u32, u32) {
    let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

/// An SPDX expression of names, AND, OR and parentheses around alternatives; "/" is the old way to write OR.
fn acceptable(expression: &str) -> bool {
    let expression = expression.replace('/', " OR ");
    if let Some((before, rest)) = expression.split_once('(') {
        let Some((inside, after)) = rest.split_once(')') else { return false };
        let value = if acceptable(inside) { "MIT" } else { "none" };
        return acceptable(&format!("{before}{value}{after}"));
    }
    expression.split(" OR ").any(|all| all.split(" AND ").all(|licence| LICENCES.contains(&licence.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn licence_expressions() {
        assert!(acceptable("MIT"));
        assert!(acceptable("MIT/Apache-2.0"));
        assert!(acceptable("(MIT OR Apache-2.0) AND Unicode-3.0"));
        assert!(acceptable("MIT OR Apache-2.0 OR LGPL-2.1-or-later"));
        assert!(acceptable("Apache-2.0 WITH LLVM-exception OR GPL-2.0"));
        assert!(!acceptable("GPL-3.0"));
        assert!(!acceptable("MIT AND GPL-3.0"));
        assert!(!acceptable("(MIT AND GPL-3.0) OR (GPL-2.0 OR LGPL-2.1)"));
    }

    #[test]
    fn versions_compare_by_number() {
        assert!(minor("1.100") > minor("1.88.0"));
        assert!(minor("1.9") < minor("1.88"));
    }
}
