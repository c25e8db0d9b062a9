//! The examples on raw datagrams, on an in-process subnet.

mod common;

use common::{Program, Result, example};

#[tokio::test]
async fn everybody_hears_everybody_else_and_not_itself() -> Result {
    let mut command = example("chat")?;
    command.arg("--sim");
    let said = Program::start(&mut command)?.ended().await?.well()?.stdout;
    let names = ["ann", "bob", "cy"];
    for name in names {
        for other in names {
            let line = format!("{name} hears {other}: hello from {other}");
            assert_eq!(said.contains(&line), name != other, "{line:?} in {said}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_report_names_its_groups() -> Result {
    let mut command = example("mld")?;
    command.arg("--sim");
    let said = Program::start(&mut command)?.ended().await?.well()?.stdout;
    assert!(said.contains("says it is in ff02::fb") && said.contains("says it is in ff05::1:3"), "{said}");
    Ok(())
}
