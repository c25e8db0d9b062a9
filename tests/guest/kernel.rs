//! Debian's stock kernel: fetched as a package, unpacked in the checkout's cache, never installed.

use std::fs;
use std::path::PathBuf;

use super::{GuestError, at, command, workspace};

/// An unpacked kernel package.
#[derive(Debug)]
pub(super) struct Kernel {
    root: PathBuf,
    version: String,
}

impl Kernel {
    /// The newest kernel that linux-image-amd64 stands for; downloaded once, then taken from `.cache/guest`.
    pub(super) fn fetch() -> Result<Self, GuestError> {
        let cache = workspace().join(".cache/guest");
        let root = cache.join("kernel");
        if !root.exists() {
            // In a folder of its own, then renamed: two test runs may fetch at the same time.
            let fresh = cache.join(format!("fetch-{}", std::process::id()));
            fs::create_dir_all(&fresh).map_err(at(&fresh))?;
            let unpacked = fresh.join("kernel");
            let depends = command("apt-cache", &["depends", "linux-image-amd64"], &fresh)?;
            let package = depends
                .lines()
                .find_map(|line| {
                    line.trim().strip_prefix("Depends: ").filter(|name| name.starts_with("linux-image-"))
                })
                .ok_or_else(|| GuestError::Command {
                    command: "apt-cache depends linux-image-amd64".into(),
                    reason: "names no kernel; `apt-get update` first?".into(),
                })?;
            command("apt-get", &["download", "-q", package], &fresh)?;
            let listing = command("find", &[".", "-name", "linux-image-*.deb"], &fresh)?;
            command("dpkg", &["-x", listing.trim(), "kernel"], &fresh)?;
            let version = Self::at(unpacked.clone())?.version;
            command("depmod", &["-b", "kernel", &version], &fresh)?;
            let renamed = fs::rename(&unpacked, &root);
            if !root.exists() {
                renamed.map_err(at(&root))?;
            }
            fs::remove_dir_all(&fresh).map_err(at(&fresh))?;
        }
        Self::at(root)
    }

    fn at(root: PathBuf) -> Result<Self, GuestError> {
        let modules = root.join("lib/modules");
        let mut entries = fs::read_dir(&modules).map_err(at(&modules))?.flatten();
        let version = entries.next().map(|entry| entry.file_name().to_string_lossy().into_owned());
        let version = version.ok_or_else(|| at(&modules)(std::io::ErrorKind::NotFound.into()))?;
        Ok(Self { root, version })
    }

    /// The bootable image.
    pub(super) fn image(&self) -> PathBuf {
        self.root.join(format!("boot/vmlinuz-{}", self.version))
    }

    /// What the guest sees as /lib/modules.
    pub(super) fn modules(&self) -> PathBuf {
        self.root.join("lib/modules")
    }

    /// The files to load for `module`, in order, what it needs first.
    pub(super) fn load_order(&self, module: &str) -> Result<Vec<PathBuf>, GuestError> {
        let root = self.root.to_string_lossy();
        let arguments = ["-d", &root, "-S", &self.version, "--show-depends", module];
        let listing = command("modprobe", &arguments, &self.root)?;
        Ok(listing
            .lines()
            .filter_map(|line| line.strip_prefix("insmod ")?.split_whitespace().next())
            .map(PathBuf::from)
            .collect())
    }
}
