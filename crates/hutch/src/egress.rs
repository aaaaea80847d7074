//! The proxy of a sandbox as a process of its own: it parses what code inside sends, so it has no privilege, no secret and no
//! file but those by which names are resolved.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use hutch_egress::control::{News, Order, Reporter, follow};
use hutch_egress::{FLAGS, Reason, Refusal};
use hutch_jail::service::{Confinement, confine};
use hutch_policy::Level;
use hutch_privsep::{Channel, receive_now, send_now};
use serde::{Deserialize, Serialize};

use crate::runtime::runtime;

const NAME: &str = "hutch-egress";
/// Files by which names are resolved, and by which a static program reads random numbers.
const FILES: [&str; 8] = [
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/nsswitch.conf",
    "/etc/host.conf",
    "/etc/gai.conf",
    "/etc/services",
    "/dev/random",
    "/dev/urandom",
];
/// Maximum refusals that are printed, each once.
const PRINTED: usize = 100;

/// Number of the sandbox of `hutch run`.
const SANDBOX: u64 = 0;

/// First message to the process; orders follow.
#[derive(Serialize, Deserialize)]
struct Start {
    /// Ids of the process: its own for root, else those of the caller.
    uid: u32,
    gid: u32,
}

/// The process. It ends when this is dropped.
pub(crate) struct Egress {
    child: Child,
    _channel: OwnedFd,
}

impl Drop for Egress {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns true if this process was started as the proxy.
pub(crate) fn is_this() -> bool {
    std::env::args_os().next().is_some_and(|name| name == OsStr::new(NAME))
}

/// Starts the proxy for a sandbox with these listeners. `id` is the user and group of the process, if the caller is root.
pub(crate) fn start(listeners: &[OwnedFd], levels: &[Level], id: Option<u32>) -> io::Result<Egress> {
    // Descriptors that the caller left open stay out of it.
    hutch_jail::close_inherited_on_exec()?;
    let (ours, theirs) = hutch_privsep::pair()?;
    let mut command = Command::new("/proc/self/exe");
    // Of the environment only what the resolver reads: no search domains.
    command.arg0(NAME).env_clear().env("LOCALDOMAIN", "").current_dir("/");
    command.stdin(theirs).stdout(Stdio::null());
    let child = command.spawn()?;
    let egress = Egress { child, _channel: ours };
    let (uid, gid) = match id {
        Some(id) => (id, id),
        None => (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw()),
    };
    let channel = egress._channel.as_fd();
    send_now(channel, &Start { uid, gid }, &[])?;
    for (id, level) in (0..).zip(levels) {
        send_now(channel, &Order::Level { id, level: level.clone() }, &[])?;
    }
    let numbers = (0..).take(levels.len()).collect();
    send_now(channel, &Order::Levels { sandbox: SANDBOX, levels: numbers }, &[])?;
    let descriptors: Vec<_> = listeners.iter().map(AsFd::as_fd).collect();
    send_now(channel, &Order::Serve { sandbox: SANDBOX }, &descriptors)?;
    Ok(egress)
}

/// Serves until the process that started it ends.
pub(crate) fn main() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{NAME}: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn serve() -> anyhow::Result<()> {
    let input = rustix::io::dup(rustix::stdio::stdin()).context("standard input")?;
    rustix::io::fcntl_setfd(&input, rustix::io::FdFlags::CLOEXEC).context("standard input")?;
    let message = receive_now(input.as_fd()).context("started by hutch alone")?;
    let message = message.context("started by hutch alone")?;
    let Start { uid, gid } = message.decode().context("the first message")?;
    rustix::thread::set_name(c"hutch-egress").context("name")?;
    rustix::process::setsid().context("session")?;
    let readable: Vec<&Path> = FILES.iter().map(Path::new).filter(|file| file.exists()).collect();
    let confinement = Confinement { uid, gid, writable: &[], readable: &readable, connects: true };
    confine(&confinement).context("cannot be confined")?;
    runtime()?.block_on(async {
        let channel = Channel::new(input)?;
        follow(&channel, Printed::default().into_reporter()).await.context("an order")
    })
}

/// Refusals that were printed.
#[derive(Default)]
struct Printed(Mutex<HashSet<String>>);

impl Printed {
    fn into_reporter(self) -> Reporter {
        Arc::new(move |news| {
            // Names are not needed: when the process dies, its sandbox ends too.
            let News::Refused { refusal, .. } = news else { return };
            let line = line(&refusal);
            let mut printed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if printed.len() < PRINTED && printed.insert(line.clone()) {
                eprintln!("hutch: {line}");
            }
        })
    }
}

/// Returns what the user reads about a refused connection. Parts of it come from code inside.
fn line(Refusal { destination, reason }: &Refusal) -> String {
    let text = match reason {
        Reason::Denied(denial) if denial.level == FLAGS => {
            format!("refused {destination}; --allow {destination} allows it")
        }
        Reason::Observed(_) => format!("would refuse {destination}: {reason}"),
        Reason::Unreachable(why) => format!("could not connect to {destination}: {why}"),
        _ => format!("refused {destination}: {reason}"),
    };
    text.chars().filter(|c| !c.is_control()).collect()
}

#[cfg(test)]
mod tests {
    use hutch_egress::Denial;

    use super::*;

    #[test]
    fn refusal_names_the_flag_and_has_no_control_characters() {
        let refusal = |reason| line(&Refusal { destination: "a.example:443".into(), reason });
        let denied = |level: &str, rule: Option<&str>| {
            Reason::Denied(Denial { level: level.into(), rule: rule.map(str::to_owned) })
        };
        assert_eq!(
            refusal(denied("--allow", None)),
            "refused a.example:443; --allow a.example:443 allows it"
        );
        assert_eq!(
            refusal(denied("team", Some("git"))),
            "refused a.example:443: rule \"git\" of policy \"team\" denies it"
        );
        assert!(!refusal(Reason::OtherName("\u{1b}[2J\n".into())).contains(char::is_control));
    }
}
