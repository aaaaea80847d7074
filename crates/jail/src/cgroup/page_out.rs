//! Writing the memory of a frozen group to swap.
//!
//! Rights: the kernel demands `CAP_SYS_NICE` of `process_madvise` on another process, since its pages become slower, and
//! `CAP_SYS_PTRACE`, since the address space of another user is read (`/proc/PID/maps` demands that too). The root process
//! of `hutch up` has both. Nothing of the memory is read here, and no content changes: the advice moves pages.
//!
//! A process is advised by its pidfd, so no reused process id leads elsewhere. Its mappings are shaped by hostile code:
//! their text is read line by line, only for addresses, and those have a meaning in that process alone. Only private memory
//! is written, and what a process has changed of files: other memory is of others too, and swap counts for the group that
//! touched a page first.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::{Freezer, end, failed, write};
use crate::{Error, sys};

/// Size of a call, in bytes. Between two calls the caller can end the work.
const PIECE: u64 = 4 << 20;
/// Maximum size of a call where there turned out to be little memory: mappings can be as large as the address space.
const LARGEST_PIECE: u64 = 64 << 20;
/// Time for little memory, because mappings without memory take time too, and bytes of memory for which there is another second.
const FIRST_TIME: Duration = Duration::from_secs(10);
const BYTES_PER_SECOND: u64 = 20 << 20;
/// A shorter call had little to do.
const SHORT: Duration = Duration::from_micros(100);
/// Maximum mappings of a call.
const MOST_RANGES: usize = 256;
/// Maximum processes that are held open at a time.
const MOST_OPEN: usize = 64;

/// Result of writing memory to swap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageOut {
    /// How it ended.
    pub end: PageOutEnd,
    /// Resident memory of the processes before that is not that of files, in bytes.
    pub before_bytes: u64,
    /// The same after, of a complete page-out.
    pub after_bytes: u64,
}

/// End of writing memory to swap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageOutEnd {
    /// All mappings were offered to the kernel.
    Complete,
    /// The caller ended it.
    Interrupted,
    /// The time was over.
    OutOfTime,
}

/// Swap of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Swap {
    /// Bytes in all.
    pub total_bytes: u64,
    /// Bytes that are free.
    pub free_bytes: u64,
}

impl Swap {
    /// Reads the swap of this machine.
    pub fn of_this_machine() -> Swap {
        let info = rustix::system::sysinfo();
        let unit = u64::from(info.mem_unit);
        Swap {
            total_bytes: info.totalswap.saturating_mul(unit),
            free_bytes: info.freeswap.saturating_mul(unit),
        }
    }
}

impl Freezer {
    /// Has the kernel write the memory of all processes to swap. The group is to be frozen; one that is thawed meanwhile
    /// comes to no harm. Blocks for as long as `going` returns true, and at most for `limit`, less with little memory; all
    /// are checked between pieces of a few MiB.
    ///
    /// Pages that processes share, shared memory, files, locked pages and huge pages of hugetlbfs stay in memory, as does
    /// everything that finds no space in swap.
    ///
    /// # Errors
    /// [`Error::SwapUncounted`] when swap could exceed the memory limit; [`Error::Cgroup`] when the kernel refuses.
    pub fn page_out(&self, going: &dyn Fn() -> bool, limit: Duration) -> Result<PageOut, Error> {
        if self.swap_uncounted {
            return Err(Error::SwapUncounted);
        }
        let _allowed = Allowed::swap_of(&self.group)?;
        let mut work = Work { group: &self.group, going, began: Instant::now(), limit, before: 0, after: 0 };
        let end = work.all()?.unwrap_or(PageOutEnd::Complete);
        Ok(PageOut { end, before_bytes: work.before, after_bytes: work.after })
    }
}

/// Permission of a version 2 group with a memory limit to use swap, as long as this exists: as much as its memory limit, so
/// that no Sandbox fills the machine's swap by going to sleep repeatedly. What is in swap stays there afterwards.
struct Allowed<'a>(Option<&'a Path>);

impl<'a> Allowed<'a> {
    fn swap_of(group: &'a Path) -> Result<Allowed<'a>, Error> {
        let text = |file: &str| std::fs::read_to_string(group.join(file)).unwrap_or_default();
        // As written with the limit; a group without a limit, or of version 1, needs no permission.
        if text("memory.swap.max").trim() != "0" {
            return Ok(Allowed(None));
        }
        write(&group.join("memory.swap.max"), text("memory.max").trim())?;
        Ok(Allowed(Some(group)))
    }
}

impl Drop for Allowed<'_> {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // A group that has gone needs no limit.
            let _ = write(&group.join("memory.swap.max"), "0");
        }
    }
}

