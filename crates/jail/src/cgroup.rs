//! Cgroups: limits on CPU time, memory and processes, on version 2 and on version 1, whichever has the controller.
//!
//! A limit that cannot be enforced is an error with the reason and a remedy; no limit is dropped. Without
//! limits, no group is created. A group is created, and entered, before there is anything in it to limit:
//!
//! - on version 2, fork with `CLONE_INTO_CGROUP` and [`Group::unified`];
//! - on version 1, let the new process itself call [`Entry::enter`] before it makes its cgroup namespace. A thread
//!   that moves itself takes no lock that others hold; moving another process waits for all forks
//!   and exits of the machine, which after a pause costs some 8 ms.

mod end;
mod freezer;
mod layout;
mod page_out;
mod v1;
mod v2;

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use crate::{Errno, Error, Limits, Usage};

pub(crate) use end::{sweep, sweep_empty};
pub use freezer::Freezer;
pub(crate) use layout::{Controller, Layout};
pub use page_out::{PageOut, PageOutEnd, Swap};

/// The folder, in each hierarchy, that holds the groups of all jails.
pub(crate) const FOLDER: &str = "hutch";
/// Minimum memory limit, in bytes: below it not even the init of a jail starts.
pub(crate) const LEAST_MEMORY: u64 = 1024 * 1024;
/// Minimum CPU limit, in thousandths of a CPU: the kernel's own (1 ms in a period of 100 ms).
pub(crate) const LEAST_CPU: u64 = 10;
/// Maximum CPU limit, in thousandths of a CPU.
pub(crate) const MOST_CPU: u64 = 10_000_000;
/// Minimum process limit: init and one more.
pub(crate) const LEAST_PIDS: u64 = 2;
/// Length of the CPU quota period, in microseconds.
const CPU_PERIOD: u64 = 100_000;
/// Maximum attempts to recreate a group after another program removed its empty parent folder.
const MOST_RACES: usize = 8;

/// Validates limits without creating anything: rejects values too small or too large to be intended.
///
/// # Errors
/// [`Error::LimitRefused`], naming the limit.
pub(crate) fn check(limits: &Limits) -> Result<(), Error> {
    if let Some(bytes) = limits.memory_bytes.filter(|bytes| *bytes < LEAST_MEMORY) {
        return refuse(
            "memory",
            format!("{bytes} bytes are less than {LEAST_MEMORY}, with which nothing starts"),
        );
    }
    if let Some(millis) = limits.cpu_millis.filter(|millis| !(LEAST_CPU..=MOST_CPU).contains(millis)) {
        return refuse(
            "cpu",
            format!("{millis} thousandths of a CPU are not between {LEAST_CPU} and {MOST_CPU}"),
        );
    }
    if let Some(pids) = limits.pids.filter(|pids| *pids < LEAST_PIDS) {
        return refuse("pids", format!("{pids} is less than {LEAST_PIDS}: the jail's init and one process"));
    }
    Ok(())
}

fn refuse(limit: &'static str, reason: String) -> Result<(), Error> {
    Err(Error::LimitRefused { limit: limit.into(), reason })
}

/// The groups of one jail: one in each hierarchy that its limits need.
///
/// Dropping it does not remove them; see [`Group::kill_and_remove`].
#[derive(Debug)]
pub(crate) struct Group {
    /// The group of version 2.
    unified: Option<PathBuf>,
    /// The groups of version 1.
    legacy: Vec<(Controller, PathBuf)>,
}

impl Group {
    /// Creates the groups `hutch/<id>` that `limits` need on this machine; without limits, no group is
    /// created and the result is empty.
    ///
    /// # Errors
    /// [`Error::LimitRefused`] when a limit is invalid or cannot be enforced here; [`Error::Cgroup`] when the
    /// kernel refuses otherwise.
    pub(crate) fn create(id: &str, limits: &Limits) -> Result<Group, Error> {
        Self::create_in(&Layout::of_this_machine()?, id, limits)
    }

