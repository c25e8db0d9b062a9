//! HTTP/1.1 over a connection: hyper at both ends.
//!
//! ```text
//! cargo run --release --example http                      on two software HCAs
//! cargo run --release --example http -- --device NAME     on this device, for both ends
//! ```
//!
//! hyper asks for no more than tokio's `AsyncRead` and `AsyncWrite`. Several requests go over one connection; the
//! client's last act disconnects it.
#![forbid(unsafe_code)]

use std::convert::Infallible;
use std::error::Error;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::HOST;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use ibcm::{Connection, Listener, ServiceId};

const SID: ServiceId = ServiceId::new(0x1000_0000_0000_0050);

type Result<T = ()> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// The site: a greeting, and a page that gives back what is sent to it.
async fn site(request: Request<Incoming>) -> std::result::Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let mut response = match (head.method, head.uri.path()) {
        (Method::GET, "/") => Response::new(Full::from("hello over a queue pair\n")),
        (Method::POST, "/echo") => match body.collect().await {
            Ok(body) => Response::new(Full::new(body.to_bytes())),
            Err(_) => status(StatusCode::BAD_REQUEST),
        },
        _ => status(StatusCode::NOT_FOUND),
    };
    let server = concat!("ibcm-example/", env!("CARGO_PKG_VERSION"));
    response.headers_mut().insert("server", hyper::header::HeaderValue::from_static(server));
    Ok(response)
}

fn status(status: StatusCode) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = status;
    response
}

/// Serves each client in a task of its own, as long as there is a listener.
async fn serve(listener: Listener) {
    while let Ok(request) = listener.accept().await {
        tokio::spawn(async move {
            let stream = request.accept().await?.into_stream();
            let served = http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(site)).await;
            println!("server: a client has gone{}", if served.is_ok() { "" } else { ", not in order" });
            Ok::<_, ibcm::Error>(())
        });
    }
}

async fn fetch(
    http: &mut SendRequest<Full<Bytes>>,
    method: Method,
    path: &str,
    body: Vec<u8>,
) -> Result<Bytes> {
    let request = Request::builder().method(&method).uri(path).header(HOST, "queue-pair");
    http.ready().await?;
    let response = http.send_request(request.body(Full::from(body))?).await?;
    let status = response.status();
    let body = response.into_body().collect().await?.to_bytes();
    println!("client: {method} {path}: {status}, {} bytes", body.len());
    Ok(body)
}

#[tokio::main]
async fn main() -> Result {
    let (here, there) = examples::both_ends(examples::arguments().0.as_deref(), None).await?;
    let serving = tokio::spawn(serve(Listener::bind(SID).device(&there).await?));
    let path = here.path_to(there.gid()).service_id(SID).await?;
    let stream = Connection::connect(path).await?.into_stream();
    let (mut http, connection) = handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);

    let greeting = fetch(&mut http, Method::GET, "/", Vec::new()).await?;
    print!("client: {}", String::from_utf8_lossy(&greeting));
    let page = vec![b'x'; 3 << 20];
    let echo = fetch(&mut http, Method::POST, "/echo", page.clone()).await?;
    println!("client: the same came back: {}", echo == page);
    fetch(&mut http, Method::GET, "/nothing", Vec::new()).await?;
    drop(http);
    connection.await??; // flushes and disconnects
    here.wait_idle().await;
    there.wait_idle().await;
    println!("client: {} messages for all of it", here.stats().get("messages_sent").unwrap_or(0));
    serving.abort();
    Ok(())
}
