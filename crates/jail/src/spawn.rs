//! Starting a process inside a jail, from its init.
//!
//! The first process shares init's memory until it has executed its program (as `vfork` does): nothing is copied, and
//! what failed is known at once. Init waits for that, which is safe while nothing else runs inside. Any later process
//! could be stopped by one that runs already, and init with it; so it gets a copy of the memory, init does not wait, and
//! a pipe reports the result.

use std::cell::Cell;
use std::ffi::{CString, c_char, c_int, c_void};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Gid, Uid};

use crate::capabilities::Capabilities;
use crate::error::Error;
use crate::spec::Process;
use crate::{privileges, sys};

/// Where programs are looked for when the environment has no `PATH`.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Enough for a handful of system calls; it is used before `execve` only.
const STACK_BYTES: usize = 64 * 1024;

/// The descriptor by which a process that does not share init's memory reports its failure.
const REPORT: RawFd = 3;

/// Where a start failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Step {
    Streams,
    Terminal,
    User,
    Privileges,
    WorkingDirectory,
    Execute,
}

const STEPS: [Step; 6] =
    [Step::Streams, Step::Terminal, Step::User, Step::Privileges, Step::WorkingDirectory, Step::Execute];

/// Why a process did not start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NotStarted {
    pub(crate) errno: i32,
    pub(crate) reason: String,
}

/// All that the child needs, made before it exists, because it must not allocate.
struct Prepared<'a> {
    process: &'a Process,
    programs: Vec<CString>,
    arguments: Vec<*const c_char>,
    environment: Vec<*const c_char>,
    directory: CString,
    groups: Vec<Gid>,
    stdio: [RawFd; 3],
    /// Where a failure is reported; closed when the program runs.
    report: Option<RawFd>,
    mask: &'a libc::sigset_t,
    confined: Option<Capabilities>,
    failure: Cell<Option<(Step, Errno)>>,
}

/// A process that has not executed its program yet, or could not.
#[derive(Debug)]
pub(crate) struct Starting {
    pub(crate) pid: u32,
    process: Process,
    outcome: OwnedFd,
}

impl Starting {
    /// Readable when the outcome is known.
    pub(crate) fn outcome(&self) -> &OwnedFd {
        &self.outcome
    }

    /// Success of the start, or the reason of its failure. `None` when not known yet. A process that was killed
    /// before counts as one that ran.
    pub(crate) fn settled(&self) -> Option<Result<(), NotStarted>> {
        let mut failure = [0; 5];
        match rustix::io::read(&self.outcome, &mut failure) {
            Ok(5) => {
                let [step, errno @ ..] = failure;
                let step = STEPS.get(usize::from(step)).copied().unwrap_or(Step::Execute);
                let errno = Errno::from_raw_os_error(i32::from_ne_bytes(errno));
                let reason = describe(&self.process, step, errno);
                Some(Err(NotStarted { errno: errno.raw_os_error(), reason }))
            }
            Err(Errno::AGAIN | Errno::INTR) => None,
            _ => Some(Ok(())),
        }
    }
}

/// Starts `process` with `stdio` as its descriptors 0 to 2 and `mask` as its blocked signals; gives its pid when it runs.
/// `confined` has the capabilities of user 0, where the process must not keep those of init. Only for the first process of
/// a jail.
pub(crate) fn start(
    process: &Process,
    stdio: [RawFd; 3],
    mask: &libc::sigset_t,
    confined: Option<Capabilities>,
) -> Result<u32, NotStarted> {
    with_prepared(process, stdio, mask, confined, None, |prepared| {
        // Not zeroed: only the pages that it uses are touched.
        let mut stack = Vec::<u8>::with_capacity(STACK_BYTES);
        let top = stack.spare_capacity_mut().as_mut_ptr_range().end.cast::<u8>();
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        // SAFETY: the stack is ours and large enough; `prepared` outlives the child's use of it, since CLONE_VFORK
        // suspends this thread, the only one, until the child has executed its program or ended.
        let pid = unsafe {
            let top = top.sub(top as usize % 16);
            libc::clone(child, top.cast(), flags, std::ptr::from_ref(prepared).cast_mut().cast())
        };
        if pid < 0 {
            return Err(no_process(last_errno()));
        }
        match prepared.failure.get() {
            None => Ok(pid as u32),
            Some((step, errno)) => {
                // It has exited; only this process may reap it.
                let _ = sys::wait(pid, true);
                Err(NotStarted { errno: errno.raw_os_error(), reason: describe(process, step, errno) })
            }
        }
    })
}

