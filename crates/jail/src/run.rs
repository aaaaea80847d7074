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
use crate::relay::WaitForRoom;
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

/// Server of the network of a command. A function that takes listeners is one.
pub trait Serve {
    /// Starts what takes as long as the jail, which is being made. May start processes, and no threads.
    ///
    /// # Errors
    /// Those of the server. The jail is killed.
    fn prepare(&mut self) -> Result<(), Error> {
        Ok(())
    }

    /// Serves the listeners of the network plan, if there are any: they are open before the command starts, which may be
    /// meanwhile. May start threads and processes. Connections wait until they are accepted.
    ///
    /// # Errors
    /// Those of the server. The jail is killed.
    fn serve(&mut self, listeners: Vec<OwnedFd>) -> Result<(), Error>;

    /// Begins to end: the command has ended, and what else runs inside is being killed.
    fn end(&mut self) {}
}

impl<F: FnMut(Vec<OwnedFd>) -> Result<(), Error>> Serve for F {
    fn serve(&mut self, listeners: Vec<OwnedFd>) -> Result<(), Error> {
        self(listeners)
    }
}

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
    fn of(exit: ProcessExit, out_of_memory: bool) -> Ended {
        match exit {
            ProcessExit::Signal(libc::SIGKILL) if out_of_memory => Ended::OutOfMemory,
            ProcessExit::Code(code) if code == 128 + libc::SIGKILL && out_of_memory => Ended::OutOfMemory,
            ProcessExit::Signal(signal) => Ended::Signaled(signal),
            ProcessExit::Code(code) => Ended::Exited(code),
        }
    }

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

/// As [`run()`], with a server of the network.
///
/// # Errors
/// As [`run()`], and those of the server.
pub fn run_with_listeners(
    spec: &Spec,
    process: &Process,
    options: &RunOptions,
    serve: &mut dyn Serve,
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
    (streams, serve): (&mut Streams, &mut dyn Serve),
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
    let mut launched = launch(&plan, inside, || serve.prepare())?;
    let has_network = !launched.listeners.is_empty();
    let served = serve.serve(std::mem::take(&mut launched.listeners));
    let kill = |error: Error| {
        sys::signal_pidfd(launched.pidfd.as_fd(), libc::SIGKILL);
        let _ = sys::wait(launched.pid, true);
        error
    };
    served.and_then(|()| streams.launched(&launched.channel)).map_err(kill)?;
    let mut follow = Follow {
        launched: &launched,
        signals: &signals,
        network: has_network.then_some(serve),
        reported: None,
        // A time beyond the end of the clock is no deadline.
        deadline: options.timeout.and_then(|timeout| began.checked_add(timeout)),
        grace: options.grace,
        timed_out: false,
        signaled: false,
    };
    // Such as output that cannot be written: nothing of the jail may outlive this.
    let report = follow.until_end(streams).map_err(kill)?;
    let (timed_out, deadline) = (follow.timed_out, follow.deadline);
    let is_over = timed_out || follow.signaled;
    let mut wait = WaitForRoom { signals: signals.as_fd(), deadline, is_over };
    let consumption = reap(&launched, streams, &mut wait)?;
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
    let ended = if timed_out { Ended::TimedOut } else { Ended::of(exit, usage.oom_kills > 0) };
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
fn reap(
    launched: &Launched,
    streams: &mut Streams,
    wait: &mut WaitForRoom<'_>,
) -> Result<Consumption, Error> {
    let waited =
        sys::wait(launched.pid, true).map_err(|e| Error::Channel { step: "wait".into(), errno: e.into() })?;
    streams.drain(wait)?;
    Ok(waited.map(|(_, _, consumption)| consumption).unwrap_or_default())
}

/// Follows a running command.
struct Follow<'a> {
    launched: &'a Launched,
    signals: &'a OwnedFd,
    /// Until the command has ended.
    network: Option<&'a mut dyn Serve>,
    /// Report of init, if it was read before the end of init.
    reported: Option<Report>,
    deadline: Option<Instant>,
    grace: Duration,
    timed_out: bool,
    /// A signal was passed on, by which the command may end.
    signaled: bool,
}

impl Follow<'_> {
    /// Relays streams and signals until init is gone; gives its last report, if it was not killed.
    fn until_end(&mut self, streams: &mut Streams) -> Result<Option<Report>, Error> {
        loop {
            let timeout = self.deadline.map(|deadline| {
                let left = deadline.saturating_duration_since(Instant::now());
                Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() }
            });
            let channel = &self.launched.channel;
            let mut fds = vec![
                PollFd::new(&self.launched.pidfd, PollFlags::IN),
                PollFd::from_borrowed_fd(self.signals.as_fd(), PollFlags::IN),
            ];
            let relayed = streams.interest(&mut fds);
            // Only with a network: else the report waits on the channel until the end of init, and one wake-up is saved.
            if self.network.is_some() {
                fds.push(PollFd::from_borrowed_fd(channel.as_fd(), PollFlags::IN));
            }
            match poll(&mut fds, timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => return Err(Error::Channel { step: "poll".into(), errno: e.into() }),
            }
            let ready: Vec<PollFlags> = fds.iter().map(PollFd::revents).collect();
            drop(fds);
            if !ready[0].is_empty() {
                return self.reported.take().map_or_else(|| self.report(), |report| Ok(Some(report)));
            }
            if !ready[1].is_empty() {
                self.pass_on_signals(streams);
            }
            if let Some(reported) = ready.get(2 + relayed.len())
                && !reported.is_empty()
                && let Some(network) = self.network.take()
            {
                self.reported = self.report()?;
                if let Some(Report::Ended(..)) = self.reported {
                    network.end();
                }
            }
            streams.relay(&relayed, &ready[2..])?;
            if self.deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                self.time_is_up();
            }
        }
    }

    /// Returns the report of init, if it has sent one.
    fn report(&self) -> Result<Option<Report>, Error> {
        match self.launched.channel.try_receive() {
            Ok(message) => message.map(|message| message.decode()).transpose(),
            Err(error) if Channel::is_empty(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn pass_on_signals(&mut self, streams: &Streams) {
        while let Some(signal) = sys::next_signal(self.signals.as_fd()) {
            if signal == libc::SIGWINCH {
                streams.resize();
            } else {
                self.signaled = true;
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
