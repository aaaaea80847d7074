//! A connection whose requests are read: TLS ends here, and each request is decided by itself.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use hutch_policy::Destination;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::check::Spoken;
use crate::exchange::{Exchange, Tunnel, exchange};
use crate::heads::{HEAD_BYTES, Heads};
use crate::origin::Origin;
use crate::refusal::{Reason, Refusal, reset};
use crate::rest;
use crate::resumed::Resumed;
use crate::sandbox::Sandbox;
use crate::scan::Conversations;

/// Maximum time of a TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Maximum time without a request on a connection of HTTP/2.
const IDLE: Duration = Duration::from_secs(120);
/// Bounds of a connection of HTTP/2. Its streams wait for their turn among the requests of the sandbox.
const STREAMS: u32 = 16;
/// Maximum bytes of a head of HTTP/2, of which each header counts 32 more. Its encoding can be far smaller.
const HEAD_LIST: u32 = 16 << 10;
const STREAM_WINDOW: u32 = 32 << 10;
const CONNECTION_WINDOW: u32 = 64 << 10;
const SEND: usize = 16 << 10;

/// Reads the requests of a connection until its end, or until other rules decide about its destination. `counted` says that
/// the budgets have the first request already.
pub(crate) async fn inspect(
    sandbox: &Arc<Sandbox>,
    client: TcpStream,
    destination: &Destination,
    (spoken, counted): (Spoken, bool),
    first: Vec<u8>,
) {
    let _ = client.set_nodelay(true);
    let refused = |why: String| {
        sandbox.refused(Refusal { destination: destination.to_string(), reason: Reason::OtherName(why) });
    };
    let of = match exchange_with(sandbox, destination, spoken == Spoken::Tls, counted) {
        Ok(of) => of,
        Err(reason) => {
            reset(&client);
            return sandbox.refused(Refusal { destination: destination.to_string(), reason });
        }
    };
    let tunnel = of.tunnel.clone();
    let changed = sandbox.changed(destination, sandbox.rules());
    if spoken == Spoken::Http {
        let stream = Resumed::new(client, first);
        stream.break_unless_closed();
        tokio::select! {
            () = serve_http1(stream, of) => {}
            () = changed => {}
        };
        return tunnel.finish().await;
    }
    let Some(authority) = sandbox.authority() else {
        reset(&client);
        return refused(
            "a rule reads requests, but there is no authority by which TLS could end; `hutch egress` needs --ca-dir".into(),
        );
    };
    let config = match authority.config(&destination.host) {
        Ok(config) => config,
        Err(error) => {
            reset(&client);
            return refused(error.to_string());
        }
    };
    // What needs much memory for a while is on the heap, so that the connection does not keep it.
    let stream = match Box::pin(end_tls(config, Resumed::new(client, first))).await {
        Some(Ok(stream)) => stream,
        Some(Err(error)) => {
            return refused(format!(
                "its TLS ends at the proxy, which the program does not accept ({error}); it must trust the proxy's authority: \
                 SSL_CERT_FILE of the sandbox, or ca.pem in --ca-dir of `hutch egress`"
            ));
        }
        None => return,
    };
    let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    tokio::select! {
        () = async {
            match is_http2 {
                true => Box::pin(serve_http2(stream, of)).await,
                false => serve_http1(stream, of).await,
            }
        } => {}
        () = changed => {}
    }
    tunnel.finish().await;
}

fn exchange_with(
    sandbox: &Arc<Sandbox>,
    destination: &Destination,
    tls: bool,
    counted: bool,
) -> Result<Exchange, Reason> {
    Ok(Exchange {
        sandbox: sandbox.clone(),
        origin: Origin::new(destination.clone(), tls)?,
        tunnel: Tunnel::default(),
        heads: None,
        conversations: Conversations::default(),
        counted: Arc::new(counted.into()),
    })
}

/// Accepts TLS, which ends here. `None` if the client takes too long. The connection is on the heap: it is large, and each
/// future through which it passes would have room for it.
pub(crate) async fn end_tls(
    config: Arc<ServerConfig>,
    stream: Resumed,
) -> Option<io::Result<Box<TlsStream<Resumed>>>> {
    // A client of TLS 1.3 takes the connection for open before the proxy does.
    stream.break_unless_closed();
    let accepting = TlsAcceptor::from(config).accept(stream).into_fallible();
    match timeout(HANDSHAKE, accepting).await.ok()? {
        Ok(mut stream) => {
            stream.get_mut().1.set_buffer_limit(Some(HEAD_BYTES));
            Some(Ok(Box::new(stream)))
        }
        Err((error, stream)) => {
            // The alert, which names the error, still arrives.
            stream.end();
            Some(Err(error))
        }
    }
}

async fn serve_http1(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, of: Exchange) {
    let heads = Heads::default();
    let of = Exchange { heads: Some(heads.clone()), ..of };
    let followed = heads.clone();
    let answer = move |request| {
        // On the heap, since the server of a connection has room for the largest future between two requests too.
        let answered = Box::pin(exchange(of.clone(), followed.next(), request));
        async move {
            let Ok(response) = answered.await;
            response
        }
    };
    rest::serve(stream, heads, answer).await;
}

async fn serve_http2(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, of: Exchange) {
    let mut server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    server
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(SEND)
        .max_header_list_size(HEAD_LIST)
        .keep_alive_interval(IDLE)
        .keep_alive_timeout(HANDSHAKE);
    let service = service_fn(move |request| exchange(of.clone(), Ok(()), request));
    let _ = server.serve_connection(TokioIo::new(stream), service).await;
}

#[cfg(test)]
mod tests;