/// Begins to start a further process. Never waits for it.
pub(crate) fn begin(
    process: &Process,
    stdio: [RawFd; 3],
    mask: &libc::sigset_t,
    confined: Option<Capabilities>,
) -> Result<Starting, NotStarted> {
    let flags = PipeFlags::CLOEXEC | PipeFlags::NONBLOCK;
    let (outcome, report) = pipe_with(flags).map_err(no_process)?;
    with_prepared(process, stdio, mask, confined, Some(report.as_raw_fd()), |prepared| {
        // SAFETY: init has one thread.
        match unsafe { sys::fork() }.map_err(no_process)? {
            0 => {
                let (step, errno) = prepared.run();
                let [a, b, c, d] = errno.raw_os_error().to_ne_bytes();
                // SAFETY: the descriptor of the report is where `streams` put it, or where it was before that failed.
                // The process ends without running anything of init's.
                unsafe {
                    let report = if step == Step::Streams { report.as_raw_fd() } else { REPORT };
                    libc::write(report, [step as u8, a, b, c, d].as_ptr().cast(), 5);
                    libc::_exit(127)
                }
            }
            pid => Ok(Starting { pid: pid as u32, process: process.clone(), outcome }),
        }
    })
}

fn no_process(errno: Errno) -> NotStarted {
    let reason = format!("cannot make a process: {}", std::io::Error::from(errno));
    NotStarted { errno: errno.raw_os_error(), reason }
}

/// Makes everything that the child needs, and hands it to `start`.
fn with_prepared<T>(
    process: &Process,
    stdio: [RawFd; 3],
    mask: &libc::sigset_t,
    confined: Option<Capabilities>,
    report: Option<RawFd>,
    start: impl FnOnce(&Prepared<'_>) -> Result<T, NotStarted>,
) -> Result<T, NotStarted> {
    let invalid = |e: Error| NotStarted { errno: libc::EINVAL, reason: e.to_string() };
    process.check().map_err(invalid)?;
    let text = |bytes: &[u8]| {
        CString::new(bytes).map_err(|_| NotStarted { errno: libc::EINVAL, reason: "NUL byte".into() })
    };
    let arguments = process.argv.iter().map(|a| text(a.as_bytes())).collect::<Result<Vec<_>, _>>()?;
    let environment = process.env.iter().map(|(key, value)| text(format!("{key}={value}").as_bytes()));
    let environment = environment.collect::<Result<Vec<_>, _>>()?;
    start(&Prepared {
        process,
        programs: candidates(process).iter().map(|p| text(p.as_bytes())).collect::<Result<_, _>>()?,
        arguments: pointers(&arguments),
        environment: pointers(&environment),
        directory: text(process.cwd.as_os_str().as_encoded_bytes())?,
        groups: process.user.groups.iter().map(|&g| Gid::from_raw(g)).collect(),
        stdio,
        report,
        mask,
        confined,
        failure: Cell::new(None),
    })
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|s| s.as_ptr()).chain([std::ptr::null()]).collect()
}

/// Where the program may lie, in order.
fn candidates(process: &Process) -> Vec<String> {
    let program = &process.argv[0];
    if program.contains('/') {
        return vec![program.clone()];
    }
    let path = process.env.iter().find(|(key, _)| key == "PATH").map_or(DEFAULT_PATH, |(_, v)| v.as_str());
    let folder = |folder: &str| if folder.is_empty() { ".".to_owned() } else { folder.to_owned() };
    path.split(':').map(|f| format!("{}/{program}", folder(f))).collect()
}