    /// As [`Group::create`], for an already read layout.
    pub(crate) fn create_in(layout: &Layout, id: &str, limits: &Limits) -> Result<Group, Error> {
        check(limits)?;
        let plain = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
        if id.is_empty() || id.len() > 63 || !id.bytes().all(plain) {
            return Err(Error::Spec(format!("id {id:?}: 1 to 63 of a-z, 0-9 and - are allowed")));
        }
        let mut group = Group { unified: None, legacy: Vec::new() };
        match group.build(layout, id, limits) {
            Ok(()) => Ok(group),
            Err(error) => {
                // Created groups are still empty; the first failure is the one to return.
                let _ = group.kill_and_remove();
                Err(error)
            }
        }
    }

    fn build(&mut self, layout: &Layout, id: &str, limits: &Limits) -> Result<(), Error> {
        let wanted = Controller::wanted(limits);
        let (unified, legacy): (Vec<_>, Vec<_>) =
            wanted.into_iter().partition(|controller| layout.unified_has(*controller));
        for controller in legacy {
            let group = self.legacy_group(layout, controller, id)?;
            v1::limit(controller, &group, limits)?;
        }
        // A controller of its own accounts CPU time; it limits nothing, so its absence is not a failure.
        if !self.legacy.is_empty() && unified.is_empty() && layout.legacy_has(Controller::CpuAccount) {
            let _ = self.legacy_group(layout, Controller::CpuAccount, id);
        }
        if !unified.is_empty() {
            let group = v2::create(layout, &unified, id)?;
            self.unified = Some(group.clone());
            v2::limit(&group, limits)?;
        }
        Ok(())
    }

    /// Adds the group that freezing needs: that of version 2, created without a controller when limits need
    /// none there, else one of version 1's freezer. `id` is that of the group.
    ///
    /// # Errors
    /// As [`Group::create`]; existing groups are kept.
    pub(crate) fn make_freezable(&mut self, layout: &Layout, id: &str) -> Result<Freezer, Error> {
        if self.unified.is_none() && layout.unified.is_some() {
            self.unified = Some(v2::create(layout, &[], id)?);
        }
        let limited = self.legacy.iter().filter(|(controller, _)| *controller == Controller::Memory);
        let swap_uncounted = limited.into_iter().any(|(_, group)| page_out::is_swap_uncounted(group));
        let freezer = match &self.unified {
            Some(group) => Freezer::of_unified(group),
            None => Freezer::of_legacy(&self.legacy_group(layout, Controller::Freezer, id)?),
        };
        Ok(Freezer { swap_uncounted, ..freezer })
    }

    /// Returns the group of a controller; controllers that are mounted together share one.
    fn legacy_group(&mut self, layout: &Layout, controller: Controller, id: &str) -> Result<PathBuf, Error> {
        let place = layout.legacy_of(controller).map(|hierarchy| hierarchy.own.join(FOLDER).join(id));
        let made = self.legacy.iter().find(|(_, group)| Some(group) == place.as_ref());
        let group = match made {
            Some((_, group)) => group.clone(),
            None => v1::create(layout, controller, id)?,
        };
        self.legacy.push((controller, group.clone()));
        Ok(group)
    }

    /// Returns `true` without a group, since no limit is configured.
    pub(crate) fn is_empty(&self) -> bool {
        self.unified.is_none() && self.legacy.is_empty()
    }

