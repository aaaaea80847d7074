//! `hutch run` below its argument parsing: one command in one jail, launched by this program itself.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde::Serialize;

use crate::capabilities::Capabilities;
use crate::cgroup::Group;
use crate::channel::Channel;
use crate::error::Error;
use crate::event::{ProcessExit, Reached, Report, Request, Usage};
use crate::init::Init;
use crate::launch::{Launched, Plan, launch};
pub use crate::relay::Captured;
use crate::spec::{Ids, Limits, Process, Spec};
use crate::streams::Streams;
use crate::sys::{self, Consumption};
use crate::watcher::Watcher;

/// Ends this process at once with an exit status. The handlers that libraries of this program have left for its end
/// touch memory which nothing else of a run needs, and the kernel takes it all back anyway. What is to be written to
/// standard output must have been.
pub fn leave(status: u8) -> ! {
    // SAFETY: it does not return, and no destructor has effects outside of this process.
    unsafe { libc::_exit(status.into()) }
}

/// How a command is run.
#[derive(Debug, Clone)]
pub struct RunOptions {
    /// Ends the command after this long: SIGTERM first.
    pub timeout: Option<Duration>,
    /// How long after that SIGTERM everything is killed.
    pub grace: Duration,
    /// Keep standard output and standard error, at most so many bytes of each, instead of passing them through.
    /// Standard input is then empty.
    pub capture: Option<usize>,
}

impl Default for RunOptions {
    fn default() -> Self {
        Self { timeout: None, grace: Duration::from_secs(5), capture: None }
    }
}

/// Receiver of the listeners of a network plan.
pub type Serve<'a> = &'a mut dyn FnMut(Vec<OwnedFd>) -> Result<(), Error>;

/// Why a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Ended {
    /// It exited with this status.
    Exited(i32),
    /// A signal ended it.
    Signaled(i32),
    /// Its time was up.
    TimedOut,
    /// The kernel killed it at its memory limit.
    OutOfMemory,
}

impl Ended {
    /// The exit status that a shell would see: 124 for a timeout, 128 and the signal.
    pub fn status(self) -> i32 {
        match self {
            Self::Exited(status) => status,
            Self::Signaled(signal) => 128 + signal,
            Self::TimedOut => 124,
            Self::OutOfMemory => 128 + libc::SIGKILL,
        }
    }
}

/// How far a command was isolated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Isolation {
    /// Ids inside are of a range of their own outside (not the caller's own).
    pub id_range: bool,
    /// Landlock confines writes too.
    pub landlock: bool,
    /// Limits hold, by cgroups.
    pub cgroup: bool,
}

/// How a run went.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Why the command ended.
    pub ended: Ended,
    /// From the launch to the end of everything inside.
    pub wall: Duration,
    /// CPU time of everything inside.
    pub cpu: Duration,
    /// Peak memory in bytes: of all together with a memory limit, of the largest process without.
    pub memory_peak_bytes: u64,
    /// With [`RunOptions::capture`].
    pub stdout: Option<Captured>,
    /// With [`RunOptions::capture`].
    pub stderr: Option<Captured>,
    /// The jail's isolation.
    pub isolation: Isolation,
}

/// Ids of cgroups made here begin so.
const GROUP_PREFIX: &str = "run-";
/// Leftovers of that prefix are swept when they are empty and older than this: younger ones may be about to be
/// entered.
const LEFTOVER_AGE: Duration = Duration::from_secs(10);

/// Signals that are passed on to the command.
const FORWARDED: [libc::c_int; 6] =
    [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGUSR1, libc::SIGUSR2];

/// Runs `process` in a jail made for it, and waits until everything inside is gone.
///
/// To be called by a program with a single thread. While it runs, signals that ask a program to end go to the
/// command. If the caller is killed, so is everything inside.
///
/// # Errors
/// [`Error::NotStarted`] when the command cannot be executed (its `errno` distinguishes a missing program from one that may
/// not be run); [`Error::LimitRefused`] for a limit that cannot be enforced here; else the step of making the jail
/// that failed.
pub fn run(spec: &Spec, process: &Process, options: &RunOptions) -> Result<Outcome, Error> {
    run_with_listeners(spec, process, options, &mut |_| Ok(()))
}

