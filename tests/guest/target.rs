//! Test targets that are built here and run in the guest.

use std::path::PathBuf;

use serde_json::Value;

use super::{GuestError, Target, command, workspace};

impl Target {
    /// Builds it with the cargo that runs this test and gives the executable.
    pub(super) fn build(&self) -> Result<PathBuf, GuestError> {
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
        let Self { package, name, feature } = self;
        let what = ["test", "--package", package, "--features", feature, "--test", name];
        let how = ["--no-run", "--message-format", "json"];
        let messages = command(&cargo, &[&what[..], &how[..]].concat(), workspace())?;
        messages
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .filter(|message| message["target"]["name"] == *name)
            .find_map(|message| message["executable"].as_str().map(PathBuf::from))
            .ok_or_else(|| GuestError::Command {
                command: cargo,
                reason: format!("named no executable of {name}"),
            })
    }
}
