//! The discovery example finds its service.

use std::process::Command;

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

#[test]
fn it_finds_the_service() -> Result {
    let test = std::env::current_exe()?;
    let profile = test.ancestors().nth(2).ok_or("no folder above the test")?;
    let output = Command::new(profile.join("examples").join("discovery")).output()?;
    let text = String::from_utf8(output.stdout)?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("the service is QP ") && text.ends_with("it answers\n"), "{text}");
    Ok(())
}
