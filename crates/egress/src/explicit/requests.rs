//! Requests of a client of a proxy, each of which names its destination.

use std::convert::Infallible;
use std::num::NonZeroU16;
use std::sync::Arc;

use http::{HeaderValue, Method, Request, Response};
use hutch_policy::{Destination, Traffic};
use hyper::body::Incoming;
use tokio::net::TcpStream;

use super::named::{self, Named};
use super::{ByConnect, forward, scan_written, shown};
use crate::body::Body;
use crate::connection::Door;
use crate::exchange::{Exchange, Tunnel, answer, answer_with, exchange};
use crate::heads::Heads;
use crate::origin::Origin;
use crate::record::Asked;
use crate::refusal::{Reason, Refusal, WITH_USER};
use crate::rest;
use crate::resumed::Resumed;
use crate::sandbox::Sandbox;
use crate::scan::Conversations;

/// Port of HTTP.
const HTTP: NonZeroU16 = NonZeroU16::new(80).unwrap();

/// Serves requests, each of which names its destination, until other rules decide about one of them.
pub(super) async fn serve_requests(sandbox: &Arc<Sandbox>, client: TcpStream, first: Vec<u8>) {
    let Ok(_place) = sandbox.read_place() else {
        let refusal = Refusal { destination: "a client".to_owned(), reason: Reason::TooMany };
        sandbox.refused(refusal.clone());
        return ByConnect.refuse(client, &refusal, "").await;
    };
    let (named, added) = Named::new();
    let named = Arc::new(named);
    let tunnel = Tunnel::default();
    let (of, into, heads) = (sandbox.clone(), tunnel.clone(), Heads::default());
    let conversations = Conversations::default();
    let stream = Resumed::new(client, first);
    stream.break_unless_closed();
    let followed = heads.clone();
    let answer = move |request| {
        let served = serve_request(
            of.clone(),
            named.clone(),
            into.clone(),
            (followed.clone(), conversations.clone()),
            request,
        );
        async move {
            let Ok(response) = served.await;
            response
        }
    };
    tokio::select! {
        () = rest::serve(stream, heads, answer) => {}
        () = named::changed(sandbox.clone(), added) => {}
    }
    tunnel.finish().await;
}

async fn serve_request(
    sandbox: Arc<Sandbox>,
    named: Arc<Named>,
    tunnel: Tunnel,
    (heads, conversations): (Heads, Conversations),
    mut request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    // It is for this proxy. The scanner would take the token of a gateway for a secret that leaves.
    request.headers_mut().remove(http::header::PROXY_AUTHORIZATION);
    let destination = match heads.next().and_then(|()| destination(&request)) {
        Ok(destination) => destination,
        Err(why) => {
            let refusal = Refusal { destination: "a client".to_owned(), reason: Reason::Ambiguous(why) };
            sandbox.refused(refusal.clone());
            let mut response = answer_with(http::StatusCode::BAD_REQUEST, &refusal, "", None);
            response.headers_mut().insert(http::header::CONNECTION, HeaderValue::from_static("close"));
            return Ok(response);
        }
    };
    let rules = sandbox.rules();
    if let Some(peer) = sandbox.peer(&destination) {
        if let Err(refusal) = named.add(&destination, rules) {
            sandbox.refused(refusal.clone());
            return Ok(answer(&refusal, &sandbox.advice(&refusal), None));
        }
        return Ok(forward::forward(&sandbox, &peer, &destination, request).await);
    }
    let authority = request.uri().authority().map_or("", http::uri::Authority::as_str);
    let written = scan_written(&sandbox, &destination, authority);
    let written = written.and_then(|()| sandbox.take_name(&destination));
    let permit =
        written.and_then(|()| sandbox.permit(&destination)).and_then(|permit| match permit.traffic {
            Traffic::Tls => {
                let why = "it is HTTP without TLS; a rule with `plaintext: true` allows that";
                Err(Refusal {
                    destination: destination.to_string(),
                    reason: Reason::OtherName(why.to_owned()),
                })
            }
            _ => named.add(&destination, rules),
        });
    let origin = permit.and_then(|()| {
        let refused = |reason| Refusal { destination: destination.to_string(), reason };
        Origin::new(destination.clone(), false).map_err(refused)
    });
    let origin = match origin {
        Ok(origin) => origin,
        Err(refusal) => {
            let (method, path) = (request.method().as_str(), shown(request.uri().path()));
            sandbox.refused_request(
                refusal.clone(),
                &Asked { destination: &destination, method, path: &path, calls: &[] },
            );
            return Ok(answer(&refusal, &sandbox.advice(&refusal), None));
        }
    };
    let (heads, counted) = (Some(heads), Arc::default());
    let of = Exchange { sandbox, origin, tunnel, heads, conversations, counted };
    exchange(of, Ok(()), request).await
}

/// Returns the destination that a request names.
fn destination(request: &Request<Incoming>) -> Result<Destination, String> {
    if request.method() == Method::CONNECT {
        return Err("CONNECT must be the first request of a connection".to_owned());
    }
    let uri = request.uri();
    let authority = uri.authority().map(http::uri::Authority::as_str);
    let (Some(scheme), Some(authority)) = (uri.scheme_str(), authority) else {
        return Err("it does not name a host: a client of a proxy sends a whole URL, or CONNECT".to_owned());
    };
    if authority.contains('@') {
        return Err(WITH_USER.to_owned());
    }
    if !matches!(scheme, "http" | "ws") {
        return Err(format!("the scheme {:?}: a client of a proxy sends CONNECT for it", shown(scheme)));
    }
    let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| !port.ends_with(']'));
    let mut destination: Destination = authority.parse().map_err(|error| format!("{error}"))?;
    if !has_port {
        destination.port = HTTP;
    }
    Ok(destination)
}
