//! Connections to ports inside a network namespace.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use tokio::net::{TcpSocket, TcpStream};

/// Connects to a port of a Pod: on 127.0.0.1, then on its own address, then on ::1, since a program may listen on
/// any of them alone. Nothing leaves the namespace, so each attempt ends at once.
pub(crate) async fn dial(network: &Arc<OwnedFd>, address: Ipv4Addr, port: u16) -> io::Result<TcpStream> {
    let first = connect(network, IpAddr::V4(Ipv4Addr::LOCALHOST), port).await;
    let refused = |e: &io::Error| e.kind() == io::ErrorKind::ConnectionRefused;
    match first {
        Err(error) if refused(&error) => {}
        other => return other,
    }
    match connect(network, IpAddr::V4(address), port).await {
        Err(error) if refused(&error) => {}
        other => return other,
    }
    connect(network, IpAddr::V6(Ipv6Addr::LOCALHOST), port).await
}

async fn connect(network: &Arc<OwnedFd>, address: IpAddr, port: u16) -> io::Result<TcpStream> {
    let namespace = network.clone();
    let socket = tokio::task::spawn_blocking(move || {
        hutch_jail::network::socket_in(namespace.as_fd(), address.is_ipv6())
    });
    let socket = socket.await.map_err(io::Error::other)?.map_err(io::Error::other)?;
    let socket = TcpSocket::from_std_stream(std::net::TcpStream::from(socket));
    let stream = socket.connect(SocketAddr::new(address, port)).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}
