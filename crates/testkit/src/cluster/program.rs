use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::Context;
use rustix::process::{Pid, Signal, WaitIdOptions, kill_process};

/// Bytes of a log's end that go into an error.
const LOG_END_BYTES: usize = 4096;

/// A program that runs beside the tests.
#[derive(Debug)]
pub struct Program {
    name: String,
    child: Child,
    log: PathBuf,
}

/// Resources that a program has used.
#[derive(Debug, Clone, Copy, Default)]
pub struct Usage {
    /// Time on a CPU, in user and kernel.
    pub cpu: Duration,
    /// Resident memory now, in KiB.
    pub resident_kib: u64,
    /// The most that was ever resident, in KiB.
    pub peak_kib: u64,
    /// CPU time of its children that have ended and were waited for.
    pub children_cpu: Duration,
}

impl Usage {
    /// Returns the use of the process with this id so far; zeros once it has ended.
    pub fn of(id: u32) -> Usage {
        let read = |file: &str| std::fs::read_to_string(format!("/proc/{id}/{file}")).unwrap_or_default();
        let (stat, status) = (read("stat"), read("status"));
        // The name in brackets may hold anything; fields 14 and 15 of the line are counted from behind it.
        let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let fields: Vec<u64> =
            after_name.split_whitespace().map(|field| field.parse().unwrap_or(0)).collect();
        let ticks = |first: usize| fields.get(first).unwrap_or(&0) + fields.get(first + 1).unwrap_or(&0);
        let kib = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
            line.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(0)
        };
        let per_second = rustix::param::clock_ticks_per_second().max(1);
        Usage {
            cpu: Duration::from_millis(ticks(11) * 1000 / per_second),
            children_cpu: Duration::from_millis(ticks(13) * 1000 / per_second),
            resident_kib: kib("VmRSS:"),
            peak_kib: kib("VmHWM:"),
        }
    }
}

impl Program {
    pub(super) fn start(name: &str, mut command: Command, folder: &Path) -> anyhow::Result<Program> {
        let log = folder.join(format!("{name}.log"));
        let file = File::create(&log).with_context(|| log.display().to_string())?;
        let output = file.try_clone().with_context(|| log.display().to_string())?;
        command.stdin(Stdio::null()).stdout(output).stderr(file);
        let child = command.spawn().with_context(|| format!("starting {name}"))?;
        Ok(Program { name: name.into(), child, log })
    }

    /// The name it was given.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Where its output goes.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Returns true if it has not ended.
    pub fn is_running(&self) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let pid = Pid::from_child(&self.child);
        matches!(rustix::process::waitid(rustix::process::WaitId::Pid(pid), options), Ok(None))
    }

    /// Its name and the last lines of its output.
    pub fn log_end(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let end = &text[text.len().saturating_sub(LOG_END_BYTES)..];
        format!("-- {}:\n{}", self.name, String::from_utf8_lossy(end))
    }

    /// Returns its use so far; zeros once it has ended.
    pub fn usage(&self) -> Usage {
        Usage::of(self.child.id())
    }

    pub(super) fn stop(mut self) -> anyhow::Result<()> {
        kill_process(Pid::from_child(&self.child), Signal::TERM).with_context(|| self.name.clone())?;
        self.child.wait().with_context(|| self.name.clone())?;
        Ok(())
    }

    pub(super) fn kill(mut self) -> anyhow::Result<()> {
        self.child.kill().and_then(|()| self.child.wait()).with_context(|| self.name.clone())?;
        Ok(())
    }

    /// Waits for one that has been killed.
    pub(super) fn reap(&mut self) {
        // Nothing can be done about a process that cannot be waited for.
        let _ = self.child.wait();
    }
}
