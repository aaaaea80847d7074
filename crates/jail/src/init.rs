//! Process 1 inside a jail: starts processes, signals them, reaps everything, reports exit statuses.
//!
//! It is a fork of the launcher and runs no program of its own, so it costs a few private pages. It exits
//! with its control channel, and the kernel then kills everything inside. From inside it can be neither
//! killed (the kernel protects process 1) nor traced nor read (it is not dumpable).

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::capabilities::Capabilities;
use crate::channel::{Channel, Received};
use crate::error::Error;
use crate::event::{Event, ProcessExit, Reached, Report, Request};
use crate::spawn::{self, NotStarted, Starting};
use crate::spec::Process;
use crate::sys;

/// Maximum processes that init tracks at once (their descendants are not counted: cgroups bound those).
const MAX_PROCESSES: usize = 4096;

/// Maximum events queued for a caller that does not read. Beyond it, requests wait until some are sent.
const MAX_PENDING: usize = 1024;

/// Receiver of events.
enum Audience {
    /// A caller that starts any number of processes.
    Caller,
    /// The launcher, for the single command of the jail, whose exit ends the jail.
    Launcher { process: u64, reached: Reached },
}

/// Progress of a start.
enum Begun {
    Runs(u32),
    Starts(Starting),
}

/// Process 1.
pub(crate) struct Init {
    control: Channel,
    audience: Audience,
    signals: OwnedFd,
    processes: Vec<(u64, u32)>,
    /// Processes that have not executed their programs yet.
    starting: Vec<(u64, Starting)>,
    /// `true` while no process has run inside.
    untouched: bool,
    /// Placeholder processes that init itself stands for.
    held: Vec<u64>,
    pending: VecDeque<Event>,
    /// Capabilities of user 0; `None` if processes keep all of init.
    confined: Option<Capabilities>,
}

impl Init {
    /// Source of notifications about init's children.
    pub(crate) fn signals() -> Result<OwnedFd, Error> {
        let children = sys::signal_set(&[libc::SIGCHLD]);
        sys::block_signals(&children);
        sys::signal_descriptor(&children)
            .map_err(|e| Error::Channel { step: "signalfd".into(), errno: e.into() })
    }

    /// Creates an init that serves the process at the other end of `control`.
    pub(crate) fn new(control: Channel, signals: OwnedFd, confined: Option<Capabilities>) -> Self {
        Self {
            control,
            audience: Audience::Caller,
            signals,
            processes: Vec::new(),
            starting: Vec::new(),
            untouched: true,
            held: Vec::new(),
            pending: VecDeque::new(),
            confined,
        }
    }

    /// Starts the one command of a single-use jail, whose standard streams are descriptors of this process.
    pub(crate) fn start_single(&mut self, what: &Process, stdio: [RawFd; 3], reached: Reached) {
        let process = 1;
        self.audience = Audience::Launcher { process, reached };
        self.spawn(process, what, stdio);
    }

    /// Serves until the control channel closes, or the one command exits. Never returns.
    pub(crate) fn serve(mut self) -> ! {
        loop {
            self.flush();
            // A Pod's init waits most of the time from here on, and a page that it keeps is one for each jail.
            if let Audience::Caller = self.audience {
                sys::give_back_memory();
            }
            let mut interest = PollFlags::empty();
            if self.pending.len() < MAX_PENDING {
                interest |= PollFlags::IN;
            }
            if !self.pending.is_empty() {
                interest |= PollFlags::OUT;
            }
            let mut fds =
                vec![PollFd::new(&self.control, interest), PollFd::new(&self.signals, PollFlags::IN)];
            let outcomes = self.starting.iter().map(|(_, starting)| starting.outcome());
            fds.extend(outcomes.map(|outcome| PollFd::new(outcome, PollFlags::IN)));
            match poll(&mut fds, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => exit(),
            }
            let control = fds[0].revents();
            let signalled = !fds[1].revents().is_empty();
            drop(fds);
            self.settle(None);
            if signalled {
                while sys::next_signal(self.signals.as_fd()).is_some() {}
                self.reap();
            }
            if control.intersects(PollFlags::ERR | PollFlags::HUP) && !control.contains(PollFlags::IN) {
                exit();
            }
            if control.contains(PollFlags::IN) {
                match self.control.try_receive() {
                    Ok(Some(message)) => self.handle(message),
                    Ok(None) => exit(),
                    Err(error) if Channel::is_empty(&error) => {}
                    Err(_) => exit(),
                }
            }
        }
    }

    fn handle(&mut self, message: Received) {
        match message.decode::<Request>() {
            Ok(Request::Spawn { process, what }) => match &message.descriptors[..] {
                [stdin, stdout, stderr] => {
                    let stdio = [stdin.as_raw_fd(), stdout.as_raw_fd(), stderr.as_raw_fd()];
                    self.spawn(process, &what, stdio);
                }
                _ => self.report(Event::NotStarted {
                    process,
                    errno: libc::EBADF,
                    reason: "three descriptors have to come along".into(),
                }),
            },
            Ok(Request::Hold { process }) => {
                self.held.push(process);
                self.report(Event::Started { process, pid: 1 });
            }
            Ok(Request::Signal { process, signal }) => self.signal(process, signal),
            // The caller is of the same build; a process inside a jail cannot send this.
            Err(_) => exit(),
        }
    }

