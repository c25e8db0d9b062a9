//! Which device is meant when none is named. `IBCM_DEVICE` is read by the process, so each case runs in one of
//! its own: the test starts itself once more.

mod common;

use std::process::Command;

use common::{Result, SID};
use ibcm::{Connection, Hca, Listener};

/// Set in the processes that the tests start.
const CHILD: &str = "IBCM_TEST_CHILD";

/// Runs the calling test in a process of its own and gives what it prints.
fn in_a_process(test: &str, device: &str) -> Result<String> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--exact", test, "--nocapture"]).env(CHILD, "1").env("IBCM_DEVICE", device);
    let output = command.output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let ran = text.contains("test result: ok. 1 passed");
    if output.status.success() && ran { Ok(text) } else { Err(text.into()) }
}

fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// Opens the default device and prints its name, or why it cannot be opened.
fn print_the_default_hca() -> Result {
    tokio::runtime::Runtime::new()?.block_on(async {
        match Hca::open_default().await {
            Ok(hca) => println!("opened {}", hca.name()),
            Err(error) => {
                let source = std::error::Error::source(&error).map(|source| format!(": {source}"));
                println!("{error}{}", source.unwrap_or_default());
            }
        }
        Ok(())
    })
}

#[test]
fn the_variable_names_it() -> Result {
    if is_child() {
        return print_the_default_hca();
    }
    let text = in_a_process("the_variable_names_it", "soft:127.0.0.77")?;
    assert!(text.contains("opened soft:127.0.0.77"), "{text}");
    Ok(())
}

#[cfg(feature = "verbs")]
const NO_SUCH_DEVICE: &str = "this machine has no RDMA device nothere0";
#[cfg(not(feature = "verbs"))]
const NO_SUCH_DEVICE: &str =
    "cannot open nothere0: this build of ibcm cannot use the machine's own RDMA devices";

#[cfg(all(feature = "ibsim", target_os = "linux"))]
const NO_IBSIM: &str = "ibsim:Hca1";
#[cfg(not(all(feature = "ibsim", target_os = "linux")))]
const NO_IBSIM: &str = "ibsim:Hca1: this build of ibcm cannot use ibsim";

#[test]
fn names_that_cannot_be_opened() -> Result {
    if is_child() {
        return print_the_default_hca();
    }
    for (device, expected) in [
        ("soft:10", "IBCM_DEVICE: \"soft:10\" is no device: IP addresses are expected after soft:"),
        ("nothere0", NO_SUCH_DEVICE),
        ("ibsim:Hca1", NO_IBSIM),
    ] {
        let text = in_a_process("names_that_cannot_be_opened", device)?;
        assert!(text.contains(expected), "{device}: {text}");
    }
    Ok(())
}

#[test]
fn it_is_shared_within_a_runtime() -> Result {
    if !is_child() {
        return in_a_process("it_is_shared_within_a_runtime", "soft").map(drop);
    }
    tokio::runtime::Runtime::new()?.block_on(async {
        let (first, second) = tokio::try_join!(Hca::open_default(), Hca::open_default())?;
        assert_eq!(first.gid(), second.gid());
        // Another runtime has one of its own.
        let elsewhere = std::thread::spawn(|| {
            let runtime = tokio::runtime::Runtime::new()?;
            let hca = runtime.block_on(async { Hca::open_default().await })?;
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(hca.gid())
        });
        assert_ne!(first.gid(), elsewhere.join().map_err(|_| "it panicked")??);
        // A listener and a connection that name no device use it.
        let listener = Listener::bind(SID).await?;
        assert_eq!(listener.hca().gid(), first.gid());
        let path = second.path_to(first.gid()).service_id(SID).await?;
        let connecting = tokio::spawn(Connection::connect(path));
        let conn = listener.accept().await?.accept().await?;
        connecting.await??;
        drop((conn, listener));
        // Closed, the next call opens a new one.
        first.close().await;
        let third = Hca::open_default().await?;
        assert!(third.path_to(third.gid()).await.is_ok());
        Ok(())
    })
}

#[test]
fn an_ip_connection_starts_from_the_hca_of_its_route() -> Result {
    if !is_child() {
        return in_a_process("an_ip_connection_starts_from_the_hca_of_its_route", "").map(drop);
    }
    tokio::runtime::Runtime::new()?.block_on(async {
        let own: Vec<_> = ibcm::devices().into_iter().map(|device| device.name).collect();
        if !own.is_empty() {
            // One of these, or an error that names them.
            let default = Hca::open_default().await;
            let said = default.map_or_else(|error| format!("{error:?}"), |hca| hca.name().to_string());
            assert!(own.iter().any(|name| said.contains(name)), "{said}");
            return Ok(());
        }
        let server = Hca::open("soft:127.0.24.1").await?;
        let listener = Listener::bind_ip((server.gid().to_ip(), 7000)).device(&server).await?;
        let connecting = tokio::spawn(Connection::connect_ip((server.gid().to_ip(), 7000)));
        let request = listener.accept().await?;
        let default = Hca::open_default().await?;
        assert_eq!(request.peer().gid, default.gid());
        request.accept().await?;
        connecting.await??;
        Ok(())
    })
}
