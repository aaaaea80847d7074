//! The warden program itself.

use std::collections::BTreeMap;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::orders::{Answer, Order};
use crate::cgroup::{self, Freezer, Group, Layout};
use crate::channel::{Channel, Received};
use crate::error::Error;
use crate::event::{Report, Usage};
use crate::init::Init;
use crate::launch::{Launched, Plan, launch};
use crate::network::{NetworkPlan, Stock};
use crate::spec::{Limits, Network, Profile, Spec};
use crate::sys;

/// Most jails at once: more than the descriptors of a process allow on most machines.
const MAX_JAILS: usize = 16 * 1024;
/// A jail that does not stand by then is given up: something it needs from the host hangs.
const LAUNCH_TIMEOUT: Duration = Duration::from_secs(10);
/// How long an earlier warden may take to clean up after its caller's death.
const TAKE_OVER_TIMEOUT: Duration = Duration::from_secs(10);
const TAKE_OVER_PAUSE: Duration = Duration::from_millis(5);
/// Longest id of a cgroup.
const MAX_GROUP_ID: usize = 63;

/// One jail, as the warden knows it.
struct Kept {
    number: u64,
    pidfd: OwnedFd,
    group: Option<Group>,
}

/// A jail that stands, for its caller.
struct Made {
    pid: i32,
    pidfd: OwnedFd,
    number: u64,
    freezer: Option<Freezer>,
}

struct Program {
    caller: Channel,
    /// Begins the ids of all cgroups made for this state folder, in this life and others.
    instance: String,
    /// The machine's cgroup hierarchies, read once.
    layout: Layout,
    networks: Stock,
    jails: BTreeMap<i32, Kept>,
    last_number: u64,
    /// Held as long as the warden lives.
    _lock: OwnedFd,
}

/// Serves one caller, who holds the other end of standard input; its only argument is the state folder. It has one
/// thread for all its life.
pub fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let (Some(state), None) = (arguments.next(), arguments.next()) else {
        eprintln!("hutch-warden: started by hutch, with its state folder and a socket as standard input");
        return ExitCode::from(2);
    };
    let input = match rustix::io::dup(rustix::stdio::stdin()) {
        Ok(input) if rustix::net::sockopt::socket_type(&input).is_ok() => input,
        _ => {
            eprintln!("hutch-warden: standard input is not a socket; it is started by hutch");
            return ExitCode::from(2);
        }
    };
    let _ = rustix::io::fcntl_setfd(&input, rustix::io::FdFlags::CLOEXEC);
    let caller = Channel::from_fd(input);
    match Program::start(caller, &PathBuf::from(state)) {
        Ok(mut program) => {
            program.serve();
            ExitCode::SUCCESS
        }
        Err(()) => ExitCode::FAILURE,
    }
}

fn failed(path: &Path, errno: impl Into<crate::error::Errno>) -> Error {
    Error::Source { path: path.to_owned(), errno: errno.into() }
}