fn describe(process: &Process, step: Step, errno: Errno) -> String {
    let error = std::io::Error::from(errno);
    match step {
        Step::Streams => format!("cannot set up standard streams: {error}"),
        Step::Terminal => format!("cannot take the terminal: {error}"),
        Step::User => format!("cannot become user {}:{}: {error}", process.user.uid, process.user.gid),
        Step::Privileges => format!("cannot give up privileges: {error}"),
        Step::WorkingDirectory => format!("working directory {}: {error}", process.cwd.display()),
        Step::Execute if errno == Errno::NOENT && !process.argv[0].contains('/') => {
            "command not found".to_owned()
        }
        Step::Execute if errno == Errno::NOENT && exists(process) => {
            format!(
                "{error}: not the program, which is there, but its interpreter: see its first line, or `file`"
            )
        }
        Step::Execute => error.to_string(),
    }
}

/// Returns true if the file of a program is there. Nothing but the text of an error depends on it.
fn exists(process: &Process) -> bool {
    let program = &process.argv[0];
    let path = match program.starts_with('/') {
        true => program.clone(),
        false => format!("{}/{program}", process.cwd.display()),
    };
    rustix::fs::stat(path).is_ok()
}

/// The child. It runs on a stack of its own in init's memory, so it allocates nothing and returns only to end.
extern "C" fn child(prepared: *mut c_void) -> c_int {
    // SAFETY: this is what `start` passed; it lives until the child is done with it.
    let prepared = unsafe { &*prepared.cast::<Prepared<'_>>() };
    let failure = prepared.run();
    prepared.failure.set(Some(failure));
    127
}

impl Prepared<'_> {
    /// Becomes the program. Returns only when something failed.
    fn run(&self) -> (Step, Errno) {
        if let Err(errno) = self.streams() {
            return (Step::Streams, errno);
        }
        if self.process.terminal {
            // SAFETY: the argument is an integer: do not steal the terminal from another session.
            if unsafe { libc::ioctl(0, libc::TIOCSCTTY, 0) } < 0 {
                return (Step::Terminal, last_errno());
            }
        }
        let uid = self.process.user.uid;
        if let Some(granted) = self.confined
            && let Err(errno) = privileges::leave_to_become(uid, granted)
        {
            return (Step::Privileges, errno);
        }
        if let Err(errno) = self.become_user() {
            return (Step::User, errno);
        }
        if let Some(granted) = self.confined
            && let Err(errno) = privileges::leave_to_user(uid, granted)
        {
            return (Step::Privileges, errno);
        }
        // Rust's runtime ignores SIGPIPE; programs expect not to inherit that.
        // SAFETY: handlers are not shared (no CLONE_SIGHAND), so this is the child's own.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
        sys::set_signal_mask(self.mask);
        // SAFETY: a C string.
        if unsafe { libc::chdir(self.directory.as_ptr()) } < 0 {
            return (Step::WorkingDirectory, last_errno());
        }
        (Step::Execute, self.execute())
    }

    fn streams(&self) -> Result<(), Errno> {
        // A session of its own: a process group to signal, and no terminal but the one it is given.
        // SAFETY: no arguments.
        unsafe { libc::setsid() };
        for (wanted, &fd) in self.stdio.iter().enumerate() {
            // SAFETY: integers; the sources are above 2 or in their place already.
            if fd != wanted as RawFd && unsafe { libc::dup2(fd, wanted as RawFd) } < 0 {
                return Err(last_errno());
            }
        }
        let Some(report) = self.report else { return sys::close_range(3, libc::c_uint::MAX) };
        if report != REPORT {
            // SAFETY: integers; all sources are in their places by now.
            if unsafe { libc::dup3(report, REPORT, libc::O_CLOEXEC) } < 0 {
                return Err(last_errno());
            }
        }
        sys::close_range(REPORT as libc::c_uint + 1, libc::c_uint::MAX)
    }

    fn become_user(&self) -> Result<(), Errno> {
        let user = &self.process.user;
        if !self.groups.is_empty() {
            rustix::thread::set_thread_groups(&self.groups)?;
        }
        if user.gid != 0 {
            let gid = Gid::from_raw(user.gid);
            rustix::thread::set_thread_res_gid(gid, gid, gid)?;
        }
        if user.uid != 0 {
            let uid = Uid::from_raw(user.uid);
            rustix::thread::set_thread_res_uid(uid, uid, uid)?;
        }
        Ok(())
    }

    /// Tries the candidates as `execvp` does: what is not there is passed over, what may not be executed is
    /// remembered.
    fn execute(&self) -> Errno {
        let mut answer = Errno::NOENT;
        for program in &self.programs {
            // SAFETY: C strings, and null-terminated arrays of them.
            unsafe { libc::execve(program.as_ptr(), self.arguments.as_ptr(), self.environment.as_ptr()) };
            match last_errno() {
                Errno::NOENT | Errno::NOTDIR => {}
                Errno::ACCESS => answer = Errno::ACCESS,
                other => return other,
            }
        }
        answer
    }
}

