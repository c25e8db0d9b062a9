//! A whole subnet in one process and in virtual time: how long it takes to come up, connections between all its HCAs, and
//! how many queries its SA answers. One thread.

mod alone;
mod connections;
mod net;
mod queries;
mod start;

use std::error::Error;

use benches::Options;

type Result<T = ()> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Result {
    if let Some(name) = alone::case() {
        let is_known = start::case(&name)? || connections::case(&name)?;
        return if is_known { Ok(()) } else { Err(format!("no case {name:?}").into()) };
    }
    let options =
        Options::start("fabric: switches, HCAs, a subnet manager and its SA, in virtual time, one core");
    start::run(&options)?;
    connections::run(&options)?;
    queries::run(&options)
}

/// A runtime whose clock goes on when nobody has anything to do.
fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build()?)
}