impl Program {
    fn start(caller: Channel, state: &Path) -> Result<Self, ()> {
        // It ends when its caller does, not by a signal to a group that it happens to be in.
        let _ = rustix::process::setsid();
        if let Ok(null) = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
            let _ = rustix::stdio::dup2_stdin(&null);
        }
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let maximum = getrlimit(Resource::Nofile).maximum;
        let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
        let prepared = take_over(state).and_then(|(lock, instance)| {
            cgroup::sweep(&format!("{instance}-"))?;
            Ok((lock, instance, Layout::of_this_machine()?, Stock::new()?))
        });
        match prepared {
            Ok((lock, instance, layout, networks)) => {
                caller.send(&Answer::Started, &[], true).map_err(drop)?;
                let jails = BTreeMap::new();
                Ok(Self { caller, instance, layout, networks, jails, last_number: 0, _lock: lock })
            }
            Err(error) => {
                let _ = caller.send(&Answer::Failed(error), &[], true);
                Err(())
            }
        }
    }

    /// Serves until the caller closes its end or dies; then ends all jails.
    fn serve(&mut self) {
        let mask = sys::signal_set(&[libc::SIGCHLD, libc::SIGTERM, libc::SIGINT, libc::SIGHUP]);
        sys::block_signals(&mask);
        // The others stay blocked for good: the end of the caller is the one reason to end.
        let Ok(signals) = sys::signal_descriptor(&sys::signal_set(&[libc::SIGCHLD])) else { return };
        loop {
            let mut fds = [PollFd::new(&self.caller, PollFlags::IN), PollFd::new(&signals, PollFlags::IN)];
            // Namespaces are stocked while there is nothing else to do.
            let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
            let timeout = if self.networks.is_full() { None } else { Some(&now) };
            match poll(&mut fds, timeout) {
                Ok(0) => {
                    self.networks.refill();
                    continue;
                }
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => break,
            }
            let (asked, ended) = (!fds[0].revents().is_empty(), !fds[1].revents().is_empty());
            if ended {
                while sys::next_signal(signals.as_fd()).is_some() {}
                self.reap(false);
            }
            if asked {
                match self.caller.receive() {
                    Ok(Some(message)) => self.obey(message),
                    _ => break,
                }
            }
        }
        self.end_all();
    }

    fn obey(&mut self, mut message: Received) {
        let descriptors = std::mem::take(&mut message.descriptors);
        let answer = match message.decode::<Order>() {
            Ok(Order::Network(plan)) => match self.network(&plan) {
                Ok((namespace, listeners)) => {
                    let fds: Vec<_> =
                        std::iter::once(&namespace).chain(&listeners).map(AsFd::as_fd).collect();
                    // As below.
                    let _ = self.caller.send(&Answer::Network, &fds, true);
                    return;
                }
                Err(error) => Answer::Failed(error),
            },
            Ok(Order::Launch(spec)) => match self.launch(&spec, descriptors) {
                Ok(made) => {
                    let Made { number, freezer, .. } = made;
                    let answer = Answer::Launched { number, pid: made.pid as u32, freezer };
                    // A caller who cannot be answered is gone, which the next poll sees.
                    let _ = self.caller.send(&answer, &[made.pidfd.as_fd()], true);
                    return;
                }
                Err(error) => Answer::Failed(error),
            },
            Ok(Order::Usage(number)) => match self.usage(number) {
                Ok(usage) => Answer::Used(usage),
                Err(error) => Answer::Failed(error),
            },
            Err(error) => Answer::Failed(error),
        };
        let _ = self.caller.send(&answer, &[], true);
    }

    fn usage(&self, number: u64) -> Result<Usage, Error> {
        let kept = self.jails.values().find(|kept| kept.number == number);
        kept.and_then(|kept| kept.group.as_ref()).ok_or(Error::NoGroup)?.usage()
    }

    fn network(&mut self, plan: &NetworkPlan) -> Result<(OwnedFd, Vec<OwnedFd>), Error> {
        plan.check()?;
        self.networks.take(plan)
    }

    fn launch(&mut self, spec: &Spec, descriptors: Vec<OwnedFd>) -> Result<Made, Error> {
        spec.check()?;
        if !matches!(spec.network, Network::Join) {
            return Err(Error::Spec("a warden's jails join a network namespace".into()));
        }
        if self.jails.len() >= MAX_JAILS {
            return Err(Error::Spec(format!("there are {MAX_JAILS} jails already")));
        }
        let mut descriptors = descriptors.into_iter();
        let control = descriptors.next().ok_or_else(|| Error::Message("no control channel".into()))?;
        let join = descriptors.next();
        let number = self.last_number + 1;
        self.last_number = number;
        let (group, freezer) = self.make_group(spec, number)?;
        let plan = Plan {
            spec,
            join: join.as_ref().map(AsFd::as_fd),
            group: group.as_ref(),
            keep: &[control.as_raw_fd()],
        };
        let made = stand(&plan, control).and_then(|launched| {
            // Kept here in case what follows fails; the caller gets its own.
            let Launched { pid, pidfd, .. } = launched;
            match pidfd.try_clone() {
                Ok(kept) => Ok((pid, kept, pidfd)),
                Err(error) => {
                    end(pid, pidfd.as_fd());
                    let step = "descriptor of the new jail".into();
                    Err(Error::Channel { step, errno: error.into() })
                }
            }
        });
        match made {
            Ok((pid, kept, pidfd)) => {
                self.jails.insert(pid, Kept { number, pidfd: kept, group });
                Ok(Made { pid, pidfd, number, freezer })
            }
            Err(error) => {
                remove(group);
                Err(error)
            }
        }
    }

    fn make_group(&self, spec: &Spec, number: u64) -> Result<(Option<Group>, Option<Freezer>), Error> {
        if spec.limits == Limits::default() && !spec.freezable {
            return Ok((None, None));
        }
        let mut id = format!("{}-{number}-{}", self.instance, spec.id);
        id.truncate(MAX_GROUP_ID);
        let mut group = Group::create_in(&self.layout, &id, &spec.limits)?;
        // Its absence weakens nothing; the caller sees `None`.
        let freezer = spec.freezable.then(|| group.make_freezable(&self.layout, &id).ok()).flatten();
        Ok((Some(group), freezer))
    }

    /// Records jails that have ended. With `block`, waits until no jail is left.
    fn reap(&mut self, block: bool) {
        while !(block && self.jails.is_empty()) {
            match sys::wait(-1, block) {
                Ok(Some((pid, ..))) => {
                    if let Some(kept) = self.jails.remove(&pid) {
                        remove(kept.group);
                    }
                }
                _ => return,
            }
        }
    }

    fn end_all(&mut self) {
        for kept in self.jails.values() {
            kept.group.iter().for_each(Group::release);
            sys::signal_pidfd(kept.pidfd.as_fd(), libc::SIGKILL);
        }
        self.reap(true);
    }
}

