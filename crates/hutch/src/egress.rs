//! The proxy of a sandbox as a process of its own: it parses what code inside sends, so it has no privilege, no secret and no
//! file but those by which names are resolved.

pub(crate) mod orders;
pub(crate) mod peers;
mod process;
mod starter;

use std::collections::HashSet;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context;
use hutch_egress::control::{LAST, News, Order, Reporter, follow_recorded};
use hutch_egress::{AuthorityKeys, Awake, FLAGS, Reason, Recorder, Refusal, UpstreamProxy, Way};
use hutch_jail::service::{Confinement, confine};
use hutch_policy::{EgressRule, Level};
use hutch_privsep::{Channel, receive_now, send_now};
use serde::{Deserialize, Serialize};

use crate::credentials::{self, Wanted};
use crate::runtime::{one_thread_woken, runtime};
pub(crate) use process::Process;

pub(crate) const NAME: &str = "hutch-egress";
/// File with the name servers.
const RESOLVER: &str = "/etc/resolv.conf";
/// Files by which names are resolved, and by which a static program reads random numbers.
const FILES: [&str; 8] = [
    RESOLVER,
    "/etc/hosts",
    "/etc/nsswitch.conf",
    "/etc/host.conf",
    "/etc/gai.conf",
    "/etc/services",
    "/dev/random",
    "/dev/urandom",
];
/// Files in which distributions keep the authorities that the machine trusts, as one bundle.
const BUNDLES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
/// Maximum bytes of such a file.
const BUNDLE_BYTES: u64 = 8 << 20;
/// Maximum refusals that are printed, each once.
const PRINTED: usize = 100;
/// Maximum time to print what is left when the process ends.
const LAST_LINES: Duration = Duration::from_millis(300);

/// Number of the sandbox of `hutch run`.
const SANDBOX: u64 = 0;

/// Returns the files that a program needs which resolves names. Where the file with the name servers is a link, the folder in
/// which programs of the machine write it is one of them: after a change of the network, another file has its name.
pub(crate) fn files_for_names() -> Vec<PathBuf> {
    let files = FILES.iter().map(PathBuf::from).filter(|file| file.exists());
    files.chain(folder_of_resolver(Path::new(RESOLVER))).collect()
}

/// Returns the folder of the file to which a link leads, if only what the machine has written since its start is there.
fn folder_of_resolver(link: &Path) -> Option<PathBuf> {
    let folder = link.canonicalize().ok()?.parent()?.to_owned();
    (folder.starts_with("/run") && folder != Path::new("/run")).then_some(folder)
}

/// First message to the process; orders follow.
#[derive(Serialize, Deserialize)]
struct Start {
    /// Ids of the process: its own for root, else those of the caller.
    uid: u32,
    gid: u32,
    /// Receiver of refusals.
    audience: Audience,
    /// Requests are read, and servers are judged by the authorities of the machine.
    reads: bool,
    /// The process may stay awake between messages, which takes processor time.
    awake: bool,
    outside: Outside,
}

/// The network outside.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Outside {
    /// File with the authorities by which servers are judged, instead of the machine's.
    pub(crate) authorities: Option<PathBuf>,
    /// Proxy through which everything goes.
    pub(crate) proxy: Option<UpstreamProxy>,
    /// Credentials whose values the process reads before it is confined.
    #[serde(default)]
    pub(crate) credentials: Vec<Wanted>,
}

impl Outside {
    /// Returns the authorities that `SSL_CERT_FILE` names, as other programs do, and this proxy.
    pub(crate) fn new(proxy: Option<UpstreamProxy>) -> Outside {
        let authorities =
            std::env::var_os("SSL_CERT_FILE").map(PathBuf::from).filter(|file| file.is_absolute());
        Outside { authorities, proxy, credentials: Vec::new() }
    }

    /// Reads the authorities of the first file that exists: PEM.
    pub(crate) fn bundle(&self) -> io::Result<Vec<u8>> {
        let mut files = self.authorities.as_deref().into_iter().chain(BUNDLES.map(Path::new));
        let Some(file) = files.find_map(|file| std::fs::File::open(file).ok()) else {
            return Ok(Vec::new());
        };
        let mut bytes = Vec::new();
        file.take(BUNDLE_BYTES).read_to_end(&mut bytes)?;
        Ok(certificates(&bytes))
    }
}

/// Returns the certificates of a PEM file: sandboxes see them, and such a file may contain a key too.
pub(crate) fn certificates(pem: &[u8]) -> Vec<u8> {
    let (mut kept, mut start) = (Vec::with_capacity(pem.len()), None);
    for line in pem.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii) {
        if line.starts_with(b"-----BEGIN") {
            kept.truncate(start.unwrap_or(kept.len()));
            start = (line == b"-----BEGIN CERTIFICATE-----").then_some(kept.len());
        }
        if start.is_some() {
            kept.extend_from_slice(line);
            kept.push(b'\n');
        }
        if line == b"-----END CERTIFICATE-----" {
            start = None;
        }
    }
    kept.truncate(start.unwrap_or(kept.len()));
    kept
}

