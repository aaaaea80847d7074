//! The request to one webhook.
//!
//! This process opens no socket in `hutch up`. A connection to a Pod behind a Service comes from the node, as a descriptor
//! ([`hutch_kubelet::Kubelet::connect`]), as for the router. One to a host comes from the [`Connector`] of the server: the
//! process that may connect, to the hosts that the owner of the machine has named. TLS and HTTP, in which
//! untrusted bytes are parsed, are spoken here, in the process without privileges. Redirects are not followed: they would let
//! a webhook choose where this server connects.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hutch_kubelet::{Duplex, Hold, PodId};
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::time::timeout;

use crate::core::Core;
#[cfg(doc)]
use crate::hooks::Connector;
use crate::hooks::webhook::{Target, Webhook, not_allowed};
use crate::{meta, object};

/// Maximum bytes of an answer, as of a request to this server.
const ANSWER_BYTES: usize = crate::BODY_BYTES;
/// Maximum characters of an answer that is no review, in a message.
const SHOWN: usize = 256;

/// Sends a review to a webhook and returns the body of its answer. The error is a message without the webhook's name.
pub(super) async fn call(
    core: &Core,
    webhook: &Webhook,
    review: Bytes,
    limit: Duration,
) -> Result<Value, String> {
    let limit = limit.min(webhook.timeout);
    let url = format!(
        "https://{}{}?timeout={}s",
        webhook.target.authority(),
        webhook.target.path(),
        limit.as_secs().max(1)
    );
    let answer = timeout(limit, exchange(core, webhook, review)).await;
    let answer = answer.unwrap_or_else(|_| Err("context deadline exceeded".into()));
    answer.map_err(|why| format!("failed to call webhook: Post \"{url}\": {why}"))
}

async fn exchange(core: &Core, webhook: &Webhook, review: Bytes) -> Result<Value, String> {
    let tls = webhook.tls.clone().map_err(|why| format!("tls: {why}"))?;
    let (stream, _hold) = connect(core, &webhook.target).await?;
    let name = ServerName::try_from(webhook.target.server_name()).map_err(|error| format!("tls: {error}"))?;
    let connector = tokio_rustls::TlsConnector::from(tls);
    let stream = connector.connect(name, stream).await.map_err(|error| format!("tls: {error}"))?;
    let (mut sender, connection) =
        handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    let connection = Aborted(tokio::spawn(connection));
    let request = Request::post(format!("{}?timeout={}s", webhook.target.path(), webhook.timeout.as_secs()))
        .header(header::HOST, webhook.target.authority())
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::ACCEPT, "application/json")
        .header(header::USER_AGENT, "hutch-apiserver-admission")
        .body(Full::new(review))
        .map_err(|error| error.to_string())?;
    let (head, body) = sender.send_request(request).await.map_err(|error| error.to_string())?.into_parts();
    let body = Limited::new(body, ANSWER_BYTES).collect().await.map_err(|error| {
        if error.is::<LengthLimitError>() {
            return format!("the answer has more than {ANSWER_BYTES} bytes");
        }
        error.to_string()
    })?;
    drop(connection);
    let body = body.to_bytes();
    refused(head.status, &body)?;
    serde_json::from_slice(&body)
        .map_err(|error| format!("couldn't get version/kind; json parse error: {error}"))
}

/// A task that ends with its owner.
struct Aborted<T>(tokio::task::JoinHandle<T>);

impl<T> Drop for Aborted<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Reports an answer that is no success, in the words of Kubernetes' client.
fn refused(status: StatusCode, body: &[u8]) -> Result<(), String> {
    if status == StatusCode::OK {
        return Ok(());
    }
    let text: String = String::from_utf8_lossy(body).trim().chars().take(SHOWN).collect();
    Err(match status {
        StatusCode::NOT_FOUND => "the server could not find the requested resource".into(),
        _ if status.is_redirection() => {
            format!("the server responded with {status}: redirects are not followed")
        }
        _ if status.is_server_error() => {
            format!("an error on the server ({text:?}) has prevented the request from succeeding")
        }
        _ => format!("the server responded with {status}: {text:?}"),
    })
}

