//! Standard output and standard error of a command that may not show secrets: they are scanned on their way to the caller.
//!
//! What goes to a terminal is not scanned: it must show a prompt at once, and only its user sees it.

use std::collections::HashSet;
use std::fs::File;
use std::io::{IsTerminal, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context, bail};
use hutch_jail::run::{Captured, Outcome};
use hutch_policy::{Authority, Door, Level, ScanAction, ScannerRules};
use hutch_scan::Fingerprint;
use hutch_screen::{Found, Origin, Output, Screen, Until};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, getpid, kill_process};

use super::egress::secrets;

/// Time for which bytes wait for more of a secret: 100 ms.
const HOLD: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// Bytes that are read at once.
const PORTION: usize = 16 << 10;

/// The streams of a command, while it runs.
#[derive(Default)]
pub(super) struct Screened {
    pipes: Vec<Pipe>,
    over: Arc<AtomicBool>,
    ignored: Arc<HashSet<Fingerprint>>,
}

/// A pipe that is in the place of one or both streams.
struct Pipe {
    /// Numbers of the streams.
    streams: Vec<usize>,
    /// Descriptor that was in their place.
    original: OwnedFd,
    /// Until it is passed on.
    reader: Option<OwnedFd>,
    thread: Option<JoinHandle<Option<Found>>>,
}

impl Screened {
    /// Puts pipes in the place of the standard streams that are no terminals. [`Screened::begin`] must follow. `ignored` are
    /// placeholders of credentials, which are no secrets.
    pub(super) fn open(ignored: &Arc<HashSet<Fingerprint>>) -> anyhow::Result<Screened> {
        let (pipes, over) = (Vec::new(), Arc::default());
        let mut screened = Screened { pipes, over, ignored: ignored.clone() };
        let streams = [(1, rustix::stdio::stdout()), (2, rustix::stdio::stderr())];
        let is_same = same_file(streams[0].1, streams[1].1);
        for (number, stream) in streams.into_iter().filter(|(_, stream)| !stream.is_terminal()) {
            // One pipe for both keeps the order of what is written to them.
            let both = is_same.then(|| screened.pipes.first_mut()).flatten();
            if let Some(first) = both {
                rustix::stdio::dup2_stderr(rustix::stdio::stdout())?;
                first.streams.push(number);
                continue;
            }
            let original = stream.try_clone_to_owned().context("standard output")?;
            let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
            put(number, writer.as_fd())?;
            screened.pipes.push(Pipe { streams: vec![number], original, reader: Some(reader), thread: None });
        }
        Ok(screened)
    }

    /// Begins to pass on, by threads: the command has been launched.
    pub(super) fn begin(&mut self) -> std::io::Result<()> {
        for pipe in &mut self.pipes {
            let Some(reader) = pipe.reader.take() else { continue };
            let (into, over) = (File::from(pipe.original.try_clone()?), self.over.clone());
            let output = output(self.ignored.clone());
            let pass = move || {
                let refused = pass(File::from(reader), into, output);
                if refused.is_some() && !over.load(Ordering::Acquire) {
                    // As one from outside, it is passed on to the command.
                    let _ = kill_process(getpid(), Signal::TERM);
                }
                refused
            };
            pipe.thread = Some(std::thread::Builder::new().name("output".into()).spawn(pass)?);
        }
        Ok(())
    }

    /// Puts the streams back after the end of the command, and passes on the rest.
    ///
    /// # Errors
    /// A secret was in the output, which ended before it.
    pub(super) fn finish(mut self) -> anyhow::Result<()> {
        match self.put_back()? {
            Some((number, found)) => bail!(refusal(number, &found)),
            None => Ok(()),
        }
    }

    fn put_back(&mut self) -> std::io::Result<Option<(usize, Found)>> {
        self.over.store(true, Ordering::Release);
        let mut refused = None;
        for pipe in std::mem::take(&mut self.pipes) {
            for number in &pipe.streams {
                put(*number, pipe.original.as_fd())?;
            }
            drop(pipe.reader);
            let found = pipe.thread.and_then(|thread| thread.join().ok()?);
            refused = refused.or(found.map(|found| (pipe.streams[0], found)));
        }
        Ok(refused)
    }
}

/// After an error, which could not be printed otherwise.
impl Drop for Screened {
    fn drop(&mut self) {
        let _ = self.put_back();
    }
}

/// Checks output that was kept.
///
/// # Errors
/// A secret is in it.
pub(super) fn check(outcome: &Outcome, ignored: &Arc<HashSet<Fingerprint>>) -> anyhow::Result<()> {
    for (number, kept) in [(1, &outcome.stdout), (2, &outcome.stderr)] {
        let Some(Captured { bytes, .. }) = kept else { continue };
        let mut output = output(ignored.clone());
        output.take(bytes);
        if let Err(found) = output.finish() {
            bail!(refusal(number, &found));
        }
    }
    Ok(())
}

fn refusal(number: usize, found: &Found) -> String {
    let name = if number == 1 { "standard output" } else { "standard error" };
    format!("{name} of the command: {found}; `credentials.secret_scanning` ends it")
}

/// Output in which a secret is refused, unless it is ignored.
fn output(ignored: Arc<HashSet<Fingerprint>>) -> Output {
    let rules = ScannerRules { exec: Some(ScanAction::Block), ..secrets() };
    let level = Level { scanner: Some(rules), ..Level::new(Authority::Invocation, "--config", None) };
    let screen = Screen::of(&[level], Door::Exec).expect("the rules have an action for this door");
    Output::new(screen.ignoring(ignored), Origin { pod: "command".into(), part: "".into() })
}

/// Passes output on until its end. Returns what ended it before.
fn pass(mut reader: File, mut into: File, mut output: Output) -> Option<Found> {
    let mut portion = vec![0; PORTION];
    loop {
        let timeout = (!output.is_empty()).then_some(HOLD);
        let mut fds = [PollFd::new(&reader, PollFlags::IN)];
        let passed = match poll(&mut fds, timeout.as_ref()) {
            Err(rustix::io::Errno::INTR) => continue,
            Ok(0) => output.pass(Until::End),
            _ => match reader.read(&mut portion) {
                Ok(0) | Err(_) => {
                    let rest = output.finish();
                    return rest.map(|rest| drop(into.write_all(&rest))).err();
                }
                Ok(count) => {
                    output.take(&portion[..count]);
                    if output.is_full() { output.pass(Until::Window) } else { continue }
                }
            },
        };
        match passed {
            // A caller who reads no more is seen by the command, as without a scanner.
            Ok(bytes) => into.write_all(&bytes).ok()?,
            Err(found) => return Some(found),
        }
    }
}

fn put(number: usize, descriptor: BorrowedFd<'_>) -> std::io::Result<()> {
    let put = match number {
        1 => rustix::stdio::dup2_stdout(descriptor),
        _ => rustix::stdio::dup2_stderr(descriptor),
    };
    put.map_err(Into::into)
}

fn same_file(one: BorrowedFd<'_>, other: BorrowedFd<'_>) -> bool {
    let id = |descriptor| rustix::fs::fstat(descriptor).map(|found| (found.st_dev, found.st_ino)).ok();
    id(one).is_some_and(|found| id(other) == Some(found))
}