/// Receiver of refusals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Audience {
    /// The user, on standard error.
    User,
    /// The process that started it, with all other news.
    Starter,
    /// The user, on standard output: each decision as a line of JSON.
    Log,
}

/// The proxy of `hutch run`. When this is dropped, it passes on what the command has sent, and ends.
pub(crate) struct Egress {
    process: Process,
    /// Closed when it is to end.
    channel: Option<OwnedFd>,
}

impl Egress {
    /// Serves the listeners of a jail, the first one or one that takes its place.
    pub(crate) fn serve(&self, listeners: &[OwnedFd]) -> io::Result<()> {
        let channel = self.channel.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        let descriptors: Vec<_> = listeners.iter().map(AsFd::as_fd).collect();
        send_now(channel.as_fd(), &Order::Serve { sandbox: SANDBOX }, &descriptors)
    }

    /// Lets the process end, without waiting for it.
    pub(crate) fn end(&mut self) {
        drop(self.channel.take());
    }
}

impl Drop for Egress {
    fn drop(&mut self) {
        self.end();
        self.process.wait(LAST);
    }
}

/// A process, and the channel to it.
pub(crate) type Spawned = (Process, OwnedFd);

/// Starts the process, which waits for orders. `id` is its user and group, if the caller is root. With `reads` it reads
/// requests, and judges servers by the authorities of the machine. With `awake` it may take processor time while it waits.
pub(crate) fn spawn(
    id: Option<u32>,
    audience: Audience,
    outside: Outside,
    (reads, awake): (bool, bool),
) -> io::Result<Spawned> {
    let output = if audience == Audience::Log { Stdio::inherit() } else { Stdio::null() };
    // It changes its folder by itself.
    let (process, ours) = Process::start_with(NAME, None, output)?;
    let (uid, gid) = match id {
        Some(id) => (id, id),
        None => (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw()),
    };
    let has_credentials = !outside.credentials.is_empty();
    send_now(ours.as_fd(), &Start { uid, gid, audience, reads, awake, outside }, &[])?;
    if has_credentials {
        let answer = receive_now(ours.as_fd())?.ok_or(io::ErrorKind::UnexpectedEof)?;
        answer.decode::<Result<(), String>>()?.map_err(io::Error::other)?;
    }
    Ok((process, ours))
}

/// Returns true if a level needs the authority of its sandbox, because it has rules about requests or a scanner.
pub(crate) fn reads_requests<'a>(levels: impl IntoIterator<Item = &'a Level>) -> bool {
    levels.into_iter().any(|level| {
        let mut rules = level.egress.iter().flat_map(|egress| &egress.rules);
        level.scanner.is_some() || !level.credentials.is_empty() || rules.any(EgressRule::reads_requests)
    })
}

/// Sets the rules of one sandbox. `authority` is that of the sandbox, if rules read requests.
pub(crate) fn start(
    (process, ours): Spawned,
    levels: &[Level],
    authority: Option<&AuthorityKeys>,
) -> io::Result<Egress> {
    let channel = ours.as_fd();
    for (id, level) in (0..).zip(levels) {
        send_now(channel, &Order::Level { id, level: level.clone() }, &[])?;
    }
    let numbers = (0..).take(levels.len()).collect();
    send_now(channel, &Order::Levels { sandbox: SANDBOX, levels: numbers }, &[])?;
    if let Some(keys) = authority {
        send_now(channel, &Order::Authority { sandbox: SANDBOX, keys: keys.clone() }, &[])?;
    }
    Ok(Egress { process, channel: Some(ours) })
}

/// Serves until the process that started it ends.
pub(crate) fn main() -> ExitCode {
    crate::runtime::program(NAME, serve)
}