/// Connects to the receiver. A Pod stays awake as long as the second value exists.
async fn connect(core: &Core, target: &Target) -> Result<(Box<dyn Duplex>, Option<Hold>), String> {
    match target {
        Target::Host { host, port, .. } => {
            // It may have been allowed when the configuration was stored, by an earlier start of the server.
            let connector = core.connector.get().filter(|connector| connector.allows(host, *port));
            let connector = connector.ok_or_else(|| not_allowed(host, *port))?;
            let stream = connector.connect(host, *port).await;
            stream
                .map(|stream| (stream, None))
                .map_err(|error| format!("dial tcp {}: {error}", target.authority()))
        }
        Target::Service { namespace, name, port, .. } => {
            let (pod, port) = endpoint(core, namespace, name, *port)?;
            let kubelet = core.kubelet.get().ok_or("no node runs Pods on this server yet")?;
            let hold = kubelet.hold(&pod).await.map_err(|error| error.to_string())?;
            let stream = kubelet.connect(&pod, port).await.map_err(|error| error.to_string())?;
            Ok((stream, Some(hold)))
        }
    }
}

/// Returns a Pod behind a port of a Service, and its port.
fn endpoint(core: &Core, namespace: &str, name: &str, port: u16) -> Result<(PodId, u16), String> {
    let key = object::key(Some(namespace), name);
    let service = core.read("services", &key).ok_or_else(|| format!("service {name:?} not found"))?;
    let ports = service["spec"]["ports"].as_array().into_iter().flatten();
    let own = ports.into_iter().find(|own| own["port"] == port);
    let own = own.ok_or_else(|| format!("no service port {port} found for service {name:?}"))?;
    let none = || format!("no endpoints available for service {name:?}");
    let endpoints = core.read("endpoints", &key).ok_or_else(none)?;
    let mut found = Vec::new();
    for subset in endpoints["subsets"].as_array().into_iter().flatten() {
        let ports = subset["ports"].as_array().into_iter().flatten();
        let same = ports.into_iter().find(|one| one["name"].as_str() == own["name"].as_str());
        let Some(port) = same.and_then(|one| u16::try_from(one["port"].as_u64()?).ok()) else { continue };
        let addresses = subset["addresses"].as_array().into_iter().flatten();
        found.extend(
            addresses.filter_map(|address| Some((pod(core, namespace, &address["targetRef"])?, port))),
        );
    }
    if found.is_empty() {
        return Err(none());
    }
    let chosen = core.ambient.below(found.len());
    Ok(found.swap_remove(chosen))
}

/// The Pod of an address. Only the stored Pod of that name in the Service's namespace counts: who may write Endpoints must not
/// lead this server elsewhere.
fn pod(core: &Core, namespace: &str, reference: &Value) -> Option<PodId> {
    let name = reference["name"].as_str().filter(|_| reference["kind"] == "Pod")?;
    let pod = core.read("pods", &object::key(Some(namespace), name))?;
    Some(PodId { namespace: namespace.into(), name: name.into(), uid: meta::text(&pod, "uid").into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_that_are_no_success_are_reported() {
        assert_eq!(refused(StatusCode::OK, b""), Ok(()));
        for (status, expected) in [
            (404, "the server could not find the requested resource"),
            (500, "an error on the server (\"oops\") has prevented the request from succeeding"),
            (302, "the server responded with 302 Found: redirects are not followed"),
            (401, "the server responded with 401 Unauthorized: \"oops\""),
            (204, "the server responded with 204 No Content: \"oops\""),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            assert_eq!(refused(status, b"oops\n").unwrap_err(), expected);
        }
    }
}
