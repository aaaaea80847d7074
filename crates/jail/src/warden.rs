//! The caller's side of the warden: a single-threaded program, exec'd once, that forks all jails.

mod orders;
mod program;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::process::{Gid, Pid, PidfdFlags, Uid, pidfd_open};

use self::orders::{Answer, Order};
use crate::cgroup::Freezer;
use crate::channel::Channel;
use crate::error::Error;
use crate::event::{Event, Request, Usage};
use crate::network::NetworkPlan;
use crate::spec::{Ids, Process, Profile, RANGE, Spec, User};
use crate::{streams, sys, terminal};

pub use program::main;

/// Hostile test of orders and answers, from arbitrary bytes.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn any_message(message: &crate::channel::Received) {
    use crate::hostile::same;
    if let Some(Order::Launch(spec)) = same(message)
        && spec.check().is_ok()
    {
        let plain = |mount: &crate::spec::Mount| {
            mount.target.is_absolute()
                && mount.target.components().all(|part| part != std::path::Component::ParentDir)
        };
        assert!(spec.mounts.iter().all(plain), "{spec:?}");
    }
    same::<Answer>(message);
}

/// Maximum start time of the warden; most of it is for waiting until an earlier one exits.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// Standard streams of a process of a jail.
#[derive(Debug)]
pub struct Stdio {
    /// File descriptor 0.
    pub stdin: OwnedFd,
    /// File descriptor 1.
    pub stdout: OwnedFd,
    /// File descriptor 2.
    pub stderr: OwnedFd,
}

/// A network namespace created from a plan.
#[derive(Debug)]
pub struct NetworkNamespace {
    /// The namespace.
    pub namespace: OwnedFd,
    /// The listeners of the plan, in its order.
    pub listeners: Vec<OwnedFd>,
}

/// A running warden. It is thread-safe; jails are launched one at a time.
#[derive(Debug)]
pub struct Warden {
    line: Arc<Line>,
    process: OwnedFd,
    child: Mutex<Child>,
}

/// The channel to the warden: one order and its answer at a time.
#[derive(Debug)]
struct Line(Mutex<Channel>);

impl Line {
    fn ask(&self, order: &Order, descriptors: &[BorrowedFd<'_>]) -> Result<(Answer, Vec<OwnedFd>), Error> {
        // A thread that panicked between order and answer would leave the channel out of step; then no
        // further order is sent.
        let channel = self.0.lock().map_err(|_| Error::WardenEnded)?;
        let gone = |error: Error| match error {
            Error::Channel { .. } => Error::WardenEnded,
            other => other,
        };
        channel.send(order, descriptors, true).map_err(gone)?;
        let answer = channel.receive().map_err(gone)?.ok_or(Error::WardenEnded)?;
        Ok((answer.decode()?, answer.descriptors))
    }
}

impl Warden {
    /// Starts the warden `program`. `state_dir` is a folder of this caller alone, by which the warden finds what an
    /// earlier one left: it waits for that one to end and sweeps up its cgroups. Blocks until that is done.
    pub fn start(program: &Path, state_dir: &Path) -> Result<Self, Error> {
        let failed =
            |error: std::io::Error| Error::WardenStart { program: program.to_owned(), errno: error.into() };
        let (channel, theirs) = Channel::pair()?;
        let mut child = Command::new(program)
            .arg(state_dir)
            .env_clear()
            // Every jail's init is a fork of it: neither the stack of a thread that has ended nor a heap for threads is to stay.
            .env("GLIBC_TUNABLES", "glibc.pthread.stack_cache_size=0:glibc.malloc.arena_max=1")
            .current_dir("/")
            .stdin(theirs.into_fd())
            .stdout(std::process::Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let begun = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())
            .map_err(|e| failed(e.into()))
            .and_then(|process| began(&channel).map(|()| process));
        match begun {
            Ok(process) => {
                let line = Arc::new(Line(Mutex::new(channel)));
                Ok(Self { line, process, child: Mutex::new(child) })
            }
            Err(error) => {
                // It has already exited, or is unusable.
                let _ = child.kill();
                let _ = child.wait();
                Err(error)
            }
        }
    }

