//! SIDR over LIDs: messages alone, for ibsim has no queue pairs that could be found.

use ibcm::sidr::{self, Answer, QueryError, Responder, Status};
use ibcm::{Hca, ServiceId};
use ibwire::Lid;
use ibwire::mad::ClassPortInfo;
use tests::ibsim::Fabric;

use crate::{Outcome, attached};

const SERVICE: ServiceId = ServiceId::new(0x1000_0000_0000_0079);

pub(crate) async fn sidr(fabric: Fabric) -> Outcome {
    let server = Hca::open(attached(&fabric, "D").await?).await?;
    let elsewhere = Hca::open(attached(&fabric, "C").await?).await?;
    let client = Hca::open(attached(&fabric, "B").await?).await?;
    let path = client.path_to(server.gid()).service_id(SERVICE).await?;
    assert!(path.record().dlid != Lid::NONE && path.record().slid != path.record().dlid);
    let further = client.path_to(elsewhere.gid()).await?;
    let responder = Responder::bind(SERVICE).device(&server).await?;
    let last = Responder::bind(SERVICE).device(&elsewhere).await?;
    let (here, there) = (path.record().slid, further.record().dlid);
    let gid = elsewhere.gid();
    let serve = tokio::spawn(async move {
        let request = responder.accept().await?;
        assert_eq!((&request.private_data()[..5], request.lid()), (&b"hello"[..], here));
        request.answer(Answer::refusal(Status::NO_QP).private_data(b"not here"))?;
        // Of the second query it knows who answers it.
        let request = responder.accept().await?;
        let mut to = ClassPortInfo { base_version: 1, class_version: 2, ..ClassPortInfo::default() };
        (to.redirect.gid, to.redirect.lid) = (gid, there);
        request.answer(Answer::redirect(to))?;
        last.accept().await?.answer(Answer::refusal(Status::REJECTED).private_data(b"nor here"))?;
        Ok::<_, ibcm::Error>(())
    });
    for (status, words) in [(Status::NO_QP, &b"not here"[..]), (Status::REJECTED, b"nor here")] {
        match sidr::query(path.clone()).private_data(b"hello").await {
            Err(QueryError::Refused { status: refused, private_data, .. }) => {
                assert_eq!((refused, &private_data.as_bytes()[..words.len()]), (status, words));
            }
            other => return Err(format!("{other:?}").into()),
        }
    }
    Ok(serve.await??)
}
