//! Handle of a jail, which delivers the jail's events to the futures that wait for them.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use hutch_jail::{Event, Jail, PageOut, Process, ProcessExit, Stdio, Usage};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::StartError;
use crate::stdio::register;

/// A jail and the futures that wait for its processes. Dropped, it kills the jail.
pub(crate) struct JailHandle {
    jail: Jail,
    waiting: Mutex<Waiting>,
    listener: Mutex<Option<tokio::task::AbortHandle>>,
}

#[derive(Default)]
struct Waiting {
    processes: HashMap<u64, Pending>,
    over: bool,
}

struct Pending {
    started: Option<oneshot::Sender<Result<u32, NotStarted>>>,
    exited: oneshot::Sender<ProcessExit>,
}

/// Why a process did not start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NotStarted {
    pub(crate) errno: i32,
    pub(crate) reason: String,
}

/// A process that was started on request.
pub(crate) struct Spawned {
    pub(crate) number: u64,
    started: oneshot::Receiver<Result<u32, NotStarted>>,
    exited: oneshot::Receiver<ProcessExit>,
}

/// Maximum time that all processes of a jail take to freeze. A process that waits for a disk may take longer.
const FREEZE_LIMIT: Duration = Duration::from_secs(2);
/// Why a jail cannot be frozen.
const WITHOUT_FREEZER: &str =
    "it cannot be frozen: its Pod must start with the annotation hutch.dev/idle-after, which may be empty";
/// Maximum time to thaw, which needs nothing from the processes.
const THAW_LIMIT: Duration = Duration::from_secs(10);
/// Maximum time for writing memory to swap. Ordinary memory takes a second per GiB on a fast disk; hostile code can have
/// mappings as large as its address space.
const PAGE_OUT_LIMIT: Duration = Duration::from_secs(60);
/// How long a request waits for a jail that is busy.
const BUSY_TIMEOUT: Duration = Duration::from_secs(2);
/// First wait before a request to a busy jail is repeated; each further one is twice as long.
const BUSY_PAUSE: Duration = Duration::from_millis(1);

/// Repeats a request while the jail is busy.
async fn patiently<T>(
    mut request: impl FnMut() -> Result<T, hutch_jail::Error>,
) -> Result<T, hutch_jail::Error> {
    let until = Instant::now() + BUSY_TIMEOUT;
    let mut pause = BUSY_PAUSE;
    loop {
        match request() {
            Err(hutch_jail::Error::Busy) if Instant::now() < until => {
                tokio::time::sleep(pause).await;
                pause *= 2;
            }
            other => return other,
        }
    }
}

/// How a process ends whose jail is gone.
const GONE: ProcessExit = ProcessExit::Signal(9);

impl NotStarted {
    /// The error of a main process.
    pub(crate) fn of_program(self, process: &Process) -> StartError {
        let program = process.argv.first().map_or("", String::as_str);
        StartError { message: format!("exec: {program:?}: {}", self.reason), of_policy: false }
    }
}

impl Spawned {
    /// Waits until it runs.
    pub(crate) async fn started(&mut self) -> Result<u32, NotStarted> {
        match (&mut self.started).await {
            Ok(result) => result,
            Err(_) => Err(NotStarted { errno: 0, reason: "the sandbox has ended".into() }),
        }
    }

    /// Waits until it has ended.
    pub(crate) async fn exited(&mut self) -> ProcessExit {
        (&mut self.exited).await.unwrap_or(GONE)
    }
}

impl JailHandle {
    /// Takes a jail and follows its events. Needs a tokio runtime.
    pub(crate) fn adopt(jail: Jail) -> io::Result<Arc<JailHandle>> {
        let control = register(jail.as_fd().try_clone_to_owned()?, Interest::READABLE)?;
        let handle = Arc::new(JailHandle { jail, waiting: Mutex::default(), listener: Mutex::default() });
        let task = tokio::spawn(listen(control, Arc::downgrade(&handle)));
        *lock(&handle.listener) = Some(task.abort_handle());
        Ok(handle)
    }

    /// Requests a process. Waits while the jail is busy, without holding up a thread.
    pub(crate) async fn spawn(&self, process: &Process, stdio: Stdio) -> Result<Spawned, hutch_jail::Error> {
        self.request(|jail| jail.spawn(process, &stdio)).await
    }

    /// Requests a process that only waits.
    pub(crate) async fn hold(&self) -> Result<Spawned, hutch_jail::Error> {
        self.request(Jail::hold).await
    }