fn last_errno() -> Errno {
    // SAFETY: glibc gives the address of this thread's errno.
    Errno::from_raw_os_error(unsafe { *libc::__errno_location() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::User;

    fn process(argv: &[&str], env: &[(&str, &str)], cwd: &str) -> Process {
        Process {
            argv: argv.iter().map(|a| (*a).to_owned()).collect(),
            env: env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
            cwd: cwd.into(),
            terminal: false,
            user: User::default(),
        }
    }

    #[test]
    fn a_program_is_looked_up_on_the_path_it_is_given() {
        let on = |path| candidates(&process(&["x"], &[("PATH", path)], "/"));
        assert_eq!(on("/a:/b"), ["/a/x", "/b/x"]);
        assert_eq!(on("/a::"), ["/a/x", "./x", "./x"]);
        assert_eq!(candidates(&process(&["./x"], &[("PATH", "/a")], "/")), ["./x"]);
        assert!(candidates(&process(&["x"], &[], "/")).contains(&"/usr/bin/x".to_owned()));
    }

    #[test]
    fn failed_start_reports_its_errno() {
        let mask = sys::signal_set(&[]);
        let start = |process: &Process| start(process, [0, 1, 2], &mask, None).unwrap_err();
        let begun = begin(&process(&["no-such-program"], &[], "/"), [0, 1, 2], &mask, None).unwrap();
        sys::wait(begun.pid as i32, true).unwrap();
        let later = begun.settled().unwrap().unwrap_err();
        assert_eq!((later.errno, later.reason.as_str()), (libc::ENOENT, "command not found"));
        let missing = start(&process(&["no-such-program"], &[], "/"));
        assert_eq!((missing.errno, missing.reason.as_str()), (libc::ENOENT, "command not found"));
        assert_eq!(start(&process(&["/etc/passwd"], &[], "/")).errno, libc::EACCES);
        let nowhere = start(&process(&["true"], &[], "/no/such/folder"));
        assert_eq!(nowhere.errno, libc::ENOENT);
        assert!(nowhere.reason.contains("/no/such/folder"), "{nowhere:?}");
    }

    #[test]
    fn a_program_gets_its_streams_and_environment_and_its_status_comes_back() {
        use std::io::Read;
        use std::os::fd::AsRawFd;
        let (mut reader, writer) = std::io::pipe().unwrap();
        let mask = sys::signal_set(&[]);
        let process = process(&["sh", "-c", "echo $K $0 x; exit 7"], &[("K", "v")], "/");
        let stdio = [0, writer.as_raw_fd(), 2];
        let pid = start(&process, stdio, &mask, None).unwrap();
        drop(writer);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "v sh x\n");
        let (_, status, _) = sys::wait(pid as i32, true).unwrap().unwrap();
        assert_eq!(libc::WEXITSTATUS(status), 7);
    }
}