/// Early end of the work, if there is one.
type Early = Option<PageOutEnd>;

struct Work<'a> {
    group: &'a Path,
    going: &'a dyn Fn() -> bool,
    began: Instant,
    limit: Duration,
    before: u64,
    after: u64,
}

impl Work<'_> {
    fn all(&mut self) -> Result<Early, Error> {
        let listed: Vec<Pid> = end::members(self.group).into_iter().collect();
        for some in listed.chunks(MOST_OPEN) {
            let open = |pid: &Pid| Some((*pid, pidfd_open(*pid, PidfdFlags::empty()).ok()?));
            let opened: Vec<_> = some.iter().filter_map(open).collect();
            // A process that is listed after its pidfd was opened is the one of that pidfd, or that one has ended.
            let still = end::members(self.group);
            for (pid, process) in opened {
                if still.contains(&pid)
                    && let Some(end) = self.process(pid, process.as_fd())?
                {
                    return Ok(Some(end));
                }
            }
        }
        Ok(None)
    }

    fn early(&self) -> Early {
        if !(self.going)() {
            Some(PageOutEnd::Interrupted)
        } else if self.began.elapsed() >= self.time() {
            Some(PageOutEnd::OutOfTime)
        } else {
            None
        }
    }

    /// Time for the processes so far.
    fn time(&self) -> Duration {
        let of_memory = Duration::from_secs(self.before / BYTES_PER_SECOND);
        FIRST_TIME.saturating_add(of_memory).min(self.limit)
    }

    /// One process. One that has ended is skipped.
    fn process(&mut self, pid: Pid, process: BorrowedFd<'_>) -> Result<Early, Error> {
        let folder = format!("/proc/{}", pid.as_raw_nonzero());
        let folder = Path::new(&folder);
        self.before += resident(folder);
        let end = match File::open(folder.join("maps")) {
            Ok(maps) => self.mappings(BufReader::with_capacity(64 << 10, maps), process)?,
            Err(_) => self.early(),
        };
        if end.is_none() {
            self.after += resident(folder);
        }
        Ok(end)
    }

    fn mappings(&self, mut maps: impl BufRead, process: BorrowedFd<'_>) -> Result<Early, Error> {
        let mut pieces = Pieces { work: self, process, ranges: Vec::new(), bytes: 0, size: PIECE };
        let mut line = Vec::new();
        loop {
            line.clear();
            // What cannot be read is the end: the process has ended.
            if maps.read_until(b'\n', &mut line).unwrap_or(0) == 0 {
                return pieces.advise().map(Step::early);
            }
            let Some((start, end)) = mapping(&line) else { continue };
            match pieces.add(start, end)? {
                Step::Next => {}
                Step::Gone => return Ok(None),
                Step::Early(end) => return Ok(Some(end)),
            }
        }
    }
}

/// Resident memory of a process that only swap can free, in bytes, with its part of what it shares; 0 if it has ended.
fn resident(folder: &Path) -> u64 {
    let text = std::fs::read_to_string(folder.join("smaps_rollup")).unwrap_or_default();
    if text.is_empty() { of_threads(folder) } else { bytes_of(&text, ["Pss_Anon:", "Pss_Shmem:"]) }
}

/// Sum of two fields in a file of `/proc`, in bytes.
fn bytes_of(text: &str, fields: [&str; 2]) -> u64 {
    let kibibytes = |line: &str| {
        let number = fields.iter().find_map(|field| line.strip_prefix(field))?;
        number.trim().strip_suffix(" kB")?.parse::<u64>().ok()
    };
    text.lines().filter_map(kibibytes).fold(0, u64::saturating_add).saturating_mul(1024)
}

/// The same for a process whose first thread has ended, as another thread has it. Its memory cannot be advised.
fn of_threads(folder: &Path) -> u64 {
    let threads = std::fs::read_dir(folder.join("task")).into_iter().flatten().flatten();
    let of_thread = |thread: std::fs::DirEntry| {
        let text = std::fs::read_to_string(thread.path().join("status")).unwrap_or_default();
        bytes_of(&text, ["RssAnon:", "RssShmem:"])
    };
    threads.map(of_thread).find(|bytes| *bytes > 0).unwrap_or(0)
}

