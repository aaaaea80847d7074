//! The process that connects to the hosts of webhooks ([`callout`](crate::callout)): the root process starts it, and starts it
//! again when it ends; the front sends it requests.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, ensure};
use futures::FutureExt;
use futures::future::BoxFuture;
use hutch_apiserver::Connector;
use hutch_jail::{IdRange, IdRanges};
use hutch_kubelet::Duplex;
use hutch_privsep::Channel;
use tokio::net::TcpStream;
use tokio::sync::{oneshot, watch};

use super::lock;
use crate::callout::{Answer, Destination, HOSTS, Request, spawn};
use crate::egress::Spawned;

/// Pause before the process is started again.
const RESTART: Duration = Duration::from_millis(100);
/// Maximum tries of a request whose process ends.
const TRIES: usize = 3;

/// Starts the process, if there are hosts, and again whenever it ends. Returns the socket over which the front receives the
/// channel to each process. To be called on a thread that lasts: the kernel ends the process with it.
pub(super) fn start(hosts: &[Destination]) -> anyhow::Result<Option<OwnedFd>> {
    if hosts.is_empty() {
        return Ok(None);
    }
    ensure!(hosts.len() <= HOSTS, "--webhook-host: {} hosts; at most {HOSTS}", hosts.len());
    let ids = IdRanges::open(rand::random())?.take()?;
    let started = spawn(hosts, ids.base()).context("--webhook-host")?;
    let (ours, front) = hutch_privsep::pair()?;
    tokio::spawn(supervise(hosts.to_vec(), ids, Channel::new(ours)?, started));
    Ok(Some(front))
}

/// Passes the channel of each process to the front, until the front has ended.
async fn supervise(hosts: Vec<Destination>, ids: IdRange, front: Channel, mut started: Spawned) {
    loop {
        let (process, channel) = started;
        if front.send(&(), &[channel.as_fd()]).await.is_err() {
            return;
        }
        // Its end must be seen by the front.
        drop(channel);
        tokio::select! {
            biased;
            // The front sends nothing.
            _ = front.receive_bare() => return,
            ended = process.ended() => {
                tracing::error!(error = ?ended.err(), "the process that connects to webhooks has ended and is started again");
            }
        }
        drop(process);
        started = loop {
            tokio::time::sleep(RESTART).await;
            match spawn(&hosts, ids.base()) {
                Ok(started) => break started,
                Err(error) => {
                    tracing::error!(%error, "the process that connects to webhooks cannot be started")
                }
            }
        };
    }
}

/// The process, as the front sees it.
pub(super) struct Callouts {
    hosts: Vec<Destination>,
    /// `None` while it is being started.
    current: watch::Receiver<Option<Arc<Running>>>,
    last: AtomicU64,
}

/// One process.
struct Running {
    channel: Channel,
    pending: Mutex<Pending>,
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
    /// Sends requests to the processes whose channels come over this socket. Needs a tokio runtime.
    pub(super) fn new(socket: OwnedFd, hosts: Vec<Destination>) -> io::Result<Callouts> {
        let (sender, current) = watch::channel(None);
        tokio::spawn(follow(Channel::new(socket)?, sender));
        Ok(Callouts { hosts, current, last: AtomicU64::new(0) })
    }

    fn place(&self, host: &str, port: u16) -> Option<usize> {
        self.hosts.iter().position(|own| own.port == port && own.host.eq_ignore_ascii_case(host))
    }

    /// Returns the process, once there is one.
    async fn running(&self) -> io::Result<Arc<Running>> {
        let mut current = self.current.clone();
        let running = current.wait_for(Option::is_some).await.map_err(|_| ended())?;
        running.clone().ok_or_else(ended)
    }
}

/// Uses one process after the other, until the root process has ended.
async fn follow(root: Channel, sender: watch::Sender<Option<Arc<Running>>>) {
    while let Ok(Some(message)) = root.receive().await {
        let channel = message.descriptors.into_iter().next().map(Channel::new);
        let Some(Ok(channel)) = channel else {
            tracing::error!("no channel to the process that connects to webhooks came");
            continue;
        };
        let running = Arc::new(Running { channel, pending: Mutex::default() });
        sender.send_replace(Some(running.clone()));
        running.receive().await;
        sender.send_replace(None);
    }
}

impl Running {
    /// Delivers answers until the process ends.
    async fn receive(&self) {
        while let Ok(Some(message)) = self.channel.receive().await {
            let Ok(Answer { number, result }) = message.decode() else { break };
            let socket = match result {
                Ok(()) => {
                    message.descriptors.into_iter().next().ok_or_else(|| io::Error::other("no socket came"))
                }
                Err(why) => Err(io::Error::other(why)),
            };
            // The webhook may have timed out meanwhile; dropping the socket closes it.
            if let Some(receiver) = lock(&self.pending).answers.remove(&number) {
                let _ = receiver.send(socket);
            }
        }
        let mut pending = lock(&self.pending);
        pending.over = true;
        pending.answers.clear();
    }

    /// Returns a connected socket; `None` if the process ends before it answers.
    async fn open(&self, request: &Request) -> Option<io::Result<OwnedFd>> {
        let (sender, receiver) = oneshot::channel();
        {
            let mut pending = lock(&self.pending);
            if pending.over {
                return None;
            }
            pending.answers.insert(request.number, sender);
        }
        let _entry = Entry(&self.pending, request.number);
        self.channel.send(request, &[]).await.ok()?;
        receiver.await.ok()
    }
}

impl Connector for Callouts {
    fn allows(&self, host: &str, port: u16) -> bool {
        self.place(host, port).is_some()
    }

    fn connect<'a>(&'a self, host: &'a str, port: u16) -> BoxFuture<'a, io::Result<Box<dyn Duplex>>> {
        async move {
            let host = self.place(host, port).ok_or_else(|| io::Error::other("not one of --webhook-host"))?;
            for _ in 0..TRIES {
                let request = Request { number: self.last.fetch_add(1, Ordering::Relaxed), host };
                let Some(socket) = self.running().await?.open(&request).await else {
                    tokio::time::sleep(RESTART).await;
                    continue;
                };
                let socket = std::net::TcpStream::from(socket?);
                socket.set_nonblocking(true)?;
                return Ok(Box::new(TcpStream::from_std(socket)?) as Box<dyn Duplex>);
            }
            Err(ended())
        }
        .boxed()
    }
}