    fn spawn(&mut self, process: u64, what: &Process, stdio: [RawFd; 3]) {
        if self.processes.len() + self.starting.len() >= MAX_PROCESSES {
            let reason = format!("{MAX_PROCESSES} processes run already");
            return self.report(Event::NotStarted { process, errno: libc::EAGAIN, reason });
        }
        let mask = sys::signal_set(&[]);
        let begun = match std::mem::take(&mut self.untouched) {
            true => spawn::start(what, stdio, &mask, self.confined).map(Begun::Runs),
            false => spawn::begin(what, stdio, &mask, self.confined).map(Begun::Starts),
        };
        match begun {
            Ok(Begun::Runs(pid)) => {
                self.processes.push((process, pid));
                self.report(Event::Started { process, pid });
            }
            Ok(Begun::Starts(starting)) => self.starting.push((process, starting)),
            Err(NotStarted { errno, reason }) => self.report(Event::NotStarted { process, errno, reason }),
        }
    }

    /// Records starts that have succeeded or failed: all, or that of this pid, which has exited.
    fn settle(&mut self, ended: Option<u32>) {
        let mut at = 0;
        while at < self.starting.len() {
            let (process, starting) = &self.starting[at];
            let (process, pid) = (*process, starting.pid);
            let outcome = match ended {
                Some(ended) if ended != pid => None,
                // The kernel has closed the other end of the pipe by now.
                Some(_) => Some(starting.settled().unwrap_or(Ok(()))),
                None => starting.settled(),
            };
            match outcome {
                None => at += 1,
                Some(Ok(())) => {
                    self.starting.swap_remove(at);
                    self.processes.push((process, pid));
                    self.report(Event::Started { process, pid });
                }
                Some(Err(NotStarted { errno, reason })) => {
                    self.starting.swap_remove(at);
                    self.report(Event::NotStarted { process, errno, reason });
                }
            }
        }
    }

    fn signal(&mut self, process: u64, signal: i32) {
        if let Some(index) = self.held.iter().position(|held| *held == process) {
            self.held.swap_remove(index);
            let asked = matches!(signal, libc::SIGTERM | libc::SIGINT);
            let exit = if asked { ProcessExit::Code(0) } else { ProcessExit::Signal(signal) };
            return self.report(Event::Exited { process, exit });
        }
        if let Some((_, pid)) = self.processes.iter().find(|(number, _)| *number == process) {
            // SAFETY: no memory is involved. The pid is of a child that is not reaped, so no other process has it.
            unsafe { libc::kill(-(*pid as i32), signal) };
        }
        if let Some((_, starting)) = self.starting.iter().find(|(number, _)| *number == process) {
            // SAFETY: as above. It may not lead a process group of its own yet.
            unsafe { libc::kill(starting.pid as i32, signal) };
        }
    }

    fn reap(&mut self) {
        while let Ok(Some((pid, status, _))) = sys::wait(-1, false) {
            self.settle(Some(pid as u32));
            let known = self.processes.iter().position(|(_, known)| *known == pid as u32);
            if let Some(index) = known {
                let (process, _) = self.processes.swap_remove(index);
                self.report(Event::Exited { process, exit: exit_of(status) });
            }
        }
    }

    fn report(&mut self, event: Event) {
        let Audience::Launcher { process: single, reached } = self.audience else {
            self.pending.push_back(event);
            return;
        };
        let report = match event {
            Event::Exited { process, exit } if process == single => Report::Ended(reached, exit),
            Event::NotStarted { errno, reason, .. } => Report::Failed(Error::NotStarted {
                program: String::new(),
                errno: crate::error::Errno(errno),
                reason,
            }),
            _ => return,
        };
        // Without a reader, events are dropped.
        let _ = self.control.send(&report, &[], true);
        exit();
    }

    /// Sends queued events until the channel is full.
    fn flush(&mut self) {
        while let Some(event) = self.pending.front() {
            match self.control.send(event, &[], false) {
                Ok(true) => drop(self.pending.pop_front()),
                Ok(false) => return,
                Err(_) => exit(),
            }
        }
    }
}

/// Decodes a wait status.
pub(crate) fn exit_of(status: i32) -> ProcessExit {
    if libc::WIFSIGNALED(status) {
        ProcessExit::Signal(libc::WTERMSIG(status))
    } else {
        ProcessExit::Code(libc::WEXITSTATUS(status))
    }
}

/// Exits process 1, which kills everything inside.
fn exit() -> ! {
    // SAFETY: it does not return. Nothing of the launcher whose fork this is may run: no destructors, no handlers.
    unsafe { libc::_exit(0) }
}