/// Returns the addresses of a line of `/proc/PID/maps`; `None` for shared memory, for files that it cannot
/// have changed, and for the kernel's own mappings (`[vdso]`, `[vvar]`, `[vsyscall]`), which have no pages of the process.
fn mapping(line: &[u8]) -> Option<(u64, u64)> {
    let line = line.trim_ascii_end();
    let mut fields = line.split(|byte| *byte == b' ').filter(|field| !field.is_empty());
    let (start, end) = std::str::from_utf8(fields.next()?).ok()?.split_once('-')?;
    let (flags, inode) = (fields.next()?, fields.nth(2)?);
    if flags.last() != Some(&b'p') || (inode != b"0" && flags.get(1) != Some(&b'w')) {
        return None;
    }
    // A file's path begins with a slash, and the name that a program can give to memory with `[anon`.
    if fields.next().is_some_and(|name| name.starts_with(b"[v")) {
        return None;
    }
    let address = |text: &str| u64::from_str_radix(text, 16).ok();
    let (start, end) = (address(start)?, address(end)?);
    (start < end).then_some((start, end))
}

/// Result of a call.
enum Step {
    Next,
    /// The process has ended.
    Gone,
    Early(PageOutEnd),
}

impl Step {
    fn early(self) -> Early {
        match self {
            Step::Early(end) => Some(end),
            Step::Next | Step::Gone => None,
        }
    }
}

/// Ranges of one process for the next call.
struct Pieces<'a> {
    work: &'a Work<'a>,
    process: BorrowedFd<'a>,
    ranges: Vec<(u64, u64)>,
    bytes: u64,
    /// Size of the next call.
    size: u64,
}

impl Pieces<'_> {
    fn add(&mut self, mut start: u64, end: u64) -> Result<Step, Error> {
        while start < end {
            let length = (end - start).min(self.size.saturating_sub(self.bytes).max(1));
            // Whole pages: mappings and sizes consist of them.
            self.ranges.push((start, length));
            self.bytes += length;
            start += length;
            if self.bytes >= self.size || self.ranges.len() >= MOST_RANGES {
                match self.advise()? {
                    Step::Next => {}
                    other => return Ok(other),
                }
            }
        }
        Ok(Step::Next)
    }

    /// Makes the call for the collected ranges, again after a part of them was done.
    fn advise(&mut self) -> Result<Step, Error> {
        let mut ranges = std::mem::take(&mut self.ranges);
        self.bytes = 0;
        let mut left = &mut ranges[..];
        while !left.is_empty() {
            if let Some(end) = self.work.early() {
                return Ok(Step::Early(end));
            }
            let began = Instant::now();
            match sys::page_out(self.process, left) {
                Ok(done) => left = after(left, done),
                Err(rustix::io::Errno::SRCH) => return Ok(Step::Gone),
                Err(errno @ (rustix::io::Errno::PERM | rustix::io::Errno::NOSYS)) => {
                    return Err(failed(self.work.group, "page out", errno));
                }
                // The first one cannot be written to swap: locked memory, hugetlbfs, memory of a device.
                Err(_) => left = &mut left[1..],
            }
            let is_short = began.elapsed() < SHORT;
            self.size = if is_short { (self.size * 2).min(LARGEST_PIECE) } else { PIECE };
        }
        Ok(Step::Next)
    }
}

/// Returns what remains of the ranges after so many bytes. After none, the first range is skipped, so that every call counts.
fn after(ranges: &mut [(u64, u64)], mut done: u64) -> &mut [(u64, u64)] {
    let mut first = usize::from(done == 0);
    while done > 0
        && let Some((start, length)) = ranges.get_mut(first)
    {
        let part = done.min(*length);
        (*start, *length, done) = (*start + part, *length - part, done - part);
        if *length > 0 {
            break;
        }
        first += 1;
    }
    ranges.get_mut(first..).unwrap_or_default()
}

/// Returns true if a group of version 1 with a memory limit does not count swap, as on a kernel with `swapaccount=0`.
pub(super) fn is_swap_uncounted(memory: &Path) -> bool {
    !memory.join("memory.memsw.limit_in_bytes").exists()
}

#[cfg(test)]
mod tests;
