use std::os::unix::process::ExitStatusExt;
use std::sync::Arc;

use hutch_kubelet::Exit;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::{Child, Command};

use super::pods::Minder;

/// A process that leads a group. When it has ended or is dropped, the rest of its group is killed.
pub(super) struct Process {
    child: Child,
    group: Pid,
    minder: Arc<Minder>,
}

impl Process {
    /// Starts it; `command` must make it the leader of a group.
    pub(super) fn start(command: &mut Command, minder: &Arc<Minder>) -> std::io::Result<Process> {
        let child = command.kill_on_drop(true).spawn()?;
        let id = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        let group = id.ok_or(std::io::Error::other("it has ended already"))?;
        minder.watch(group);
        Ok(Process { child, group, minder: minder.clone() })
    }

    /// Its streams are to be taken from here.
    pub(super) fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    pub(super) fn group(&self) -> Pid {
        self.group
    }

    pub(super) async fn ended(mut self) -> Exit {
        match self.child.wait().await {
            Ok(status) => status.signal().map_or(Exit::Code(status.code().unwrap_or(-1)), Exit::Signal),
            Err(error) => Exit::Failed(error.to_string()),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The group may be empty.
        let _ = kill_process_group(self.group, Signal::KILL);
        self.minder.forget(self.group);
    }
}
