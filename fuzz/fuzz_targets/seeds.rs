//! Writes the seeds of every target to where `cargo fuzz run` looks for its corpus.

use std::{fs, io, path};

fn main() -> io::Result<()> {
    for target in fuzz::TARGETS {
        let folder = path::Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name);
        fs::create_dir_all(&folder)?;
        let seeds = (target.seeds)();
        for seed in &seeds {
            fs::write(folder.join(&seed.name), &seed.bytes)?;
        }
        println!("{}: {} seeds", target.name, seeds.len());
    }
    Ok(())
}
