//! Processes of each `hutch up` of this machine with their users and privileges, as the kernel reports them.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::up::front;
use crate::{broker, egress, pull};

/// Task of each process, in the order of the output.
const ROLES: [(&str, &str); 6] = [
    ("node", "runs Pods: images, volumes, probes; starts the others"),
    ("front", "parses what clients send: TLS, API server, store, controllers, router"),
    ("proxy", "parses what code inside sends; connects sandboxes to what their policies allow"),
    ("broker", "keeps the keys of the sandboxes' authorities, sealed on disk"),
    ("puller", "pulls images of Pods; runs with --pull-from"),
    ("warden", "forks jails; reads no bytes of clients or sandboxes"),
];

/// A process of a running `hutch up`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Process {
    /// `node`, `front`, `proxy`, `broker`, `puller` or `warden`.
    pub(super) role: &'static str,
    pub(super) pid: u32,
    /// Real, effective, saved and file system user id are the same one.
    pub(super) user: u32,
    /// Has a capability.
    pub(super) capabilities: bool,
    /// Has a filter of system calls.
    pub(super) seccomp: bool,
}

/// Finds the processes of every `hutch up`: each front, its parent, and the parent's other processes.
pub(super) fn running() -> Vec<Process> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let all: BTreeMap<u32, Seen> = pids.filter_map(|pid| Some((pid, Seen::of(pid)?))).collect();
    let mut found = Vec::new();
    for (pid, front) in all.iter().filter(|(_, seen)| seen.program == front::NAME) {
        found.extend(all.get(&front.parent).and_then(|node| node.process("node", front.parent)));
        found.extend(front.process("front", *pid));
        let siblings = all.iter().filter(|(_, seen)| seen.parent == front.parent);
        found.extend(siblings.filter_map(|(pid, seen)| match seen.program.as_str() {
            egress::NAME => seen.process("proxy", *pid),
            broker::NAME => seen.process("broker", *pid),
            pull::NAME => seen.process("puller", *pid),
            program if program.ends_with("/bin/warden") => seen.process("warden", *pid),
            _ => None,
        }));
    }
    found
}

/// Returns the lines of `hutch doctor`.
pub(super) fn text(processes: &[Process]) -> String {
    let mut out = String::from("\nprocesses of hutch up\n");
    for (role, does) in ROLES {
        let who = if ["front", "proxy", "broker", "puller"].contains(&role) {
            "a user of its own, no capabilities, seccomp, Landlock"
        } else {
            "root"
        };
        out.push_str(&format!("  {role:<10}{who}: {does}\n"));
    }
    for process in processes {
        let Process { role, pid, user, capabilities, seccomp } = process;
        let has = |held: &bool| if *held { "yes" } else { "no" };
        out.push_str(&format!(
            "  running: {role:<8}pid {pid:<8}user {user:<11}capabilities {:<4}seccomp {}\n",
            has(capabilities),
            has(seccomp)
        ));
    }
    out
}

/// Process as `/proc` shows it.
struct Seen {
    program: String,
    parent: u32,
    status: String,
}

impl Seen {
    fn of(pid: u32) -> Option<Seen> {
        let words = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let program = words.split(|byte| *byte == 0).next()?;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let parent = field(&status, "PPid")?.parse().ok()?;
        Some(Seen { program: String::from_utf8_lossy(program).into_owned(), parent, status })
    }

    fn process(&self, role: &'static str, pid: u32) -> Option<Process> {
        let user = field(&self.status, "Uid")?.split_whitespace().next()?.parse().ok()?;
        let capabilities = field(&self.status, "CapPrm")?.bytes().any(|digit| digit != b'0');
        let seccomp = field(&self.status, "Seccomp")? != "0";
        Some(Process { role, pid, user, capabilities, seccomp })
    }
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_is_read_from_its_status() {
        let status = "Name:\tx\nPPid:\t7\nUid:\t5\t5\t5\t5\nCapPrm:\t0000000000000000\nSeccomp:\t2\nSeccomp_filters:\t1\n";
        let seen = Seen { program: "hutch-front".into(), parent: 7, status: status.into() };
        let expected = Process { role: "front", pid: 9, user: 5, capabilities: false, seccomp: true };
        assert_eq!(seen.process("front", 9), Some(expected.clone()));
        let text = text(&[expected]);
        assert!(
            text.contains("running: front   pid 9       user 5") && text.contains("capabilities no"),
            "{text}"
        );
    }
}