fn serve() -> anyhow::Result<()> {
    // `hutch run` blocks those that it passes on to the command.
    hutch_jail::unblock_signals();
    let input = rustix::io::dup(rustix::stdio::stdin()).context("standard input")?;
    rustix::io::fcntl_setfd(&input, rustix::io::FdFlags::CLOEXEC).context("standard input")?;
    let message = receive_now(input.as_fd()).context("started by hutch alone")?;
    let message = message.context("started by hutch alone")?;
    let Start { uid, gid, audience, reads, awake, outside } =
        message.decode().context("the first message")?;
    rustix::thread::set_name(c"hutch-egress").context("name")?;
    std::env::set_current_dir("/").context("folder")?;
    rustix::process::setsid().context("session")?;
    // Before they are counted.
    hutch_serve::raise_descriptor_limit();
    hutch_serve::forbid_core_files();
    // Before the process is confined: it then has no such file.
    let issued = credentials::read(&outside.credentials);
    if !outside.credentials.is_empty() {
        send_now(input.as_fd(), &issued.as_ref().map(|_| ()), &[]).context("credentials")?;
    }
    let Ok(issued) = issued else { return Ok(()) };
    // The rules of `hutch run` stay as they are. If they read no requests, no server is judged.
    let judges = audience != Audience::User || reads || outside.proxy.is_some();
    let bundle = if judges { outside.bundle().context("the machine's authorities")? } else { Vec::new() };
    // With one processor, it would take the time of the programs for which it waits.
    let processors = rustix::thread::sched_getaffinity(None).map_or(1, |all| all.count());
    let awake = (awake && processors > 1).then(Arc::<Awake>::default);
    let way = Way::new(bundle, outside.proxy).with_credentials(issued).with_awake(awake.clone());
    let readable = files_for_names();
    let readable: Vec<&Path> = readable.iter().map(PathBuf::as_path).collect();
    let confinement = Confinement { uid, gid, writable: &[], readable: &readable, connects: true };
    confine(&confinement).context("cannot be confined")?;
    let runtime = match audience {
        // There is one sandbox. A thread alone wakes no other one, which takes some microseconds of each round trip.
        Audience::User => one_thread_woken(move || awake.iter().for_each(|awake| awake.woken()))?,
        Audience::Starter | Audience::Log => runtime()?,
    };
    let printed = Arc::new(Printed::default());
    let served = runtime.block_on(async {
        let channel = Arc::new(Channel::new(input)?);
        let reporter = match audience {
            Audience::User => printed.clone().into_reporter(),
            Audience::Starter => starter::to_starter(channel.clone()),
            Audience::Log => Arc::new(|_| ()),
        };
        let recorder = (audience == Audience::Log).then(to_output);
        follow_recorded(&channel, way, reporter, recorder).await.context("an order")
    });
    printed.finish(LAST_LINES);
    // A command waits for the end of this process, and its threads end with it.
    runtime.shutdown_background();
    served
}

/// Returns a recorder that prints each decision before it takes effect. The process ends if it cannot.
fn to_output() -> Recorder {
    Arc::new(|record| {
        let line = record.line() + "\n";
        if let Err(error) = io::stdout().lock().write_all(line.as_bytes()) {
            eprintln!("hutch: a decision cannot be logged on standard output, so this is the end: {error}");
            std::process::exit(1);
        }
    })
}

/// Refusals that were printed.
#[derive(Default)]
struct Printed(Mutex<Printing>);

#[derive(Default)]
struct Printing {
    known: HashSet<String>,
    /// Number of those that were not printed.
    left_out: u64,
    /// Started for the first refusal.
    printer: Option<Printer>,
}

/// Thread that prints. Standard error may be a full pipe, or a stopped terminal, for which connections do not wait.
struct Printer {
    lines: SyncSender<String>,
    /// Closed when everything is printed.
    end: Receiver<()>,
}

impl Printer {
    fn start(mut output: impl Write + Send + 'static) -> io::Result<Printer> {
        // With a last line, which has the number of those that were left out.
        let (lines, waiting) = sync_channel::<String>(PRINTED + 1);
        let (running, end) = std::sync::mpsc::channel();
        std::thread::Builder::new().name("printer".to_owned()).spawn(move || {
            let _running = running;
            for line in waiting {
                // The output may be closed, which changes nothing for the sandbox.
                let _ = output.write_all(line.as_bytes());
            }
        })?;
        Ok(Printer { lines, end })
    }
}

impl Printed {
    fn into_reporter(self: Arc<Self>) -> Reporter {
        Arc::new(move |news| {
            // Names are not needed: when the process dies, its sandbox ends too.
            let News::Refused { refusal, .. } = news else { return };
            self.print(line(&refusal), io::stderr);
        })
    }

    /// Prints a line, once. Never waits.
    fn print<W: Write + Send + 'static>(&self, line: String, output: impl FnOnce() -> W) {
        let mut printing = self.printing();
        let Printing { known, left_out, printer } = &mut *printing;
        if known.contains(&line) {
            return;
        }
        if known.len() == PRINTED {
            *left_out += 1;
            return;
        }
        if printer.is_none() {
            *printer = Printer::start(output()).ok();
        }
        let text = format!("hutch: {line}\n");
        let sent = printer.as_ref().is_some_and(|printer| printer.lines.try_send(text).is_ok());
        *left_out += u64::from(!sent);
        known.insert(line);
    }

    /// Waits until everything is printed, not longer than this.
    fn finish(&self, most: Duration) {
        let mut printing = self.printing();
        let Some(Printer { lines, end }) = printing.printer.take() else { return };
        if printing.left_out > 0 {
            let text = format!("hutch: {} more refusals are not shown\n", printing.left_out);
            // It has a place, unless the thread has ended.
            let _ = lines.try_send(text);
        }
        drop(lines);
        // Nothing is sent: an error is the end of the thread, or of the time.
        let _ = end.recv_timeout(most);
    }

    fn printing(&self) -> MutexGuard<'_, Printing> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns what the user reads about a refused connection. Parts of it come from code inside.
