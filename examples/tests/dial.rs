//! The dial example says what the peer did.

mod common;

use common::{Program, Result, example};
use ibcm::{Gid, Hca, Listener, RejReason, Reject, ServiceId};

const SID: ServiceId = ServiceId::new(0x1000_0000_0000_0001);

/// What the example prints about a target.
async fn dial(target: Gid, seconds: &str) -> Result<String> {
    let mut command = example("dial")?;
    command.env("IBCM_DEVICE", "soft").args([&target.to_ip().to_string(), seconds]);
    let ended = Program::start(&mut command)?.ended().await?.well()?;
    Ok(ended.stdout + &ended.stderr)
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
