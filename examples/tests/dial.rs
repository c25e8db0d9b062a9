//! The dial example says what the peer did.

use std::process::Command;

use ibcm::{Gid, Hca, Listener, RejReason, Reject, ServiceId};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const SID: ServiceId = ServiceId::new(0x1000_0000_0000_0001);

/// What the example, which is built beside this test, prints about a target.
async fn dial(target: Gid, seconds: &'static str) -> Result<String> {
    let test = std::env::current_exe()?;
    let profile = test.ancestors().nth(2).ok_or("no folder above the test")?;
    let mut command = Command::new(profile.join("examples").join("dial"));
    command.env_remove("RUST_LOG").env("IBCM_DEVICE", "soft");
    command.args([&target.to_ip().to_string(), seconds]);
    let output = tokio::task::spawn_blocking(move || command.output()).await??;
    let text = String::from_utf8(output.stdout)? + &String::from_utf8(output.stderr)?;
    if output.status.success() { Ok(text) } else { Err(text.into()) }
}

async fn target() -> Result<(Hca, Listener)> {
    let hca = Hca::open("soft").await?;
    let listener = Listener::bind(SID).device(&hca).await?;
    Ok((hca, listener))
}

#[tokio::test]
async fn a_target_that_takes_it() -> Result {
    let (hca, listener) = target().await?;
    let serving = tokio::spawn(async move {
        let request = listener.accept().await?;
        assert_eq!(&request.private_data()[..4], b"BD\x02\x20");
        Ok::<_, ibcm::Error>(request.accept().await?.closed().await)
    });
    assert_eq!(dial(hca.gid(), "5").await?, "disconnected, the peer confirmed\n");
    serving.await??;
    Ok(())
}

#[tokio::test]
async fn a_target_that_is_short_of_something_is_asked_again() -> Result {
    let (hca, listener) = target().await?;
    let serving = tokio::spawn(async move {
        for reason in [RejReason::NO_RESOURCES, RejReason::NO_QP, RejReason::STALE_CONNECTION] {
            listener.accept().await?.reject(reason);
        }
        Ok::<_, ibcm::Error>(listener.accept().await?.accept().await?.closed().await)
    });
    assert_eq!(dial(hca.gid(), "5").await?, "disconnected, the peer confirmed\n");
    serving.await??;
    Ok(())
}

#[tokio::test]
async fn targets_that_say_no() -> Result {
    let (hca, listener) = target().await?;
    let elsewhere: Gid = "192.0.2.1".parse()?;
    let serving = tokio::spawn(async move {
        listener.accept().await?.reject(Reject::new(RejReason::CONSUMER).private_data(b"V\x02"));
        listener.accept().await?.reject(Reject::redirect(elsewhere));
        Ok::<_, ibcm::Error>(())
    });
    assert_eq!(dial(hca.gid(), "5").await?, "it speaks versions up to 2\n");
    let text = dial(hca.gid(), "5").await?;
    assert!(text.contains("(25)") && text.contains("it suggests"), "{text}");
    serving.await??; // and with it the listener is gone
    assert_eq!(dial(hca.gid(), "5").await?, "nothing is served there\n");
    Ok(())
}

#[tokio::test]
async fn a_target_that_does_not_decide() -> Result {
    let (hca, listener) = target().await?;
    let undecided = tokio::spawn(async move { listener.accept().await });
    let text = dial(hca.gid(), "1.5").await?;
    assert!(text.starts_with("alive (it sent MRA), undecided for "), "{text}");
    drop(undecided.await??);
    Ok(())
}

#[tokio::test]
async fn nobody_there() -> Result {
    let text = dial("127.0.255.1".parse()?, "0.3").await?;
    assert!(text.starts_with("1 REQs, silence for "), "{text}");
    Ok(())
}
