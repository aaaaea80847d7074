//! The answer to a refused client of TLS: its TLS ends here, by the authority that only its sandbox trusts, and its first
//! request is answered with the reason. Nothing goes to a server.

use std::convert::Infallible;
use std::sync::Arc;

use http::{Method, Request};
use hutch_policy::{Destination, Host};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::authority::Authority;
use crate::body::without_body;
use crate::exchange::answer as response;
use crate::first::{self, First, classify};
use crate::inspect::end_tls;
use crate::refusal::{REST_TIME, Refusal, answer};
use crate::resumed::Resumed;

/// Bounds of a connection of HTTP/2, of which only the first requests are answered.
const STREAMS: u32 = 4;
const HEAD_LIST: u32 = 16 << 10;
const WINDOW: u32 = 64 << 10;
const SEND: usize = 16 << 10;

/// Ends the TLS of a client that has sent these first bytes, and answers its first request. A client that does not trust the
/// authority, or speaks no HTTP, gets an error.
pub(crate) async fn refuse_tls(
    authority: Arc<Authority>,
    client: TcpStream,
    (name, first): (Option<String>, Vec<u8>),
    refusal: &Refusal,
    advice: &str,
) {
    let stream = Resumed::new(client, first);
    stream.break_unless_closed();
    // The client checks the name that it has sent, whatever the destination is.
    let host = match name {
        Some(name) => name.parse().ok(),
        None => refusal.destination.parse().ok().map(|destination: Destination| destination.host),
    };
    let Some(config) = host.and_then(|host: Host| authority.config_once(&host).ok()) else { return };
    let Some(Ok(stream)) = end_tls(config, stream).await else { return };
    match stream.get_ref().1.alpn_protocol() == Some(b"h2") {
        true => answer_http2(stream, refusal, advice).await,
        false => answer_http1(stream, refusal, advice).await,
    }
}

async fn answer_http1(mut stream: impl AsyncRead + AsyncWrite + Unpin, refusal: &Refusal, advice: &str) {
    let mut head = Vec::with_capacity(4096);
    let read = async {
        loop {
            let known = head.len();
            if stream.read_buf(&mut head).await.unwrap_or(0) == 0 {
                return false;
            }
            // A head ends with a line.
            if !head[known..].contains(&b'\n') && known > 0 && head.len() < first::LIMIT {
                continue;
            }
            match classify(&head) {
                First::Incomplete if head.len() < first::LIMIT => {}
                found => return matches!(found, First::Http(_)),
            }
        }
    };
    // Some clients take an answer before their request for an error.
    if timeout(REST_TIME, read).await.unwrap_or(false) {
        answer(stream, refusal.status(), refusal, advice).await;
    }
}

async fn answer_http2(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    refusal: &Refusal,
    advice: &str,
) {
    let answered = Notify::new();
    let service = service_fn(|request: Request<Incoming>| {
        answered.notify_one();
        let answer = response(refusal, advice, None);
        let of_head = request.method() == Method::HEAD;
        std::future::ready(Ok::<_, Infallible>(if of_head { without_body(answer) } else { answer }))
    });
    let mut server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    server
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_send_buf_size(SEND)
        .max_header_list_size(HEAD_LIST);
    let serving = server.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(serving);
    let served = async {
        tokio::select! {
            ended = &mut serving => return ended,
            () = answered.notified() => {}
        }
        // The answer is still sent, and no further request is read.
        serving.as_mut().graceful_shutdown();
        serving.await
    };
    let _ = timeout(REST_TIME, served).await;
}
