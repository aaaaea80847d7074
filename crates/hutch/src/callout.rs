//! The process that connects to the hosts of webhooks, for the front.
//!
//! The front parses what clients send, so it opens no socket; the root process has all rights, so it neither resolves names nor
//! connects anywhere for the front. This process has a user of its own, no capability and no files but those by which names are
//! resolved. It receives the list of hosts from the root process, which has it from the command line. The front then names a
//! host by its place in the list, and receives a connected socket. A front that is
//! taken over reaches these hosts and nothing else. This process parses nothing that a webhook sends: TLS is spoken in the front.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use hutch_jail::service::{Confinement, confine};
use hutch_privsep::{Channel, send_now};
use serde::{Deserialize, Serialize};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use crate::egress::{Process, files_for_names};
use crate::runtime::{first_message, runtime};

/// Name of the program as the root process starts it. Not a command for users.
pub(crate) const NAME: &str = "hutch-callout";
/// Maximum time to connect. No webhook has a longer timeout.
const CONNECT: Duration = Duration::from_secs(30);
/// Maximum connections that are being opened.
const OPENING: usize = 256;
/// Maximum hosts: the list is one message.
pub(crate) const HOSTS: usize = 64;

/// Host and port of webhooks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Destination {
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl FromStr for Destination {
    type Err = String;

    fn from_str(text: &str) -> Result<Destination, String> {
        let wrong = || format!("{text:?} is not HOST:PORT, such as hooks.example.com:8443 or [::1]:8443");
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let port = port.parse().ok().filter(|port| *port > 0).ok_or_else(wrong)?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let host = match bare {
            Some(address) if address.parse::<std::net::Ipv6Addr>().is_ok() => address,
            None if !host.is_empty()
                && host.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b)) =>
            {
                host
            }
            _ => return Err(wrong()),
        };
        Ok(Destination { host: host.to_ascii_lowercase(), port })
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Destination { host, port } = self;
        if host.contains(':') { write!(to, "[{host}]:{port}") } else { write!(to, "{host}:{port}") }
    }
}

/// First message to the process; requests follow.
#[derive(Serialize, Deserialize)]
struct Start {
    /// User and group id of the process.
    id: u32,
    hosts: Vec<Destination>,
}

/// Request of the front.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    /// Number, which the answer has too.
    pub(crate) number: u64,
    /// Place of the host in the list.
    pub(crate) host: usize,
}

/// Answer to the front. A connected socket comes with it, or the reason why it failed.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Answer {
    pub(crate) number: u64,
    pub(crate) result: Result<(), String>,
}

/// Starts the process. Returns it and the front's end of its channel. To be called on a thread that lasts: the kernel ends the
/// process with it.
pub(crate) fn spawn(hosts: &[Destination], id: u32) -> io::Result<(Process, OwnedFd)> {
    let (process, ours) = Process::start(NAME, Path::new("/"))?;
    send_now(ours.as_fd(), &Start { id, hosts: hosts.to_vec() }, &[])?;
    Ok((process, ours))
}

/// Answers until the front has ended.
pub(crate) fn main() -> ExitCode {
    crate::runtime::log("warn,hutch=info");
    crate::runtime::program(NAME, run)
}

fn run() -> anyhow::Result<()> {
    let input = rustix::stdio::stdin();
    let (Start { id, hosts }, _) = first_message(c"hutch-callout")?;
    let readable = files_for_names();
    let readable: Vec<&Path> = readable.iter().map(PathBuf::as_path).collect();
    confine(&Confinement { uid: id, gid: id, writable: &[], readable: &readable, connects: true })
        .context("cannot be confined")?;
    let input = input.try_clone_to_owned().context("the channel")?;
    runtime()?.block_on(async {
        let channel = Arc::new(Channel::new(input)?);
        let (hosts, room) = (Arc::new(hosts), Arc::new(Semaphore::new(OPENING)));
        // A message with a descriptor ends it: the front sends none.
        while let Some(message) = channel.receive_bare().await? {
            let Request { number, host } = message.decode()?;
            let (channel, hosts) = (channel.clone(), hosts.clone());
            let place = room.clone().acquire_owned().await?;
            tokio::spawn(async move {
                let opened = open(hosts.get(host)).await;
                drop(place);
                let (result, socket) = match opened {
                    Ok(socket) => (Ok(()), Some(socket)),
                    Err(error) => (Err(error.to_string()), None),
                };
                let descriptors: Vec<_> = socket.iter().map(AsFd::as_fd).collect();
                // A closed channel is the end of this process.
                let _ = channel.send(&Answer { number, result }, &descriptors).await;
            });
        }
        anyhow::Ok(())
    })
}

async fn open(host: Option<&Destination>) -> io::Result<std::net::TcpStream> {
    let Destination { host, port } = host.ok_or_else(|| io::Error::other("no such host"))?;
    let connecting = TcpStream::connect((host.as_str(), *port));
    let stream = tokio::time::timeout(CONNECT, connecting).await.map_err(|_| io::ErrorKind::TimedOut)??;
    stream.set_nodelay(true)?;
    stream.into_std()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destination_is_a_host_with_a_port() {
        for (text, shown) in [
            ("Hooks.example.com:8443", "hooks.example.com:8443"),
            ("127.0.0.1:1", "127.0.0.1:1"),
            ("[::1]:443", "[::1]:443"),
        ] {
            assert_eq!(text.parse::<Destination>().map(|one| one.to_string()), Ok(shown.to_owned()));
        }
        for text in [
            "",
            "a",
            "a:",
            ":1",
            "a:0",
            "a:65536",
            "https://a:1",
            "a/b:1",
            "::1:443",
            "[a]:1",
            "a b:1",
            "u@a:1",
        ] {
            assert!(text.parse::<Destination>().is_err(), "{text}");
        }
    }
}
