//! Commands that the kernel killed because memory ran out.

use super::Exit;

/// Files with a line `oom_kill NUMBER`: of the cgroup of this container in both versions, where the runtime mounts it, and of
/// the machine.
const COUNTERS: [&str; 3] =
    ["/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control", "/proc/vmstat"];
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
        let counter =
            COUNTERS.iter().find_map(|file| Some((*file, count(&std::fs::read_to_string(file).ok()?)?)));
        Kills { counter }
    }

    /// Returns true if a command that has ended was killed because memory ran out.
    pub(super) fn explain(&self, exit: Exit) -> bool {
        let killed = matches!(exit, Exit::Signal(KILL) | Exit::Code(KILLED));
        let Some((file, before)) = self.counter.filter(|_| killed) else { return false };
        let now = std::fs::read_to_string(file).ok().and_then(|text| count(&text));
        now.is_some_and(|now| now > before)
    }
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
