//! The program run by an ordinary user, and objects given to a server.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::harness::{Up, binary, printed_before};

/// Uid and gid of an ordinary user.
pub(crate) const ORDINARY: u32 = 65534;

/// User that runs the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Caller {
    Root,
    Ordinary,
}

/// A folder that all users may enter, with the program and the home folder of an ordinary user in it.
pub(crate) struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    pub(crate) fn new() -> Place {
        let folder = tempfile::tempdir().expect("tempdir");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("mode");
        // The program may lie where an ordinary user cannot reach it.
        // Copied by another process: one that this process forks meanwhile would keep the file open for writing, and then
        // it cannot be executed.
        let copied = Command::new("cp").arg(binary()).arg(folder.path().join("hutch")).status();
        assert!(copied.expect("cp").success());
        let place = Place { folder };
        printed_before(&place.folder_of(Caller::Ordinary, "home"), ORDINARY);
        place
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// A new folder that belongs to this caller.
    pub(crate) fn folder_of(&self, caller: Caller, name: &str) -> PathBuf {
        let path = self.path().join(name);
        fs::create_dir(&path).expect("folder");
        if caller == Caller::Ordinary {
            std::os::unix::fs::chown(&path, Some(ORDINARY), Some(ORDINARY)).expect("owner");
        }
        path
    }

    /// `hutch run` with these options and this script for `sh`.
    pub(crate) fn run(&self, caller: Caller, options: &[&str], script: &str) -> Command {
        let words: Vec<&str> =
            ["run"].iter().chain(options).chain(&["--", "sh", "-c", script]).copied().collect();
        self.program(caller, &words)
    }

    /// The program with these arguments.
    pub(crate) fn program(&self, caller: Caller, words: &[&str]) -> Command {
        let program = self.path().join("hutch");
        let mut command = match caller {
            Caller::Root => Command::new(program),
            Caller::Ordinary => {
                let mut setpriv = Command::new("setpriv");
                let id = [format!("--reuid={ORDINARY}"), format!("--regid={ORDINARY}")];
                setpriv.args(id).arg("--clear-groups").arg(program);
                setpriv
            }
        };
        command.args(words);
        command
            .env("HOME", self.path().join("home"))
            .env_remove("XDG_CACHE_HOME")
            .env_remove("XDG_STATE_HOME");
        command.current_dir("/").stdin(Stdio::null());
        command
    }
}

/// `kubectl apply` of an object, which must succeed.
#[track_caller]
pub(crate) fn apply(up: &Up, object: &Value) {
    let file = tempfile::NamedTempFile::new().expect("file");
    fs::write(file.path(), object.to_string()).expect("write");
    up.ok_args(&["apply", "-f", &file.path().display().to_string()]);
}
