//! Commands that the kernel killed because memory ran out.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, PROC_SUPER_MAGIC};

use super::Exit;

/// Files with a line `oom_kill NUMBER`: of the cgroup of this container in both versions, where the runtime mounts it, and of
/// the machine.
const COUNTERS: [&str; 3] =
    ["/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control", "/proc/vmstat"];
/// File systems of the kernel that have such files: of cgroups in both versions, and of processes. All others are those of
/// the container, whose code may have put anything in place of a counter.
const OF_KERNEL: [u32; 3] = [0x0027_e0eb, 0x6367_7270, PROC_SUPER_MAGIC as u32];
/// Maximum size of a counter, in bytes.
const MAX_BYTES: u64 = 64 << 10;
/// Exit code of a shell whose command was killed.
const KILLED: i32 = 137;
/// Signal that kills.
const KILL: i32 = 9;

/// Last line of standard error of a command that was killed because memory ran out.
pub(crate) const LINE: &str = "hutch-sandboxd: killed: memory ran out while the command ran; \
                               resources.limits.memory of the container gives it more\n";

/// Number of processes that the kernel had killed when a command started.
#[derive(Debug)]
pub(super) struct Kills {
    counter: Option<(&'static str, u64)>,
}

impl Kills {
    /// Reads the number.
    pub(super) fn now() -> Kills {
        let counter = COUNTERS.iter().find_map(|file| Some((*file, count(&read(Path::new(file))?)?)));
        Kills { counter }
    }

    /// Returns true if a command that has ended was killed because memory ran out.
    pub(super) fn explain(&self, exit: Exit) -> bool {
        let killed = matches!(exit, Exit::Signal(KILL) | Exit::Code(KILLED));
        let Some((file, before)) = self.counter.filter(|_| killed) else { return false };
        let now = read(Path::new(file)).and_then(|text| count(&text));
        now.is_some_and(|now| now > before)
    }
}

/// Reads a file of the kernel. This does not block: a pipe or a file of another file system is not read.
fn read(path: &Path) -> Option<String> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty()).ok()?;
    let is_regular = FileType::from_raw_mode(rustix::fs::fstat(&file).ok()?.st_mode) == FileType::RegularFile;
    let system = u32::try_from(rustix::fs::fstatfs(&file).ok()?.f_type).ok()?;
    if !is_regular || !OF_KERNEL.contains(&system) {
        return None;
    }
    let mut text = String::new();
    File::from(file).take(MAX_BYTES).read_to_string(&mut text).ok()?;
    Some(text)
}

fn count(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_both_versions_are_read() {
        assert_eq!(count("low 0\noom 2\noom_kill 3\noom_group_kill 1\n"), Some(3));
        assert_eq!(count("oom_kill_disable 0\nunder_oom 0\noom_kill 4\n"), Some(4));
        assert_eq!(count("oom 1\n"), None);
    }

    #[test]
    fn counter_that_is_not_of_the_kernel_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let (pipe, file, link) = (dir.path().join("pipe"), dir.path().join("file"), dir.path().join("link"));
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        std::fs::write(&file, "oom_kill 3\n").unwrap();
        std::os::unix::fs::symlink("/proc/vmstat", &link).unwrap();
        for path in [&*pipe, &file, &link, dir.path(), Path::new("/dev/zero"), Path::new("/dev/ptmx")] {
            assert_eq!(read(path), None, "{path:?}");
        }
        assert!(read(Path::new("/proc/vmstat")).is_some_and(|text| count(&text).is_some()));
        let long = read(Path::new("/proc/kallsyms")).expect("names of the kernel");
        assert_eq!(u64::try_from(long.len()), Ok(MAX_BYTES));
    }

    #[test]
    fn only_a_killed_command_ran_out_of_memory() {
        let counter = Kills::now().counter.map(|(file, _)| file);
        let file = counter.expect("a counter of this machine");
        // As if a process had been killed since.
        let kills = |before| Kills { counter: Some((file, before)) };
        let now = Kills::now().counter.map_or(0, |(_, now)| now);
        assert!(!kills(now + 1000).explain(Exit::Signal(KILL)));
        let Some(before) = now.checked_sub(1) else { return };
        assert!(kills(before).explain(Exit::Signal(KILL)) && kills(before).explain(Exit::Code(KILLED)));
        assert!(!kills(before).explain(Exit::Signal(15)) && !kills(before).explain(Exit::Code(1)));
    }
}