    /// Creates the network namespace of a Pod, which the jails of its containers join. It exists as long as a process is
    /// in it or a descriptor of it is open. Blocks 0.1 ms, or 0.5 ms when the warden has none in stock.
    ///
    /// # Errors
    /// [`Error::Spec`] for a plan that breaks a bound; [`Error::Network`] with the step that failed.
    pub fn network(&self, plan: &NetworkPlan) -> Result<NetworkNamespace, Error> {
        plan.check()?;
        let (answer, descriptors) = self.line.ask(&Order::Network(plan.clone()), &[])?;
        match answer {
            Answer::Network if descriptors.len() == 1 + plan.listeners.len() => {
                let mut descriptors = descriptors.into_iter();
                let namespace = descriptors.next().ok_or(Error::EndedEarly)?;
                Ok(NetworkNamespace { namespace, listeners: descriptors.collect() })
            }
            Answer::Failed(error) => Err(error),
            _ => Err(Error::Message("the warden answered something else".into())),
        }
    }

    /// Creates a jail in a network namespace; its description has [`crate::Network::Join`]. Blocks 1 to 2 ms.
    pub fn launch(&self, spec: &Spec, network: BorrowedFd<'_>) -> Result<Jail, Error> {
        spec.check()?;
        let (control, theirs) = Channel::pair()?;
        let order = Order::Launch(Box::new(spec.clone()));
        let (answer, mut descriptors) = self.line.ask(&order, &[theirs.as_fd(), network])?;
        match answer {
            Answer::Launched { number, pid, freezer } => {
                let Some(process) = descriptors.pop() else {
                    return Err(Error::Message("descriptors are missing".into()));
                };
                let owner = match (spec.profile, spec.ids) {
                    (Profile::Native, Ids::Range { base }) => Some(base),
                    _ => None,
                };
                Ok(Jail {
                    id: spec.id.clone(),
                    number,
                    init_pid: pid,
                    control,
                    process,
                    owner,
                    freezer,
                    last_process: AtomicU64::new(0),
                    line: Arc::clone(&self.line),
                })
            }
            Answer::Failed(error) => Err(error),
            _ => Err(Error::Message("the warden answered something else".into())),
        }
    }

    /// Readable when the warden has died (a pidfd).
    pub fn ended(&self) -> BorrowedFd<'_> {
        self.process.as_fd()
    }
}

/// Waits for the warden's first message.
fn began(channel: &Channel) -> Result<(), Error> {
    if !channel.wait_readable(START_TIMEOUT)? {
        let errno = rustix::io::Errno::TIMEDOUT.into();
        return Err(Error::Channel { step: "wait for the warden".into(), errno });
    }
    match channel.receive()?.ok_or(Error::WardenEnded)?.decode()? {
        Answer::Started => Ok(()),
        Answer::Failed(error) => Err(error),
        _ => Err(Error::Message("the warden began with an answer".into())),
    }
}

impl Drop for Warden {
    /// Stops the warden, and with it all jails; waits until their cgroups are removed too. A [`Jail`] that
    /// outlives this only reports its end.
    fn drop(&mut self) {
        if let Ok(channel) = self.line.0.lock() {
            let _ = rustix::net::shutdown(&*channel, rustix::net::Shutdown::Both);
        }
        if let Ok(child) = self.child.get_mut() {
            let _ = child.wait();
        }
    }
}

/// One jail. Dropping it kills everything inside.
#[derive(Debug)]
pub struct Jail {
    id: String,
    number: u64,
    init_pid: u32,
    control: Channel,
    process: OwnedFd,
    /// First id outside, where ids are mapped.
    owner: Option<u32>,
    freezer: Option<Freezer>,
    last_process: AtomicU64,
    line: Arc<Line>,
}

impl Jail {
    /// The id of its description.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Process id of its init in the outer pid namespace.
    pub fn init_pid(&self) -> u32 {
        self.init_pid
    }

    /// Requests a process. The number is unique in the jail; [`Event::Started`] or [`Event::NotStarted`] follows.
    ///
    /// Ownership of pipes and terminals among `stdio` passes to the user inside, so that programs can reopen
    /// them (`/dev/stdout`).
    ///
    /// # Errors
    /// [`Error::Busy`] when the jail accepts no request at the moment: nothing was done, and a later call may
    /// succeed. It never waits.
    pub fn spawn(&self, process: &Process, stdio: &Stdio) -> Result<u64, Error> {
        process.check()?;
        let descriptors = [stdio.stdin.as_fd(), stdio.stdout.as_fd(), stdio.stderr.as_fd()];
        if let Some(base) = self.owner {
            let owner = (base + process.user.uid % RANGE, base + process.user.gid % RANGE);
            for fd in descriptors {
                streams::give_pipe(fd, owner);
            }
            if process.terminal {
                let owner = (Uid::from_raw(owner.0), Gid::from_raw(owner.1));
                let _ = rustix::fs::fchown(&stdio.stdin, Some(owner.0), Some(owner.1));
            }
        }
        let number = self.last_process.fetch_add(1, Ordering::Relaxed) + 1;
        let request = Request::Spawn { process: number, what: process.clone() };
        self.request(&request, &descriptors)?;
        Ok(number)
    }