pub(crate) fn line(Refusal { destination, reason }: &Refusal) -> String {
    let text = match reason {
        Reason::Denied(denial) | Reason::Name(denial) if denial.level == FLAGS => {
            format!("refused {destination}{}", hutch_egress::advice(destination))
        }
        Reason::Observed(_) | Reason::ObservedName(_) => format!("would refuse {destination}: {reason}"),
        Reason::FoundOnly(found) => format!("passed {destination}: {found}"),
        Reason::Redacted(found) => format!("redacted {destination}: {found}"),
        Reason::Unreachable(why) => format!("could not connect to {destination}: {why}"),
        _ => format!("refused {destination}: {reason}"),
    };
    // Also what changes the direction of text.
    let hides = |c: char| {
        c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
    };
    text.chars().filter(|c| !hides(*c)).collect()
}

#[cfg(test)]
mod tests {
    use hutch_egress::Denial;

    use super::*;

    #[test]
    fn folder_of_name_servers_is_readable_only_below_run() {
        let folder = tempfile::tempdir().expect("tempdir");
        let link = folder.path().join("resolv.conf");
        for (target, expected) in [("/etc/hostname", None), ("/run", None), ("/proc/version", None)] {
            let _ = std::fs::remove_file(&link);
            std::os::unix::fs::symlink(target, &link).expect("a link");
            assert_eq!(folder_of_resolver(&link), expected, "{target}");
        }
        // Something in a folder below it, if the machine has any.
        let below = std::fs::read_dir("/run").into_iter().flatten().flatten();
        let below = below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        let file = below.filter_map(|entry| std::fs::read_dir(entry.path()).ok()?.next()?.ok());
        let plain = |path: &std::path::PathBuf| path.canonicalize().is_ok_and(|plain| plain == *path);
        if let Some(file) = file.map(|entry| entry.path()).find(plain) {
            let _ = std::fs::remove_file(&link);
            std::os::unix::fs::symlink(&file, &link).expect("a link");
            assert_eq!(folder_of_resolver(&link).as_deref(), file.parent());
        }
    }

    #[test]
    fn of_a_file_with_authorities_only_whole_certificates_are_kept() {
        let (certificate, key) = (
            "-----BEGIN CERTIFICATE-----\nAA\n-----END CERTIFICATE-----",
            "-----BEGIN PRIVATE KEY-----\nBB\n-----END PRIVATE KEY-----",
        );
        for (text, count) in [
            (format!("# comment\n{certificate}\r\n{key}\n{certificate}"), 2),
            (format!("-----BEGIN CERTIFICATE-----\n{key}\n{certificate}\n"), 1),
            (format!("{certificate}\n-----BEGIN CERTIFICATE-----\nBB\n"), 1),
            (key.to_owned(), 0),
            (String::new(), 0),
        ] {
            let kept = String::from_utf8(certificates(text.as_bytes())).unwrap();
            assert_eq!(kept, format!("{certificate}\n").repeat(count), "{text}");
        }
    }

    /// Output that takes nothing before the other end is dropped.
    struct Stopped(Receiver<()>, Arc<Mutex<Vec<u8>>>);

    impl Write for Stopped {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.0.recv();
            self.1.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn refusals_do_not_wait_for_a_stopped_terminal() {
        let (stopped, waits) = std::sync::mpsc::channel();
        let shown = Arc::new(Mutex::new(Vec::new()));
        let mut output = Some(Stopped(waits, shown.clone()));
        let printed = Printed::default();
        for number in (0..PRINTED + 3).chain(0..PRINTED) {
            printed.print(format!("refused {number}"), || output.take().unwrap());
        }
        assert!(shown.lock().unwrap().is_empty());
        drop(stopped);
        printed.finish(Duration::from_secs(60));
        let shown = String::from_utf8(shown.lock().unwrap().clone()).unwrap();
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!((lines.len(), lines[0]), (PRINTED + 1, "hutch: refused 0"));
        assert_eq!(lines[PRINTED], "hutch: 3 more refusals are not shown");
    }

    #[test]
    fn refusal_names_the_flag_and_has_no_control_characters() {
        let refusal = |reason| line(&Refusal { destination: "a.example:443".into(), reason });
        let denied = |level: &str, rule: Option<&str>| {
            Reason::Denied(Denial { level: level.into(), rule: rule.map(str::to_owned), unmet: None })
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
