//! Connections of HTTP/1 that rest between two requests.
//!
//! A server of HTTP/1 keeps buffers for as long as its connection is open. A connection that has been idle for a while is
//! taken back from its server, which is dropped with its buffers, and gets a new one with the next byte of its client.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response, Version, header};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::{sleep, timeout};

use crate::body::{Body, Keeping};
use crate::heads::{Followed, HEAD_BYTES, Heads};

/// Time after which a connection rests.
const REST: Duration = Duration::from_secs(1);
/// Maximum time until the head of a request, and of a rest.
const HEAD: Duration = Duration::from_secs(30);

/// Requests of a connection while it has one server.
#[derive(Default)]
struct Work {
    /// Requests whose answer has not ended.
    running: AtomicUsize,
    /// Requests so far.
    total: AtomicUsize,
    /// The connection ends with an answer.
    ends: AtomicBool,
}

/// One request in progress.
struct Running(Arc<Work>);

impl Running {
    fn new(work: &Arc<Work>) -> Running {
        work.running.fetch_add(1, Ordering::Relaxed);
        work.total.fetch_add(1, Ordering::Relaxed);
        Running(work.clone())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Place of a stream that its server has given back.
struct Home<S> {
    /// The server ends, and the connection does not.
    rests: AtomicBool,
    stream: Mutex<Option<S>>,
}

/// Stream that is lent to a server.
struct Lent<S> {
    /// Always there until it is dropped.
    stream: Option<S>,
    /// A byte that was read already.
    first: Option<u8>,
    home: Arc<Home<S>>,
}

impl<S> Drop for Lent<S> {
    fn drop(&mut self) {
        *self.home.stream.lock().unwrap_or_else(PoisonError::into_inner) = self.stream.take();
    }
}

fn gone() -> io::Error {
    io::ErrorKind::NotConnected.into()
}

impl<S: Unpin> Lent<S> {
    fn stream(&mut self) -> io::Result<Pin<&mut S>> {
        self.stream.as_mut().map(Pin::new).ok_or_else(gone)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Lent<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if buffer.remaining() > 0
            && let Some(byte) = self.first.take()
        {
            buffer.put_slice(&[byte]);
            return Poll::Ready(Ok(()));
        }
        self.stream()?.poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Lent<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.stream()?.poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream()?.poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.home.rests.load(Ordering::Relaxed) {
            true => Poll::Ready(Ok(())),
            false => self.stream()?.poll_shutdown(context),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.stream()?.poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.as_ref().is_some_and(AsyncWrite::is_write_vectored)
    }
}

/// Returns a server of HTTP/1 with the bounds of a connection.
pub(crate) fn http1() -> hyper::server::conn::http1::Builder {
    let mut server = hyper::server::conn::http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(HEAD).max_buf_size(HEAD_BYTES);
    server
}

/// Returns true if the connection ends with the answer to this request.
fn is_last(request: &Request<Incoming>) -> bool {
    request.version() != Version::HTTP_11 || request.headers().contains_key(header::CONNECTION)
}

/// Serves the requests of a client of HTTP/1, whose heads are followed, until its connection ends.
pub(crate) async fn serve<S, F, A>(stream: S, heads: Heads, answer: F)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Fn(Request<Incoming>) -> A + Clone + Send,
    A: Future<Output = Response<Body>> + Send,
{
    let mut next = Some((Followed::new(stream, &heads), None));
    while let Some((stream, first)) = next {
        // On the heap, so that a connection that rests does not keep the memory of requests.
        let served = Box::pin(serve_until_rest(stream, first, &heads, answer.clone())).await;
        let Some(mut stream) = served else { return };
        let mut byte = [0];
        next = match timeout(HEAD, stream.read(&mut byte)).await {
            Ok(Ok(1)) => Some((stream, Some(byte[0]))),
            Ok(Err(_)) => return,
            Ok(Ok(_)) | Err(_) => {
                let _ = stream.shutdown().await;
                return;
            }
        };
    }
}

/// Serves requests until the connection ends, or is idle: then it is returned.
async fn serve_until_rest<S, F, A>(stream: S, first: Option<u8>, heads: &Heads, answer: F) -> Option<S>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Fn(Request<Incoming>) -> A + Clone + Send,
    A: Future<Output = Response<Body>> + Send,
{
    let home = Arc::new(Home { rests: AtomicBool::new(false), stream: Mutex::new(None) });
    let work = Arc::new(Work::default());
    let counted = work.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        let running = Running::new(&counted);
        if is_last(&request) {
            counted.ends.store(true, Ordering::Relaxed);
        }
        let (answer, work) = (answer.clone(), counted.clone());
        async move {
            let response = answer(request).await;
            if response.headers().contains_key(header::CONNECTION) {
                work.ends.store(true, Ordering::Relaxed);
            }
            Ok::<_, std::convert::Infallible>(response.map(|body| Keeping { body, _kept: running }))
        }
    });
    let lent = Lent { stream: Some(stream), first, home: home.clone() };
    {
        let connection = http1().serve_connection(TokioIo::new(lent), service).with_upgrades();
        tokio::pin!(connection);
        let mut seen = 0;
        loop {
            tokio::select! {
                biased;
                ended = &mut connection => {
                    ended.ok()?;
                    break;
                }
                () = sleep(REST) => {
                    let total = work.total.load(Ordering::Relaxed);
                    let idle = work.running.load(Ordering::Relaxed) == 0 && total > 0 && total == seen;
                    seen = total;
                    if idle && !work.ends.load(Ordering::Relaxed) && heads.are_between() {
                        home.rests.store(true, Ordering::Relaxed);
                        connection.as_mut().graceful_shutdown();
                    }
                }
            }
        }
    }
    let stream = home.stream.lock().unwrap_or_else(PoisonError::into_inner).take();
    stream.filter(|_| home.rests.load(Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body::full;

    async fn serve_texts(ours: tokio::io::DuplexStream) {
        let heads = Heads::default();
        let asked = heads.clone();
        serve(ours, heads, move |request: Request<Incoming>| {
            assert_eq!(asked.next(), Ok(()));
            let path = request.uri().path().to_owned();
            async move { Response::new(full(path.into())) }
        })
        .await;
    }

    async fn ask(client: &mut tokio::io::DuplexStream, request: &[u8], path: &str) {
        client.write_all(request).await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(path.as_bytes()) {
            assert!(client.read_buf(&mut answer).await.unwrap() > 0, "{answer:?}");
        }
        assert!(answer.starts_with(b"HTTP/1.1 200 OK\r\n"));
        assert!(!String::from_utf8(answer).unwrap().contains("connection"));
    }

    #[tokio::test(start_paused = true)]
    async fn connection_continues_after_a_rest() {
        let (mut client, ours) = tokio::io::duplex(4096);
        let served = tokio::spawn(serve_texts(ours));
        for (wait, path) in [(0, "/a"), (1, "/b"), (5, "/c"), (20, "/d"), (29, "/e")] {
            sleep(Duration::from_secs(wait)).await;
            let head = format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n");
            // A head that arrives in two parts is whole for the next server.
            client.write_all(&head.as_bytes()[..3]).await.unwrap();
            sleep(Duration::from_secs(3)).await;
            ask(&mut client, &head.as_bytes()[3..], path).await;
        }
        sleep(Duration::from_secs(10)).await;
        drop(client);
        served.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn connection_that_rests_too_long_ends() {
        let (mut client, ours) = tokio::io::duplex(4096);
        let served = tokio::spawn(serve_texts(ours));
        ask(&mut client, b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n", "/a").await;
        assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
        served.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn last_answer_ends_the_connection_though_its_client_reads_late() {
        let (mut client, ours) = tokio::io::duplex(64);
        let served = tokio::spawn(serve_texts(ours));
        client.write_all(b"GET /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await.unwrap();
        sleep(Duration::from_secs(10)).await;
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        assert!(answer.ends_with(b"/a"));
        served.await.unwrap();
    }
}