/// As [`run()`], and gives the listeners of the network plan, if there are any, to `serve`, which may start threads and
/// processes. They are open before the command starts; connections wait until they are accepted.
///
/// # Errors
/// As [`run()`]. When `serve` fails, the jail is killed, and the error is that of `serve`.
pub fn run_with_listeners(
    spec: &Spec,
    process: &Process,
    options: &RunOptions,
    serve: Serve<'_>,
) -> Result<Outcome, Error> {
    spec.check()?;
    process.check()?;
    let began = Instant::now();
    let limited = LimitedRun::start(spec)?;
    let mut streams = Streams::open(options.capture, owner_inside(spec, process))?;
    let wanted = {
        let mut signals = FORWARDED.to_vec();
        signals.push(libc::SIGWINCH);
        sys::signal_set(&signals)
    };
    let mask = sys::block_signals(&wanted);
    let outcome =
        launch_and_follow(spec, process, options, (&mut streams, serve), &limited, (&wanted, began));
    streams.restore();
    sys::set_signal_mask(&mask);
    drop(limited);
    outcome.map_err(|error| match error {
        Error::NotStarted { errno, reason, .. } => {
            Error::NotStarted { program: process.argv[0].clone(), errno, reason }
        }
        other => other,
    })
}

/// Uid and gid outside of who runs inside, where they are not the caller's own.
fn owner_inside(spec: &Spec, process: &Process) -> Option<(u32, u32)> {
    match spec.ids {
        Ids::Range { base } => Some((base + process.user.uid % 65536, base + process.user.gid % 65536)),
        Ids::Caller => None,
    }
}

fn launch_and_follow(
    spec: &Spec,
    process: &Process,
    options: &RunOptions,
    (streams, serve): (&mut Streams, Serve<'_>),
    limited: &LimitedRun,
    (signals, began): (&libc::sigset_t, Instant),
) -> Result<Outcome, Error> {
    let signals = sys::signal_descriptor(signals)
        .map_err(|e| Error::Channel { step: "signalfd".into(), errno: e.into() })?;
    let mut what = process.clone();
    what.terminal = streams.is_terminal();
    let keep = streams.handed_over();
    let plan = Plan { spec, join: None, group: limited.group(), keep: &keep };
    let inside = |channel, reached| single(&what, spec.capabilities, streams, channel, reached);
    let mut launched = launch(&plan, inside)?;
    let served = serve(std::mem::take(&mut launched.listeners));
    if let Err(error) = served.and_then(|()| streams.launched(&launched.channel)) {
        sys::signal_pidfd(launched.pidfd.as_fd(), libc::SIGKILL);
        let _ = sys::wait(launched.pid, true);
        return Err(error);
    }
    let mut follow = Follow {
        launched: &launched,
        signals: &signals,
        // A time beyond the end of the clock is no deadline.
        deadline: options.timeout.and_then(|timeout| began.checked_add(timeout)),
        grace: options.grace,
        timed_out: false,
    };
    let report = follow.until_end(streams)?;
    let timed_out = follow.timed_out;
    let consumption = reap(&launched, streams)?;
    let (reached, exit) = match report {
        Some(Report::Ended(reached, exit)) => (Some(reached), exit),
        Some(Report::Failed(error)) => return Err(error),
        Some(Report::Ready(_) | Report::Network) => {
            return Err(Error::Message("an init of the wrong kind".into()));
        }
        // Killed from outside, or for memory, or because the time was up.
        None => (None, ProcessExit::Signal(libc::SIGKILL)),
    };
    let usage = limited.usage();
    let ended = match exit {
        _ if timed_out => Ended::TimedOut,
        ProcessExit::Signal(libc::SIGKILL) if usage.oom_kills > 0 => Ended::OutOfMemory,
        ProcessExit::Code(code) if code == 128 + libc::SIGKILL && usage.oom_kills > 0 => Ended::OutOfMemory,
        ProcessExit::Signal(signal) => Ended::Signaled(signal),
        ProcessExit::Code(code) => Ended::Exited(code),
    };
    let (stdout, stderr) = streams.captured();
    Ok(Outcome {
        ended,
        wall: began.elapsed(),
        cpu: Duration::from_micros(consumption.cpu_micros.max(usage.cpu_micros)),
        memory_peak_bytes: match usage.memory_peak_bytes {
            0 => consumption.memory_peak_bytes,
            peak => peak,
        },
        stdout,
        stderr,
        isolation: Isolation {
            id_range: matches!(spec.ids, Ids::Range { .. }),
            landlock: reached.map_or(crate::landlock::abi().is_some_and(|abi| abi > 1), |r| r.landlock),
            cgroup: limited.group().is_some(),
        },
    })
}

/// Init of a jail of one command. Returns only when something failed.
fn single(
    what: &Process,
    capabilities: Capabilities,
    streams: &Streams,
    channel: Channel,
    reached: Reached,
) -> Error {
    // The launcher hears of a failure on this channel, so it is not moved before all has succeeded.
    let made = streams.make_inside(&channel).and_then(|made| Ok((made, Init::signals()?)));
    match made {
        Ok(((stdio, terminal), signals)) => {
            let mut init = Init::new(channel, signals, Some(capabilities));
            init.start_single(what, stdio, reached);
            // Open until the end, so that the caller sees the terminal close when all inside is gone.
            let _terminal = terminal;
            init.serve()
        }
        Err(error) => {
            let _ = channel.send(&Report::Failed(error.clone()), &[], true);
            error
        }
    }
}

/// Waits until everything inside is gone, so that nothing writes into a workspace after the caller has returned.
fn reap(launched: &Launched, streams: &mut Streams) -> Result<Consumption, Error> {
    let waited =
        sys::wait(launched.pid, true).map_err(|e| Error::Channel { step: "wait".into(), errno: e.into() })?;
    streams.drain()?;
    Ok(waited.map(|(_, _, consumption)| consumption).unwrap_or_default())
}

/// Follows a running command.
struct Follow<'a> {
    launched: &'a Launched,
    signals: &'a OwnedFd,
    deadline: Option<Instant>,
    grace: Duration,
    timed_out: bool,
}