    /// Requests a placeholder process that only waits; SIGTERM and SIGINT end it with status 0. Init stands
    /// for it, so it needs no process of its own.
    ///
    /// # Errors
    /// When the jail has ended; [`Error::Busy`] as for [`Jail::spawn`].
    pub fn hold(&self) -> Result<u64, Error> {
        let number = self.last_process.fetch_add(1, Ordering::Relaxed) + 1;
        self.request(&Request::Hold { process: number }, &[])?;
        Ok(number)
    }

    /// A terminal that has a path inside (`/dev/pts/N`) and belongs to `user`. Returns the master end, for
    /// output and input, and the slave end for [`Jail::spawn`] with [`Process::terminal`]. Only for
    /// [`Profile::Native`], and only as root.
    pub fn terminal(&self, user: &User) -> Result<(OwnedFd, OwnedFd), Error> {
        const DEVPTS: i64 = 0x1cd1;
        let failed = |step: &'static str| {
            move |errno: rustix::io::Errno| Error::Terminal { step: step.into(), errno: errno.into() }
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(format!("/proc/{}/root", self.init_pid), flags, Mode::empty())
            .map_err(failed("find the root"))?;
        // No process inside can replace this path: it is a mount, and symlinks are not followed.
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let master = rustix::fs::openat2(&root, "dev/pts/ptmx", flags, Mode::empty(), resolve)
            .map_err(failed("open one inside"))?;
        let kind = rustix::fs::fstatfs(&master).map_err(failed("look at it"))?.f_type;
        // A process id can be reused, but not before this jail has ended.
        if kind != DEVPTS || self.has_ended() {
            return Err(failed("open one inside")(rustix::io::Errno::NODEV));
        }
        let slave = terminal::other_end(&master)?;
        if let Some(base) = self.owner {
            let (uid, gid) = (Uid::from_raw(base + user.uid % RANGE), Gid::from_raw(base + user.gid % RANGE));
            rustix::fs::fchown(&slave, Some(uid), Some(gid)).map_err(failed("give it away"))?;
        }
        Ok((master, slave))
    }

    fn has_ended(&self) -> bool {
        let mut fds = [PollFd::new(&self.process, PollFlags::IN)];
        let none = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut fds, Some(&none)).is_ok_and(|ready| ready > 0)
    }

    /// Sends a signal to the process group of a process. An already exited one is not an error.
    ///
    /// # Errors
    /// When the jail has ended; [`Error::Busy`] as for [`Jail::spawn`].
    pub fn signal(&self, process: u64, signal: i32) -> Result<(), Error> {
        self.request(&Request::Signal { process, signal }, &[])
    }

    fn request(&self, request: &Request, descriptors: &[BorrowedFd<'_>]) -> Result<(), Error> {
        match self.control.send(request, descriptors, false)? {
            true => Ok(()),
            false => Err(Error::Busy),
        }
    }

    /// Returns the next event, or `None` when none is queued. Never blocks.
    pub fn try_event(&self) -> Result<Option<Event>, Error> {
        match self.control.try_receive() {
            Ok(Some(message)) => message.decode().map(Some),
            Ok(None) => Ok(Some(Event::Ended)),
            Err(error) if Channel::is_empty(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Its resource usage so far. Fails with [`Error::NoGroup`] when it was launched without limits, or has ended.
    pub fn usage(&self) -> Result<Usage, Error> {
        match self.line.ask(&Order::Usage(self.number), &[])?.0 {
            Answer::Used(usage) => Ok(usage),
            Answer::Failed(error) => Err(error),
            _ => Err(Error::Message("the warden answered something else".into())),
        }
    }

    /// Returns the freezer of everything inside, when [`Spec::freezable`] is set and the machine supports it.
    pub fn freezer(&self) -> Option<&Freezer> {
        self.freezer.as_ref()
    }

    /// Kills everything inside, frozen or not. The warden removes the cgroups.
    pub fn kill(&self) {
        self.freezer.iter().for_each(Freezer::release);
        sys::signal_pidfd(self.process.as_fd(), libc::SIGKILL);
    }
}

impl Drop for Jail {
    fn drop(&mut self) {
        self.kill();
    }
}

impl AsFd for Jail {
    /// File descriptor that is readable when an event is queued.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }
}
