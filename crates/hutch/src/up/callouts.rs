//! Connections of the front to the hosts of webhooks, by the process that may connect
//! ([`callout`](crate::callout)).

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use futures::FutureExt;
use futures::future::BoxFuture;
use hutch_apiserver::Connector;
use hutch_kubelet::Duplex;
use hutch_privsep::Channel;
use tokio::net::TcpStream;
use tokio::sync::oneshot;

use super::lock;
use crate::callout::{Answer, Destination, Request};

/// The process, as the front sees it.
pub(super) struct Callouts {
    hosts: Vec<Destination>,
    channel: Arc<Channel>,
    pending: Arc<Mutex<Pending>>,
    last: AtomicU64,
}

/// Requests that are not answered yet.
#[derive(Default)]
struct Pending {
    answers: HashMap<u64, oneshot::Sender<io::Result<OwnedFd>>>,
    /// True when the process has ended.
    over: bool,
}

/// An entry of a request; removed when its caller is dropped.
struct Entry<'a>(&'a Mutex<Pending>, u64);

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        lock(self.0).answers.remove(&self.1);
    }
}

fn ended() -> io::Error {
    io::Error::other("the process that connects to webhooks has ended")
}

impl Callouts {
    /// Sends requests over this socket. Needs a tokio runtime.
    pub(super) fn new(socket: OwnedFd, hosts: Vec<Destination>) -> io::Result<Callouts> {
        let channel = Arc::new(Channel::new(socket)?);
        let pending = Arc::<Mutex<Pending>>::default();
        tokio::spawn(receive(channel.clone(), pending.clone()));
        Ok(Callouts { hosts, channel, pending, last: AtomicU64::new(0) })
    }

    fn place(&self, host: &str, port: u16) -> Option<usize> {
        self.hosts.iter().position(|own| own.port == port && own.host.eq_ignore_ascii_case(host))
    }
}

/// Delivers answers until the process ends.
async fn receive(channel: Arc<Channel>, pending: Arc<Mutex<Pending>>) {
    while let Ok(Some(message)) = channel.receive().await {
        let Ok(Answer { number, result }) = message.decode() else { break };
        let socket = match result {
            Ok(()) => {
                message.descriptors.into_iter().next().ok_or_else(|| io::Error::other("no socket came"))
            }
            Err(why) => Err(io::Error::other(why)),
        };
        // The webhook may have timed out meanwhile; dropping the socket closes it.
        if let Some(receiver) = lock(&pending).answers.remove(&number) {
            let _ = receiver.send(socket);
        }
    }
    tracing::error!("the process that connects to webhooks has ended; webhooks with a url cannot be called");
    let mut pending = lock(&pending);
    pending.over = true;
    pending.answers.clear();
}

impl Connector for Callouts {
    fn allows(&self, host: &str, port: u16) -> bool {
        self.place(host, port).is_some()
    }

    fn connect<'a>(&'a self, host: &'a str, port: u16) -> BoxFuture<'a, io::Result<Box<dyn Duplex>>> {
        async move {
            let host = self.place(host, port).ok_or_else(|| io::Error::other("not one of --webhook-host"))?;
            let number = self.last.fetch_add(1, Ordering::Relaxed);
            let (sender, receiver) = oneshot::channel();
            {
                let mut pending = lock(&self.pending);
                if pending.over {
                    return Err(ended());
                }
                pending.answers.insert(number, sender);
            }
            let _entry = Entry(&self.pending, number);
            self.channel.send(&Request { number, host }, &[]).await?;
            let socket = receiver.await.map_err(|_| ended())??;
            let socket = std::net::TcpStream::from(socket);
            socket.set_nonblocking(true)?;
            Ok(Box::new(TcpStream::from_std(socket)?) as Box<dyn Duplex>)
        }
        .boxed()
    }
}
