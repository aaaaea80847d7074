//! Negotiates the streaming protocol of a request, and switches to it.

use axum::body::Body;
use axum::extract::{FromRequestParts, Request, WebSocketUpgrade, ws::WebSocket};
use axum::response::Response;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use hyper_util::rt::TokioIo;

use crate::status::Refusal;

const STREAM_PROTOCOL: &str = "x-stream-protocol-version";
const SPDY: &str = "spdy/3.1";
/// Maximum WebSocket message. Clients send piped input in one message, so it equals the kubelet's
/// limit.
const MAX_MESSAGE: usize = 32 * 1024 * 1024;

/// Protocols of a subresource, the preferred ones first.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Protocols {
    /// WebSocket subprotocols with a channel number in each message. The default subprotocol is
    /// `channel.k8s.io`.
    pub(crate) channels: &'static [&'static str],
    /// WebSocket subprotocols that carry SPDY frames.
    pub(crate) tunnels: &'static [&'static str],
    /// Versions over plain SPDY/3.1.
    pub(crate) spdy: &'static [&'static str],
}

/// Negotiated protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Offer {
    /// WebSocket channels; the subprotocol is empty if the client named none.
    Channels(&'static str),
    /// SPDY frames in WebSocket messages.
    Tunnel(&'static str),
    /// SPDY frames.
    Spdy(&'static str),
}

/// Connection that has switched protocols.
pub(crate) enum Upgraded {
    /// WebSocket channels with this subprotocol.
    Channels(Box<WebSocket>, &'static str),
    /// SPDY frames in WebSocket messages.
    Tunnel(Box<WebSocket>),
    /// SPDY frames with this version.
    Spdy(TokioIo<hyper::upgrade::Upgraded>, &'static str),
}

impl Offer {
    /// Finds the client's first protocol that the subresource supports.
    pub(crate) fn of(request: &Request, protocols: Protocols) -> Result<Self, Refusal> {
        let headers = request.headers();
        let upgrade = list(headers, header::UPGRADE.as_str());
        if request.method() == Method::CONNECT
            || upgrade.iter().any(|name| name.eq_ignore_ascii_case("websocket"))
        {
            return Self::of_websocket(headers, protocols);
        }
        if !upgrade.iter().any(|name| name.eq_ignore_ascii_case(SPDY)) {
            return Err(Refusal::Malformed("Upgrade request required".into()));
        }
        let offered = list(headers, STREAM_PROTOCOL);
        if offered.is_empty() {
            let text = "unable to upgrade: header X-Stream-Protocol-Version does not exist in request";
            return Err(Refusal::Malformed(text.into()));
        }
        let common = first_common(&offered, protocols.spdy);
        common.map(Self::Spdy).ok_or_else(|| refused(&offered, protocols.spdy))
    }

    fn of_websocket(headers: &HeaderMap, protocols: Protocols) -> Result<Self, Refusal> {
        let offered = list(headers, header::SEC_WEBSOCKET_PROTOCOL.as_str());
        if offered.is_empty() {
            return Ok(Self::Channels(""));
        }
        let found = offered.iter().find_map(|name| {
            let one = std::slice::from_ref(name);
            let tunnel = first_common(one, protocols.tunnels).map(Self::Tunnel);
            tunnel.or_else(|| first_common(one, protocols.channels).map(Self::Channels))
        });
        found.ok_or_else(|| refused(&offered, protocols.channels))
    }

    /// Returns true if the streams are WebSocket channels.
    pub(crate) fn is_channels(self) -> bool {
        matches!(self, Self::Channels(_))
    }
}

fn list<'a>(headers: &'a HeaderMap, name: &str) -> Vec<&'a str> {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim).filter(|name| !name.is_empty()).collect()
}

fn first_common(offered: &[&str], ours: &[&'static str]) -> Option<&'static str> {
    offered.iter().find_map(|name| ours.iter().find(|our| *our == name).copied())
}

fn refused(offered: &[&str], accepted: &'static [&'static str]) -> Refusal {
    Refusal::NoCommonProtocol { offered: offered.join(" "), accepted }
}

/// Switches the protocol and passes the connection to `run`. If the client disconnects before the switch,
/// `run` is dropped with everything it holds.
pub(crate) async fn accept<R, F>(request: Request, offer: Offer, run: R) -> Result<Response, Refusal>
where
    R: FnOnce(Upgraded) -> F + Send + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    match offer {
        Offer::Spdy(version) => Ok(accept_spdy(request, version, run)),
        Offer::Channels(name) => {
            let upgrade = websocket(request, name).await?;
            Ok(upgrade.on_upgrade(move |socket| run(Upgraded::Channels(Box::new(socket), name))))
        }
        Offer::Tunnel(name) => {
            let upgrade = websocket(request, name).await?;
            Ok(upgrade.on_upgrade(move |socket| run(Upgraded::Tunnel(Box::new(socket)))))
        }
    }
}

async fn websocket(request: Request, subprotocol: &'static str) -> Result<WebSocketUpgrade, Refusal> {
    let (mut parts, _) = request.into_parts();
    let upgrade = WebSocketUpgrade::from_request_parts(&mut parts, &()).await;
    let mut upgrade = upgrade.map_err(|rejection| Refusal::Malformed(rejection.body_text()))?;
    if !subprotocol.is_empty() {
        upgrade.set_selected_protocol(HeaderValue::from_static(subprotocol));
    }
    // Every message is flushed when sent: a prompt must not wait in a buffer.
    Ok(upgrade.max_message_size(MAX_MESSAGE).max_frame_size(MAX_MESSAGE).write_buffer_size(0))
}

fn accept_spdy<R, F>(mut request: Request, version: &'static str, run: R) -> Response
where
    R: FnOnce(Upgraded) -> F + Send + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let switch = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        match switch.await {
            Ok(upgraded) => run(Upgraded::Spdy(TokioIo::new(upgraded), version)).await,
            Err(error) => tracing::debug!(%error, "client did not complete the upgrade to SPDY"),
        }
    });
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("SPDY/3.1"));
    headers.insert(STREAM_PROTOCOL, HeaderValue::from_static(version));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: Protocols = Protocols { channels: &["v5", "v4"], tunnels: &["T"], spdy: &["v4", "v3"] };

    fn offer(headers: &[(&str, &str)]) -> Result<Offer, String> {
        let mut request = Request::builder().uri("/");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        Offer::of(&request.body(Body::empty()).unwrap(), OURS).map_err(|refusal| refusal.to_string())
    }

    #[test]
    fn the_clients_first_supported_protocol_is_selected() {
        let websocket = ("upgrade", "websocket");
        assert_eq!(offer(&[websocket]), Ok(Offer::Channels("")));
        assert_eq!(offer(&[websocket, ("sec-websocket-protocol", "v9, v4,v5")]), Ok(Offer::Channels("v4")));
        assert_eq!(offer(&[websocket, ("sec-websocket-protocol", "T")]), Ok(Offer::Tunnel("T")));
        let spdy = ("upgrade", "SPDY/3.1");
        let versions = [spdy, (STREAM_PROTOCOL, "v9"), (STREAM_PROTOCOL, "v3"), (STREAM_PROTOCOL, "v4")];
        assert_eq!(offer(&versions), Ok(Offer::Spdy("v3")));
    }

    #[test]
    fn unsupported_protocols_are_refused() {
        assert_eq!(offer(&[]), Err("Upgrade request required".into()));
        assert!(offer(&[("upgrade", "spdy/3.1")]).unwrap_err().contains("does not exist"));
        assert!(
            offer(&[("upgrade", "spdy/3.1"), (STREAM_PROTOCOL, "v9")]).unwrap_err().contains("negotiate")
        );
        assert!(offer(&[("upgrade", "websocket"), ("sec-websocket-protocol", "v9")]).is_err());
    }
}