    async fn request(
        &self,
        request: impl Fn(&Jail) -> Result<u64, hutch_jail::Error>,
    ) -> Result<Spawned, hutch_jail::Error> {
        patiently(|| {
            let (started, started_rx) = oneshot::channel();
            let (exited, exited_rx) = oneshot::channel();
            // Held across the request, which never waits, so that no event can come before its entry is there.
            let mut waiting = lock(&self.waiting);
            let number = request(&self.jail)?;
            if !waiting.over {
                waiting.processes.insert(number, Pending { started: Some(started), exited });
            }
            drop(waiting);
            Ok(Spawned { number, started: started_rx, exited: exited_rx })
        })
        .await
    }

    /// Sends a signal to a process of the jail, now or as soon as the jail takes requests.
    pub(crate) fn signal(self: &Arc<Self>, process: u64, signal: i32) {
        if let Err(hutch_jail::Error::Busy) = self.jail.signal(process, signal) {
            let handle = Arc::clone(self);
            // One that cannot be sent in time is lost, like one to a process that has ended.
            tokio::spawn(async move { drop(patiently(|| handle.jail.signal(process, signal)).await) });
        }
    }

    /// A terminal that has a path inside and belongs to `user`: our side and the other one.
    pub(crate) fn terminal(&self, user: &hutch_jail::User) -> Result<(OwnedFd, OwnedFd), hutch_jail::Error> {
        self.jail.terminal(user)
    }

    /// Returns the use of resources so far. Calls the warden, so it blocks for a moment.
    pub(crate) fn usage(&self) -> Option<Usage> {
        self.jail.usage().ok()
    }

    /// Returns true if the jail has ended.
    pub(crate) fn is_over(&self) -> bool {
        lock(&self.waiting).over
    }

    pub(crate) fn is_freezable(&self) -> bool {
        self.jail.freezer().is_some()
    }

    /// Freezes all processes. Blocks.
    pub(crate) fn freeze(&self) -> Result<(), String> {
        let freezer = self.jail.freezer().ok_or(WITHOUT_FREEZER)?;
        freezer.freeze(FREEZE_LIMIT).map_err(|error| error.to_string())
    }

    /// Writes the memory of the frozen processes to swap for as long as `going` returns true. Blocks.
    pub(crate) fn page_out(&self, going: &dyn Fn() -> bool) -> Result<PageOut, String> {
        let freezer = self.jail.freezer().ok_or(WITHOUT_FREEZER)?;
        freezer.page_out(going, PAGE_OUT_LIMIT).map_err(|error| error.to_string())
    }

    /// Thaws all processes. Blocks.
    pub(crate) fn thaw(&self) -> Result<(), String> {
        self.jail
            .freezer()
            .map_or(Ok(()), |freezer| freezer.thaw(THAW_LIMIT))
            .map_err(|error| error.to_string())
    }

    pub(crate) fn kill(&self) {
        self.jail.kill();
    }

    /// Hands one event on; false when the jail is over.
    fn take(&self, event: Event) -> bool {
        let mut waiting = lock(&self.waiting);
        match event {
            Event::Started { process, pid } => {
                let pending = waiting.processes.get_mut(&process).and_then(|p| p.started.take());
                // A caller that no longer waits does not need the news.
                drop(pending.map(|started| started.send(Ok(pid))));
            }
            Event::NotStarted { process, errno, reason } => {
                let pending = waiting.processes.remove(&process).and_then(|p| p.started);
                drop(pending.map(|started| started.send(Err(NotStarted { errno, reason }))));
            }
            Event::Exited { process, exit } => {
                if let Some(pending) = waiting.processes.remove(&process) {
                    // As above.
                    let _ = pending.exited.send(exit);
                }
            }
            Event::Ended => return false,
        }
        true
    }

    /// Everyone who still waits learns that nothing will come.
    fn end(&self) {
        let mut waiting = lock(&self.waiting);
        waiting.over = true;
        waiting.processes.clear();
    }
}

impl Drop for JailHandle {
    fn drop(&mut self) {
        if let Some(listener) = lock(&self.listener).take() {
            listener.abort();
        }
    }
}

async fn listen(control: AsyncFd<OwnedFd>, handle: Weak<JailHandle>) {
    loop {
        let Ok(mut ready) = control.readable().await else { break };
        let Some(handle) = handle.upgrade() else { return };
        loop {
            match handle.jail.try_event() {
                Ok(Some(event)) if handle.take(event.clone()) => {}
                Ok(Some(_)) => return handle.end(),
                Ok(None) => break,
                Err(error) => {
                    tracing::warn!(jail = handle.jail.id(), %error, "a jail's events are lost");
                    return handle.end();
                }
            }
        }
        ready.clear_ready();
    }
    if let Some(handle) = handle.upgrade() {
        handle.end();
    }
}

/// A panic while the lock was held leaves whole values here, so the lock stays usable.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
