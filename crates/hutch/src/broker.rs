//! The broker: a process of `hutch up` that keeps the keys of the sandboxes' authorities and makes the placeholders of their
//! credentials. It has a user of its own, no capability, no network and one folder. It parses nothing that clients or
//! sandboxes send.

mod store;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::SystemTime;

use anyhow::Context;
use hutch_egress::AuthorityKeys;
use hutch_jail::service::{Confinement, confine};
use hutch_policy::Shape;
use hutch_privsep::{receive_now, send_now};
use rustix::event::{PollFd, PollFlags};
use serde::{Deserialize, Serialize};

use self::store::Store;
use crate::egress::Process;

/// Name of the program as the root process starts it. Not a command for users.
pub(crate) const NAME: &str = "hutch-broker";
/// Names in one message.
const NAMES: usize = 256;

/// First message to the process; requests follow.
#[derive(Serialize, Deserialize)]
struct Start {
    /// Its folder, which it enters before it is confined.
    folder: PathBuf,
    /// User and group id of the process.
    id: u32,
}

/// Request to the process. Each gets one answer, in their order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Give the authority of a sandbox of this name; make one if it has none.
    Authority(String),
    /// Remove the authority of a sandbox.
    Forget(String),
    /// Make the placeholders of credentials of a sandbox.
    Placeholders(String, Vec<CredentialKey>),
    /// Give the times at which a sandbox first had credentials: now, for new ones.
    Begun(String, Vec<CredentialKey>),
}

/// Names a credential of a sandbox, and the shape of its placeholder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CredentialKey {
    /// Name of its policy.
    pub(crate) policy: String,
    /// Its name.
    pub(crate) name: String,
    /// Shape of the placeholder.
    pub(crate) shape: Shape,
}

/// Message of the process.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// Before the first request: names of sandboxes that have an authority.
    Known(Vec<String>),
    /// Before the first request: no further names follow.
    Ready,
    /// Authority of a sandbox.
    Authority(AuthorityKeys),
    /// The authority is removed.
    Forgotten,
    /// Placeholders, in the order of the request.
    Placeholders(Vec<String>),
    /// Times in seconds since 1970, in the order of the request.
    Begun(Vec<i64>),
    /// The request, or the start, failed.
    Failed(String),
}

/// Starts the process with its folder, which belongs to the user `id`. To be called on a thread that lasts: the kernel ends
/// the process with it.
pub(crate) fn spawn(folder: &Path, id: u32) -> io::Result<(Process, OwnedFd)> {
    let (ours, theirs) = hutch_privsep::pair()?;
    let mut command = Command::new("/proc/self/exe");
    command.arg0(NAME).env_clear().current_dir("/").stdin(theirs).stdout(Stdio::null());
    let process = Process::of(command.spawn()?);
    send_now(ours.as_fd(), &Start { folder: folder.to_owned(), id }, &[])?;
    Ok((process, ours))
}

/// Answers until the process that started it ends.
pub(crate) fn main() -> ExitCode {
    crate::runtime::log("warn,hutch=info");
    crate::runtime::program(NAME, run)
}

fn run() -> anyhow::Result<()> {
    let input = rustix::stdio::stdin();
    let (Start { folder, id }, _) = crate::runtime::first_message(c"hutch-broker")?;
    // By a relative path: the broker may not search the parents of its folder.
    std::env::set_current_dir(&folder).context("its folder")?;
    let folder = Path::new(".");
    let random = [Path::new("/dev/random"), Path::new("/dev/urandom")];
    confine(&Confinement { uid: id, gid: id, writable: &[folder], readable: &random, connects: false })
        .context("cannot be confined")?;
    match Store::open(folder).and_then(|store| Ok((store.names()?, store))) {
        Ok((names, store)) => serve(input, &store, &names).context("the root process"),
        // The root process reports it.
        Err(error) => Ok(send(input, &Answer::Failed(error.to_string()))?),
    }
}

fn serve(channel: BorrowedFd<'_>, store: &Store, names: &[String]) -> io::Result<()> {
    for names in names.chunks(NAMES) {
        send(channel, &Answer::Known(names.to_vec()))?;
    }
    send(channel, &Answer::Ready)?;
    while let Some(message) = receive_now(channel)? {
        let done = match message.decode()? {
            Request::Authority(name) => store.authority(&name, SystemTime::now()).map(Answer::Authority),
            Request::Forget(name) => store.forget(&name).map(|()| Answer::Forgotten),
            Request::Begun(name, keys) => store.begun(&name, &keys, SystemTime::now()).map(Answer::Begun),
            Request::Placeholders(name, keys) => {
                Ok(Answer::Placeholders(keys.iter().map(|key| store.placeholder(&name, key)).collect()))
            }
        };
        let answer = done.unwrap_or_else(|error| Answer::Failed(error.to_string()));
        send(channel, &answer)?;
    }
    Ok(())
}

/// Sends a message. Waits while the buffer of the other end is full.
fn send(channel: BorrowedFd<'_>, answer: &Answer) -> io::Result<()> {
    loop {
        match send_now(channel, answer, &[]) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                rustix::event::poll(&mut [PollFd::from_borrowed_fd(channel, PollFlags::OUT)], None)?;
            }
            sent => return sent,
        }
    }
}
