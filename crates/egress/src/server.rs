//! Serves the listeners of a plan.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use hutch_jail::network::{receive_datagram, send_datagram};
use rustix::net::sockopt::socket_type;
use rustix::net::{SocketFlags, SocketType, accept_with};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::dns::QUERY;
use crate::explicit;
use crate::plan::is_explicit;
use crate::sandbox::Sandbox;

/// Maximum answers of a listener that wait for their records.
const ANSWERS: usize = 64;
/// Pause after a connection could not be accepted, for want of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves the listeners of [`crate::plan()`] for one sandbox. Returns only when a listener is unusable.
///
/// When `ending` is true, the command has ended, and nothing else is left inside, or about to be. Connections that wait are
/// then still served, and no others. Each connection holds a receiver.
///
/// # Errors
/// A descriptor is not the listener that it should be.
pub(crate) async fn serve(
    listeners: Vec<OwnedFd>,
    sandbox: Arc<Sandbox>,
    ending: watch::Receiver<bool>,
) -> io::Result<()> {
    sandbox.bound_clients();
    sandbox.answer_names();
    if !matches!(listeners.len(), 2 | 4) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "two or four listeners are needed"));
    }
    // In this task: the caller ends all of them by dropping it.
    let mut serving = FuturesUnordered::new();
    for listener in listeners {
        serving.push(serve_one(listener, &sandbox, ending.clone()));
    }
    while let Some(ended) = serving.next().await {
        ended?;
    }
    Ok(())
}

async fn serve_one(
    listener: OwnedFd,
    sandbox: &Arc<Sandbox>,
    ending: watch::Receiver<bool>,
) -> io::Result<()> {
    match socket_type(&listener)? == SocketType::STREAM {
        true => accept(TcpListener::from_std(listener.into())?, sandbox.clone(), ending).await,
        false => answer(listener, sandbox).await,
    }
}

async fn accept(
    listener: TcpListener,
    sandbox: Arc<Sandbox>,
    mut ending: watch::Receiver<bool>,
) -> io::Result<()> {
    let held = ending.clone();
    let serve = |client: TcpStream| {
        let address = client.local_addr().ok();
        let destination = address.map(|address| address.to_string()).unwrap_or_default();
        let Some(descriptors) = sandbox.descriptors(&client, &destination) else { return };
        let (sandbox, held) = (sandbox.clone(), held.clone());
        tokio::spawn(async move {
            match address.is_some_and(is_explicit) {
                // Captured connections should not take the memory of this.
                true => Box::pin(explicit::serve_client(&sandbox, client)).await,
                false => sandbox.serve(client).await,
            }
            drop((descriptors, held));
        });
    };
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = ending.wait_for(|ending| *ending) => break,
        };
        match accepted {
            Ok((client, _)) => serve(client),
            // The client has gone, or resources are short.
            Err(error) => {
                tracing::debug!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    // Accepted without the runtime, which may not have learned of the last ones.
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    while let Ok(client) = accept_with(&listener, flags) {
        serve(TcpStream::from_std(client.into())?);
    }
    Ok(())
}

/// Answers DNS queries from the address to which each was sent.
#[expect(
    deprecated,
    reason = "its successor is unsafe for types that may close their descriptor early; OwnedFd does not"
)]
async fn answer(socket: OwnedFd, sandbox: &Arc<Sandbox>) -> io::Result<()> {
    let socket = Arc::new(AsyncFd::with_interest(socket, Interest::READABLE)?);
    let mut buffer = [0; QUERY];
    let mut waiting = JoinSet::new();
    loop {
        // One that is always ready would keep this thread from all other work.
        tokio::task::consume_budget().await;
        while waiting.try_join_next().is_some() {}
        let mut ready = socket.readable().await?;
        let Ok(received) = ready.try_io(|socket| receive_datagram(socket.as_fd(), &mut buffer)) else {
            continue;
        };
        // A datagram that cannot be received or answered is lost, as datagrams may be.
        let Ok(query) = received else { continue };
        let Some(answer) = sandbox.answer(&buffer[..query.length]) else { continue };
        if answer.unwritten.is_none() {
            let _ = send_datagram(socket.as_fd(), &answer.bytes, query.to, query.from);
            continue;
        }
        // More are lost.
        if waiting.len() < ANSWERS {
            let (socket, sandbox) = (socket.clone(), sandbox.clone());
            let message = buffer[..query.length].to_vec();
            waiting.spawn(async move {
                if let Some(answer) = sandbox.recorded(answer, &message).await {
                    let _ = send_datagram(socket.as_fd(), &answer, query.to, query.from);
                }
            });
        }
    }
}