    /// Returns the folder of version 2, for `CLONE_INTO_CGROUP`; `None` where version 1 enforces the limits.
    pub(crate) fn unified(&self) -> Result<Option<OwnedFd>, Error> {
        let Some(path) = &self.unified else { return Ok(None) };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(folder) => Ok(Some(folder)),
            Err(errno) => Err(failed(path, "open", errno)),
        }
    }

    /// Returns the files by which a new, single-threaded process moves itself into the groups of version 1.
    pub(crate) fn entry(&self) -> Result<Entry, Error> {
        let open = |(_, group): &(Controller, PathBuf)| {
            let path = group.join("tasks");
            File::options().write(true).open(&path).map_err(|error| failed(&path, "open", error))
        };
        Ok(Entry { tasks: self.legacy.iter().map(open).collect::<Result<_, _>>()? })
    }

    /// Returns the resource usage so far. A value that no hierarchy of this group accounts is 0.
    pub(crate) fn usage(&self) -> Result<Usage, Error> {
        if self.is_empty() {
            return Err(Error::NoGroup);
        }
        let mut usage = Usage::default();
        if let Some(group) = &self.unified {
            v2::usage(group, &mut usage);
        }
        for (controller, group) in &self.legacy {
            v1::usage(*controller, group, &mut usage);
        }
        Ok(usage)
    }

    /// Kills all processes inside and removes the groups. Waits up to 3 s for processes to exit.
    ///
    /// # Errors
    /// [`Error::Cgroup`] when a group is still in use; a later [`sweep`] can retry.
    pub(crate) fn kill_and_remove(&self) -> Result<(), Error> {
        let mut outcome = Ok(());
        // A process frozen by version 1 does not receive the signal.
        self.release();
        for folder in self.folders() {
            // Tries each, regardless of earlier failures.
            outcome = end::kill_and_remove(folder).and(outcome);
        }
        outcome
    }

    /// Thaws processes that version 1 froze, so that they receive a signal.
    pub(crate) fn release(&self) {
        self.folders().for_each(freezer::release);
    }

    fn folders(&self) -> impl Iterator<Item = &Path> {
        self.unified.iter().map(PathBuf::as_path).chain(self.legacy.iter().map(|(_, path)| path.as_path()))
    }
}

/// Open files through which a process moves itself.
#[derive(Debug)]
pub(crate) struct Entry {
    tasks: Vec<File>,
}

impl Entry {
    /// Moves the calling thread. It makes system calls only, so it may be called between fork and exec.
    pub(crate) fn enter(&self) -> Result<(), Errno> {
        for mut tasks in &self.tasks {
            tasks.write_all(b"0").map_err(Errno::from)?;
        }
        Ok(())
    }
}

/// Creates `<parent>/hutch/<id>`, running `prepare` on `<parent>/hutch` in between.
fn make(parent: &Path, id: &str, prepare: &dyn Fn(&Path) -> Result<(), Error>) -> Result<PathBuf, Error> {
    let folder = parent.join(FOLDER);
    let group = folder.join(id);
    for _ in 0..MOST_RACES {
        if let Err(error) = std::fs::create_dir(&folder)
            && error.kind() != std::io::ErrorKind::AlreadyExists
        {
            return Err(failed(&folder, "make", error));
        }
        let made = prepare(&folder)
            .and_then(|()| std::fs::create_dir(&group).map_err(|error| failed(&group, "make", error)));
        match made {
            Ok(()) => return Ok(group),
            // The last jail of another program has just ended, and the folder was removed with it.
            Err(Error::Cgroup { errno: Errno(libc::ENOENT), .. }) => {}
            // A leftover group of that name is removed, if it is empty.
            Err(Error::Cgroup { errno: Errno(libc::EEXIST), .. }) if std::fs::remove_dir(&group).is_ok() => {}
            Err(error) => return Err(error),
        }
    }
    Err(failed(&group, "make", Errno(libc::EBUSY)))
}

fn failed(path: &Path, step: &'static str, errno: impl Into<Errno>) -> Error {
    Error::Cgroup { path: path.to_owned(), step: step.into(), errno: errno.into() }
}

fn write(path: &Path, value: &str) -> Result<(), Error> {
    std::fs::write(path, value).map_err(|error| failed(path, "write", error))
}

/// Reads a file that holds one number; 0 on failure.
fn number(path: &Path) -> u64 {
    std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// Returns the number after a word in a file of lines `word number`, or 0.
fn number_of(path: &Path, word: &str) -> u64 {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let line = |line: &str| line.strip_prefix(word)?.strip_prefix(' ')?.trim().parse().ok();
    text.lines().find_map(line).unwrap_or(0)
}

#[cfg(test)]
mod tests;
