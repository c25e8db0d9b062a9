//! The storm and ranks examples do what their documentation says.

mod common;

use common::{Result, output};

/// How many requests the server got, accepted and dropped.
fn requests(text: &str) -> Result<[u64; 3]> {
    let line = text.lines().find_map(|line| line.strip_prefix("the server got ")).ok_or("no such line")?;
    let numbers: Vec<u64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
    Ok(numbers.try_into().map_err(|_| line.to_owned())?)
}

#[test]
fn ten_thousand_connections() -> Result {
    let text = output("storm", &["--stats"])?;
    for line in [
        "10000 of 10000 connections in ",
        " 64 in flight at once\n",
        "a message there and back on each in ",
        "nothing is left after ",
        "\nclient: ",
        "\n  messages_received 10000\n",
    ] {
        assert!(text.contains(line), "{line:?} is not in:\n{text}");
    }
    let [received, accepted, dropped] = requests(&text)?;
    assert!(accepted >= 10_000 && received >= accepted + dropped, "{text}");
    Ok(())
}

/// Sixty ask at once, and it takes 0.4 s until there is room for those that found none.
#[test]
fn a_slow_server_that_turns_clients_away() -> Result {
    let slow = ["--decide", "10", "--window", "8", "--backlog", "12"];
    let text = output("storm", &[&["--count", "60", "--concurrency", "60"][..], &slow].concat())?;
    assert!(text.contains("60 of 60 connections in "), "{text}");
    let [_, accepted, dropped] = requests(&text)?;
    assert!(accepted >= 60 && dropped > 0, "{text}");
    Ok(())
}

#[test]
fn a_thousand_ranks() -> Result {
    let text = output("ranks", &[])?;
    assert_eq!(text.rsplit('\r').next(), Some("1000 of 1000 up, 0 failed, 0 in flight, 0 waiting"), "{text}");
    Ok(())
}