impl Follow<'_> {
    /// Relays streams and signals until init is gone; gives its last report, if it was not killed.
    fn until_end(&mut self, streams: &mut Streams) -> Result<Option<Report>, Error> {
        loop {
            let timeout = self.deadline.map(|deadline| {
                let left = deadline.saturating_duration_since(Instant::now());
                Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() }
            });
            let mut fds = vec![
                // Its end, not its report: the report waits on the channel by then, and one wake-up is saved.
                PollFd::new(&self.launched.pidfd, PollFlags::IN),
                PollFd::from_borrowed_fd(self.signals.as_fd(), PollFlags::IN),
            ];
            let relayed = streams.interest(&mut fds);
            match poll(&mut fds, timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => return Err(Error::Channel { step: "poll".into(), errno: e.into() }),
            }
            let ready: Vec<PollFlags> = fds.iter().map(PollFd::revents).collect();
            drop(fds);
            if !ready[0].is_empty() {
                return match self.launched.channel.try_receive() {
                    Ok(message) => message.map(|message| message.decode()).transpose(),
                    Err(error) if Channel::is_empty(&error) => Ok(None),
                    Err(error) => Err(error),
                };
            }
            if !ready[1].is_empty() {
                self.pass_on_signals(streams);
            }
            streams.relay(&relayed, &ready[2..])?;
            if self.deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                self.time_is_up();
            }
        }
    }

    fn pass_on_signals(&self, streams: &Streams) {
        while let Some(signal) = sys::next_signal(self.signals.as_fd()) {
            if signal == libc::SIGWINCH {
                streams.resize();
            } else {
                self.send(signal);
            }
        }
    }

    fn send(&self, signal: libc::c_int) {
        // A full channel or one that is closed belongs to an init that is busy or gone; the poll sees the latter.
        let _ = self.launched.channel.send(&Request::Signal { process: 1, signal }, &[], false);
    }

    fn time_is_up(&mut self) {
        if self.timed_out {
            sys::signal_pidfd(self.launched.pidfd.as_fd(), libc::SIGKILL);
            self.deadline = None;
        } else {
            self.timed_out = true;
            self.send(libc::SIGTERM);
            self.deadline = Some(Instant::now() + self.grace);
        }
    }
}

/// The cgroups of a run, and who removes them if this program is killed.
struct LimitedRun(Option<(Group, Watcher)>);

impl LimitedRun {
    fn start(spec: &Spec) -> Result<Self, Error> {
        if spec.limits == Limits::default() {
            return Ok(Self(None));
        }
        // What a run left that was killed together with its watcher. Not being able to is no reason not to run.
        let _ = crate::cgroup::sweep_empty(GROUP_PREFIX, LEFTOVER_AGE);
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let id = format!("{GROUP_PREFIX}{}-{}", std::process::id(), now.as_nanos());
        let group = Group::create(&id, &spec.limits)?;
        match Watcher::start(&group) {
            Ok(watcher) => Ok(Self(Some((group, watcher)))),
            Err(error) => {
                let _ = group.kill_and_remove();
                Err(error)
            }
        }
    }

    fn group(&self) -> Option<&Group> {
        self.0.as_ref().map(|(group, _)| group)
    }

    fn usage(&self) -> Usage {
        self.group().and_then(|group| group.usage().ok()).unwrap_or_default()
    }
}
