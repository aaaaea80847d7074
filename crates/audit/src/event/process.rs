//! Commands, containers and files of a sandbox.

use std::time::SystemTime;

use super::{Decision, Event, Kind, Principal, Sandbox, Verdict, device, long, named, user};
use crate::ocsf::{Actor, File, Process};
use crate::text::Text;

/// Command that a caller starts in a sandbox.
#[derive(Debug, Clone, Copy)]
pub struct Exec<'a> {
    /// Sandbox.
    pub sandbox: Sandbox<'a>,
    /// Container.
    pub container: Option<&'a str>,
    /// Caller.
    pub principal: Principal<'a>,
    /// Name of this command, unique in the log.
    pub uid: &'a str,
    /// Arguments. What is likely a secret is masked.
    pub arguments: &'a [String],
    /// Decision.
    pub verdict: Verdict<'a>,
}

/// End of a command.
#[derive(Debug, Clone, Copy)]
pub struct Exit<'a> {
    /// Sandbox.
    pub sandbox: Sandbox<'a>,
    /// Container.
    pub container: Option<&'a str>,
    /// Caller.
    pub principal: Principal<'a>,
    /// Name of the command.
    pub uid: &'a str,
    /// Arguments, as in its start.
    pub arguments: &'a [String],
    /// Exit code, if it is known.
    pub code: Option<i32>,
    /// Reason why it could not be started or has no exit code.
    pub failure: Option<&'a str>,
}

/// Change of the life of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// It has started.
    Started,
    /// It has ended.
    Ended,
    /// Its processes are stopped, and keep their memory.
    Frozen,
    /// The memory of its stopped processes was written to swap.
    PagedOut,
    /// Its processes run again.
    Thawed,
}

/// Start, end, freeze, page-out or thaw of a container.
#[derive(Debug, Clone, Copy)]
pub struct Lifecycle<'a> {
    /// Sandbox.
    pub sandbox: Sandbox<'a>,
    /// Container.
    pub container: &'a str,
    /// Uid of the container, or of the Pod and the container.
    pub uid: &'a str,
    /// Change.
    pub change: Change,
    /// The change is not made yet: it is permitted.
    pub planned: bool,
    /// Exit code of one that ended.
    pub code: Option<i32>,
    /// Reason, such as `OOMKilled`.
    pub reason: Option<&'a str>,
}

/// Activity of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileActivity {
    /// It was created.
    Create = 1,
    /// It was read.
    Read = 2,
    /// It was written.
    Update = 3,
    /// It was deleted.
    Delete = 4,
    /// It was renamed.
    Rename = 5,
    /// It was opened.
    Open = 14,
}

/// Access to a file of a sandbox.
#[derive(Debug, Clone, Copy)]
pub struct FileAccess<'a> {
    /// Sandbox.
    pub sandbox: Sandbox<'a>,
    /// Caller.
    pub principal: Principal<'a>,
    /// Activity.
    pub activity: FileActivity,
    /// Path inside the sandbox.
    pub path: &'a str,
    /// True for a folder.
    pub is_folder: bool,
    /// Bytes.
    pub size: Option<u64>,
    /// Decision.
    pub verdict: Verdict<'a>,
}

impl Event {
    /// Returns the event of a command.
    pub fn exec(time: SystemTime, exec: &Exec<'_>) -> Event {
        let mut event = Event::new(time, Kind::Exec, 1, Some(&exec.verdict));
        event.actor = Some(user(&exec.principal));
        event.device = Some(device(&exec.sandbox, exec.container));
        event.process = Some(command(exec.uid, exec.arguments, exec.container));
        event.about(&exec.sandbox)
    }

    /// Returns the event of the end of a command.
    pub fn exit(time: SystemTime, exit: &Exit<'_>) -> Event {
        let verdict = match exit.failure {
            Some(_) => {
                let allowed = Verdict::of(Decision::Allowed);
                Verdict { reason: exit.failure, success: Some(false), ..allowed }
            }
            None => Verdict::of(Decision::Logged),
        };
        let mut event = Event::new(time, Kind::Exec, 2, Some(&verdict));
        event.actor = Some(user(&exit.principal));
        event.device = Some(device(&exit.sandbox, exit.container));
        event.process = Some(command(exit.uid, exit.arguments, exit.container));
        event.exit_code = exit.code;
        event.about(&exit.sandbox)
    }

    /// Returns the event of a container.
    pub fn lifecycle(time: SystemTime, lifecycle: &Lifecycle<'_>) -> Event {
        let (activity, name) = match lifecycle.change {
            Change::Started => (1, None),
            Change::Ended => (2, None),
            Change::Frozen => (99, Some("frozen")),
            Change::PagedOut => (99, Some("paged out")),
            Change::Thawed => (99, Some("thawed")),
        };
        let decision = if lifecycle.planned { Decision::Allowed } else { Decision::Logged };
        let verdict = Verdict { reason: lifecycle.reason, ..Verdict::of(decision) };
        let mut event = Event::new(time, Kind::Lifecycle, activity, Some(&verdict));
        event.actor = Some(Actor { app_name: Some(Text::name("hutch")), ..Actor::default() });
        event.device = Some(device(&lifecycle.sandbox, Some(lifecycle.container)));
        event.process = Some(process(lifecycle.uid, Some(lifecycle.container)));
        event.exit_code = lifecycle.code;
        let event = event.about(&lifecycle.sandbox);
        if let Some(name) = name { event.named(name) } else { event }
    }

    /// Returns the event of an access to a file.
    pub fn file(time: SystemTime, access: &FileAccess<'_>) -> Event {
        let mut event = Event::new(time, Kind::File, access.activity as u32, Some(&access.verdict));
        event.actor = Some(user(&access.principal));
        event.device = Some(device(&access.sandbox, None));
        let path = access.path.trim_end_matches('/');
        event.file = Some(File {
            name: Text::file(path.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or("/")),
            path: Text::file(access.path),
            type_id: if access.is_folder { 2 } else { 1 },
            size: access.size.map(long),
        });
        event.about(&access.sandbox)
    }
}

fn command(uid: &str, arguments: &[String], container: Option<&str>) -> Process {
    let name = arguments.first().map(|program| Text::program(program));
    let cmd_line = Some(Text::command(arguments));
    Process { name, cmd_line, ..process(uid, container) }
}

fn process(uid: &str, container: Option<&str>) -> Process {
    Process { uid: Text::name(uid), pid: None, name: None, cmd_line: None, container: container.map(named) }
}
