//! The storm and ranks examples do what their documentation says.

use std::process::Command;

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

/// What an example, which is built beside this test, prints if it ends well.
fn output(name: &str, arguments: &[&str]) -> Result<String> {
    let test = std::env::current_exe()?;
    let profile = test.ancestors().nth(2).ok_or("no folder above the test")?;
    let mut command = Command::new(profile.join("examples").join(name));
    let output = command.args(arguments).env_remove("RUST_LOG").env_remove("IBCM_DEVICE").output()?;
    let text = String::from_utf8(output.stdout)? + &String::from_utf8(output.stderr)?;
    if output.status.success() { Ok(text) } else { Err(text.into()) }
}

#[test]
fn some_hundred_connections() -> Result {
    let text = output("storm", &["--count", "400", "--concurrency", "50", "--stats"])?;
    for line in [
        "400 of 400 connections in ",
        " 50 in flight at once\n",
        "the server got 400 requests, accepted 400 and dropped 0\n",
        "a message there and back on each in ",
        "\nclient: ",
        "\n  messages_received 400\n",
    ] {
        assert!(text.contains(line), "{line:?} is not in:\n{text}");
    }
    Ok(())
}

#[test]
fn a_slow_server_that_turns_clients_away() -> Result {
    let slow = ["--decide", "1", "--window", "8", "--backlog", "40"];
    let text = output("storm", &[&["--count", "120", "--concurrency", "120"][..], &slow].concat())?;
    assert!(text.contains("120 of 120 connections in "), "{text}");
    assert!(text.contains(" accepted 120 and dropped ") && !text.contains(" dropped 0\n"), "{text}");
    Ok(())
}

#[test]
fn a_thousand_ranks() -> Result {
    let text = output("ranks", &[])?;
    assert_eq!(text.rsplit('\r').next(), Some("1000 of 1000 up, 0 failed, 0 in flight, 0 waiting"), "{text}");
    Ok(())
}
