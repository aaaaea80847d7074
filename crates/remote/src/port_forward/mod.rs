//! TCP connections into a Pod, carried over either protocol.

mod channels;
mod spdy;
mod tunnel;

use std::sync::Arc;

use crate::upgrade::{Protocols, Upgraded};
use crate::{Kubelet, PodId};

/// Protocols of `portforward`.
pub(crate) const PROTOCOLS: Protocols = Protocols {
    channels: &["v4.channel.k8s.io", "v4.base64.channel.k8s.io"],
    tunnels: &["SPDY/3.1+portforward.k8s.io"],
    spdy: &["portforward.k8s.io"],
};

/// Forwards until the client has disconnected or the Pod is gone. In the latter case the connection ends at
/// once, before the client sends bytes that would be lost.
pub(crate) async fn run(upgraded: Upgraded, ports: Vec<u16>, kubelet: Arc<dyn Kubelet>, pod: PodId) {
    let (node, of) = (kubelet.clone(), pod.clone());
    let forward = async {
        match upgraded {
            Upgraded::Channels(socket, name) => channels::run(*socket, name, ports, kubelet, pod).await,
            Upgraded::Tunnel(socket) => spdy::run(tunnel::Tunnel::new(*socket), kubelet, pod).await,
            Upgraded::Spdy(io, _) => spdy::run(io, kubelet, pod).await,
        }
    };
    tokio::select! {
        () = forward => {}
        () = node.ended(&of) => {}
    }
}

/// Returns the error text for a port that cannot be reached or whose connection fails.
fn failure(pod: &PodId, port: u16, cause: &dyn std::fmt::Display) -> String {
    format!("error forwarding port {port} to pod {}/{}, uid {}: {cause}", pod.namespace, pod.name, pod.uid)
}
