//! Connections to ports inside a network namespace.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use hutch_jail::network::{Connecting, connect_in};
use hutch_kubelet::StreamError;
use tokio::net::TcpStream;

use crate::live::Live;

/// Connects to a port of a Pod: on 127.0.0.1, then on its own address, then on ::1, because a program may listen on
/// any of them alone.
pub(crate) async fn dial(network: &Arc<OwnedFd>, address: Ipv4Addr, port: u16) -> io::Result<TcpStream> {
    let own = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V4(address), IpAddr::V6(Ipv6Addr::LOCALHOST)];
    let addresses = own.map(|own| SocketAddr::new(own, port));
    let namespace = network.clone();
    let opened = tokio::task::spawn_blocking(move || connect_in(namespace.as_fd(), &addresses)).await;
    let Connecting { socket, connected } = opened.map_err(io::Error::other)?.map_err(refusal)?;
    let stream = TcpStream::from_std(std::net::TcpStream::from(socket))?;
    if !connected {
        stream.writable().await?;
        if let Some(error) = stream.take_error()? {
            return Err(error);
        }
    }
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Connects to a port inside a Pod, which is awake then.
pub(crate) async fn enter(live: &Arc<Live>, port: u16) -> Result<TcpStream, StreamError> {
    let _busy = live.enter().await?;
    let (network, address) = live
        .network()
        .ok_or_else(|| StreamError::Unavailable(format!("pod {} is not running", live.id.name)))?;
    dial(&network, address, port).await.map_err(|e| {
        StreamError::Unavailable(format!("cannot connect to port {port} of pod {}: {e}", live.id.name))
    })
}

/// The error of the system, where there is one.
fn refusal(error: hutch_jail::Error) -> io::Error {
    match error {
        hutch_jail::Error::Network { errno, .. } => io::Error::from_raw_os_error(errno.0),
        other => io::Error::other(other),
    }
}
