//! The guest's first file system: busybox, init.sh and the modules that mount the host's file system.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use super::kernel::Kernel;
use super::{GuestError, at, command, scripts};

/// Modules that init.sh needs before it can see /lib/modules.
const MODULES: [&str; 4] = ["virtio_pci", "9pnet_virtio", "9p", "overlay"];

/// An archive in the "newc" form of cpio, which the kernel unpacks (kernel documentation: initramfs buffer format).
#[derive(Debug, Default)]
struct Archive {
    bytes: Vec<u8>,
    inode: u32,
}

impl Archive {
    const FOLDER: u32 = 0o040_755;
    const PROGRAM: u32 = 0o100_755;

    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.inode += 1;
        let (size, name_size) = (content.len(), name.len() + 1);
        self.bytes.extend_from_slice(b"070701");
        let fields = [self.inode, mode, 0, 0, 1, 0, size as u32, 0, 0, 0, 0, name_size as u32, 0];
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }
}

/// The archive for `kernel`, uncompressed.
pub(super) fn build(kernel: &Kernel) -> Result<Vec<u8>, GuestError> {
    let mut archive = Archive::default();
    for folder in ["bin", "proc", "sys", "dev", "modules", "lower", "layer", "new"] {
        archive.entry(folder, Archive::FOLDER, &[]);
    }
    let busybox = PathBuf::from(command("which", &["busybox"], Path::new("/"))?.trim());
    archive.entry("bin/busybox", Archive::PROGRAM, &fs::read(&busybox).map_err(at(&busybox))?);
    let init = scripts().join("init.sh");
    archive.entry("init", Archive::PROGRAM, &fs::read(&init).map_err(at(&init))?);

    let mut order: Vec<String> = Vec::new();
    for module in MODULES {
        for file in kernel.load_order(module)? {
            // Newer kernel packages compress their modules; busybox wants them plain.
            let compressed = file.extension() == Some(OsStr::new("xz"));
            let stem = if compressed { file.file_stem() } else { file.file_name() };
            let name = stem.unwrap_or_default().to_string_lossy().into_owned();
            if order.contains(&name) {
                continue;
            }
            let content = if compressed { decompress(&file)? } else { fs::read(&file).map_err(at(&file))? };
            archive.entry(&format!("modules/{name}"), Archive::PROGRAM, &content);
            order.push(name);
        }
    }
    archive.entry("order", Archive::PROGRAM, order.join("\n").as_bytes());
    Ok(archive.finish())
}

fn decompress(file: &Path) -> Result<Vec<u8>, GuestError> {
    let output = std::process::Command::new("xz").arg("-dc").arg(file).output();
    output.map(|output| output.stdout).map_err(at(file))
}