/// Launches and waits until the jail stands.
fn stand(plan: &Plan<'_>, control: OwnedFd) -> Result<Launched, Error> {
    let confined = (plan.spec.profile == Profile::Native).then_some(plan.spec.capabilities);
    let mut control = Some(control);
    let inside = |channel: Channel, reached| {
        let (Some(control), Ok(signals)) = (control.take(), Init::signals()) else {
            return Error::EndedEarly;
        };
        if channel.send(&Report::Ready(reached), &[], true).is_err() {
            return Error::EndedEarly;
        }
        drop(channel);
        Init::new(Channel::from_fd(control), signals, confined).serve()
    };
    let launched = launch(plan, inside, || Ok(()))?;
    let report = match launched.channel.wait_readable(LAUNCH_TIMEOUT) {
        Ok(true) => launched.channel.receive().and_then(|message| match message {
            Some(message) => message.decode(),
            None => Err(Error::EndedEarly),
        }),
        Ok(false) => {
            Err(Error::Channel { step: "wait for the new jail".into(), errno: Errno::TIMEDOUT.into() })
        }
        Err(error) => Err(error),
    };
    match report {
        Ok(Report::Ready(_)) => Ok(launched),
        other => {
            end(launched.pid, launched.pidfd.as_fd());
            match other {
                Ok(Report::Failed(error)) | Err(error) => Err(error),
                Ok(_) => Err(Error::EndedEarly),
            }
        }
    }
}

fn end(pid: i32, pidfd: BorrowedFd<'_>) {
    sys::signal_pidfd(pidfd, libc::SIGKILL);
    let _ = sys::wait(pid, true);
}

fn remove(group: Option<Group>) {
    if let Some(group) = group {
        // What cannot be removed now is swept at the next start.
        let _ = group.kill_and_remove();
    }
}

/// Waits until an earlier warden of this state folder has ended, and gives the lock and the name of the folder's
/// instance.
fn take_over(state: &Path) -> Result<(OwnedFd, String), Error> {
    std::fs::create_dir_all(state).map_err(|e| failed(state, e))?;
    let path = state.join("warden.lock");
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let lock = rustix::fs::open(&path, flags, Mode::from_raw_mode(0o600)).map_err(|e| failed(&path, e))?;
    let until = Instant::now() + TAKE_OVER_TIMEOUT;
    loop {
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => break,
            Err(Errno::WOULDBLOCK | Errno::INTR) if Instant::now() < until => {
                std::thread::sleep(TAKE_OVER_PAUSE);
            }
            Err(errno) => return Err(failed(&path, errno)),
        }
    }
    let mut name = String::new();
    let mut file = std::fs::File::from(lock);
    file.read_to_string(&mut name).map_err(|e| failed(&path, e))?;
    let valid = name.len() == 9 && name.starts_with('w') && name[1..].bytes().all(|b| b.is_ascii_hexdigit());
    if !valid {
        let mut random = [0_u8; 4];
        std::fs::File::open("/dev/urandom")
            .and_then(|mut source| source.read_exact(&mut random))
            .map_err(|e| failed(Path::new("/dev/urandom"), e))?;
        name = format!("w{:08x}", u32::from_ne_bytes(random));
        file.set_len(0).map_err(|e| failed(&path, e))?;
        rustix::io::pwrite(&file, name.as_bytes(), 0).map_err(|e| failed(&path, e))?;
    }
    Ok((file.into(), name))
}
