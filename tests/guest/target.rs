//! Programs of the workspace that are built here and run in the guest.

use std::path::PathBuf;

use serde_json::Value;

use super::{GuestError, Target, command, workspace};

impl Target {
    /// Its name, and that of its file in the guest.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Test { name, .. } | Self::Example { name, .. } => name,
        }
    }

    /// Builds it with the cargo that runs this test and gives the executable.
    pub(super) fn build(&self) -> Result<PathBuf, GuestError> {
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
        let what = match self {
            Self::Test { package, name, feature } => {
                vec!["test", "--package", package, "--features", feature, "--test", name, "--no-run"]
            }
            Self::Example { package, name, feature } => {
                let mut what = vec!["build", "--package", package, "--example", name];
                if let Some(feature) = feature {
                    what.extend(["--features", feature]);
                }
                what
            }
        };
        let messages = command(&cargo, &[&what[..], &["--message-format", "json"]].concat(), workspace())?;
        messages
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .filter(|message| message["target"]["name"] == self.name())
            .find_map(|message| message["executable"].as_str().map(PathBuf::from))
            .ok_or_else(|| GuestError::Command {
                command: cargo,
                reason: format!("named no executable of {}", self.name()),
            })
    }
}
