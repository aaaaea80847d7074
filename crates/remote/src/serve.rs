//! The four stream subresources of a Pod, each with one function for the API server.
//!
//! All of them respond with a `Status` (400, 403, 404, 500, 503) if the stream cannot be opened: the node
//! opens it before the protocol switch, so that a missing container is a plain HTTP error. The connection
//! must be served with upgrades, and the caller has already authorized the request.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use http::{HeaderValue, header};
use jiff::Timestamp;
use tokio_util::io::ReaderStream;

use crate::query::Query;
use crate::status::{Refusal, Verdict};
use crate::upgrade::{self, Offer};
use crate::{Kubelet, PodId};

/// `…/pods/{name}/exec`: starts a command and carries its streams over WebSocket channels or SPDY/3.1.
pub async fn exec(request: Request, kubelet: Arc<dyn Kubelet>, pod: PodId) -> Response {
    let opened = async {
        let wanted = Query::of(request.uri()).exec()?;
        let offer = Offer::of(&request, crate::exec::PROTOCOLS)?;
        let session = kubelet.exec(&pod, wanted.clone()).await?;
        upgrade::accept(request, offer, move |upgraded| {
            crate::exec::run(upgraded, wanted, session, Verdict::ExitCode)
        })
        .await
    };
    opened.await.unwrap_or_else(|refusal| refusal.response())
}

/// `…/pods/{name}/attach`: the same with the container's main process.
pub async fn attach(request: Request, kubelet: Arc<dyn Kubelet>, pod: PodId) -> Response {
    let opened = async {
        let wanted = Query::of(request.uri()).attach()?;
        let offer = Offer::of(&request, crate::exec::PROTOCOLS)?;
        let session = kubelet.attach(&pod, wanted.clone()).await?;
        upgrade::accept(request, offer, move |upgraded| {
            crate::exec::run(upgraded, wanted, session, Verdict::Followed)
        })
        .await
    };
    opened.await.unwrap_or_else(|refusal| refusal.response())
}

/// `…/pods/{name}/portforward`: TCP connections into the Pod over SPDY/3.1, SPDY/3.1 within a WebSocket, or
/// WebSocket channels.
pub async fn port_forward(request: Request, kubelet: Arc<dyn Kubelet>, pod: PodId) -> Response {
    let opened = async {
        let offer = Offer::of(&request, crate::port_forward::PROTOCOLS)?;
        let ports = if offer.is_channels() { Query::of(request.uri()).ports()? } else { Vec::new() };
        upgrade::accept(request, offer, move |upgraded| {
            crate::port_forward::run(upgraded, ports, kubelet, pod)
        })
        .await
    };
    opened.await.unwrap_or_else(|refusal| refusal.response())
}

/// `…/pods/{name}/log`: streams the container's log as plain text.
pub async fn logs(request: Request, kubelet: Arc<dyn Kubelet>, pod: PodId) -> Response {
    let wanted = Query::of(request.uri()).logs(Timestamp::now());
    let opened = async { Ok::<_, Refusal>(kubelet.logs(&pod, wanted?).await?) };
    match opened.await {
        Ok(log) => {
            let mut response = Response::new(Body::from_stream(ReaderStream::new(log)));
            response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
            response
        }
        Err(refusal) => refusal.response(),
    }
}
