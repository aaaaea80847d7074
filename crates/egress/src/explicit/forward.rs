//! A request without TLS to another sandbox, of a client that names its destination in the request.

use std::sync::Arc;

use http::uri::PathAndQuery;
use http::{HeaderValue, Request, Response, Uri, header};
use http_body_util::BodyExt;
use hutch_policy::{Destination, Peer};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;

use crate::body::Body;
use crate::connection::peer::Peered;
use crate::exchange::answer;
use crate::headers::keep_end_to_end;
use crate::heads::HEAD_BYTES;
use crate::refusal::{Reason, Refusal};
use crate::sandbox::Sandbox;
use crate::upstream::{interim, limit_interim};

/// Passes a request on to a peer, over a connection of its own. Headers for this proxy, which hold the token of the client, stay
/// here.
pub(super) async fn forward(
    sandbox: &Arc<Sandbox>,
    peer: &Peer,
    destination: &Destination,
    request: Request<Incoming>,
) -> Response<Body> {
    match send(sandbox, peer, destination, request).await {
        Ok(response) => response,
        Err(refusal) => {
            sandbox.refused(refusal.clone());
            answer(&refusal, &sandbox.advice(&refusal), None)
        }
    }
}

async fn send(
    sandbox: &Arc<Sandbox>,
    peer: &Peer,
    destination: &Destination,
    mut request: Request<Incoming>,
) -> Result<Response<Body>, Refusal> {
    let refusal = |reason| Refusal { destination: destination.to_string(), reason };
    if request.headers().contains_key(header::UPGRADE) {
        let why = "a change of protocol to another sandbox needs CONNECT".to_owned();
        return Err(refusal(Reason::OtherName(why)));
    }
    keep_end_to_end(request.headers_mut(), false);
    let authority = request.uri().authority().map_or(String::new(), ToString::to_string);
    let host = HeaderValue::from_str(&authority);
    let host = host.map_err(|_| refusal(Reason::Ambiguous("its host is not text".to_owned())))?;
    request.headers_mut().insert(header::HOST, host);
    let path = request.uri().path_and_query().cloned();
    *request.uri_mut() = Uri::from(path.unwrap_or_else(|| PathAndQuery::from_static("/")));

    let Peered { server, kept } = sandbox.connect_peer(peer, destination).await?;
    let failed = |error: hyper::Error| refusal(Reason::Unreachable(error.to_string()));
    let mut client = http1::Builder::new();
    client.max_buf_size(HEAD_BYTES);
    let (mut sender, connection) = client.handshake::<_, Body>(TokioIo::new(server)).await.map_err(failed)?;
    let (of, to) = (sandbox.clone(), destination.clone());
    tokio::spawn(async move {
        tokio::select! {
            // Its failure is that of the request or of the answer.
            _ = connection => {}
            () = of.peer_closed(&to, &kept) => {}
        }
        drop(kept);
    });
    let mut request = request.map(|body| body.map_err(Into::into).boxed_unsync());
    let too_many = limit_interim(&mut request);
    let mut response = tokio::select! {
        response = sender.send_request(request) => response.map_err(failed)?,
        () = too_many.notified() => return Err(refusal(interim())),
    };
    keep_end_to_end(response.headers_mut(), false);
    Ok(response.map(|body| body.map_err(Into::into).boxed_unsync()))
}
