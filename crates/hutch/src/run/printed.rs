//! Lines that a user reads once: a file for each in the folder of the user's state.

use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::PathBuf;

use hutch_jail::CheckedFolder;
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;

/// Folder below that of the user's state. A file in it means that a line was printed.
const FOLDER: [&str; 2] = ["hutch", "printed"];
/// Folder of the user's state in the home.
const STATE: [&str; 2] = [".local", "state"];

/// Lines that the caller has read.
pub(super) struct Printed(Option<Place>);

impl Printed {
    pub(super) fn of_caller() -> Printed {
        Printed(Place::of(|name| std::env::var_os(name).map(PathBuf::from)))
    }

    /// Returns true once for each name of a line, or always if that cannot be stored.
    pub(super) fn is_new(&self, name: &str) -> bool {
        !self.0.as_ref().is_some_and(|place| place.has_or_takes(name))
    }
}

/// Where the files are: a folder that exists, and names of folders below it.
struct Place {
    base: PathBuf,
    below: Vec<&'static str>,
}

impl Place {
    /// Returns `XDG_STATE_HOME`, which is created if it does not exist, or its default in the home.
    fn of(variable: impl Fn(&str) -> Option<PathBuf>) -> Option<Place> {
        let absolute = |name: &str| variable(name).filter(|path| path.is_absolute());
        let (base, below) = match absolute("XDG_STATE_HOME") {
            Some(state) => {
                // As the specification of these folders says. A failure shows below.
                let _ = DirBuilder::new().recursive(true).mode(0o700).create(&state);
                (state, FOLDER.to_vec())
            }
            None => (absolute("HOME")?, [STATE, FOLDER].concat()),
        };
        let base = base.canonicalize().ok()?;
        // `sudo -E` leaves the home of the user: what root made there would stay root's.
        let is_own = base.metadata().is_ok_and(|found| found.uid() == rustix::process::geteuid().as_raw());
        is_own.then_some(Place { base, below })
    }

    /// Returns true if the file exists. Otherwise creates it, if possible: without it, a difference is printed again.
    ///
    /// No link below the base is followed: code of an earlier run may have made it.
    fn has_or_takes(&self, file: &str) -> bool {
        let mut folder = self.base.clone();
        for name in &self.below {
            folder.push(name);
            let made = DirBuilder::new().mode(0o700).create(&folder);
            let exists = |error: std::io::Error| error.kind() == std::io::ErrorKind::AlreadyExists;
            if made.is_err_and(|error| !exists(error)) || CheckedFolder::look(&folder).is_err() {
                return false;
            }
        }
        let Ok(folder) = CheckedFolder::look(&folder).and_then(|folder| folder.open()) else { return false };
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat(folder, file, flags, Mode::RUSR | Mode::WUSR).err() == Some(Errno::EXIST)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use super::*;

    fn place(state: Option<&Path>, home: Option<&Path>) -> Option<Place> {
        Place::of(|name| match name {
            "XDG_STATE_HOME" => state.map(Path::to_owned),
            "HOME" => home.map(Path::to_owned),
            _ => None,
        })
    }

    #[test]
    fn file_is_created_once_in_the_state_of_the_user() {
        let home = tempfile::tempdir().unwrap();
        let state = tempfile::tempdir().unwrap();
        for (state, expected) in [
            (None, home.path().join(".local/state/hutch/printed/x")),
            (Some(Path::new("relative")), home.path().join(".local/state/hutch/printed/y")),
            (Some(state.path()), state.path().join("hutch/printed/z")),
        ] {
            let place = place(state, Some(home.path())).unwrap();
            let name = expected.file_name().unwrap().to_str().unwrap();
            assert!(!place.has_or_takes(name) && expected.is_file());
            assert!(place.has_or_takes(name), "it is there");
        }
        assert!(place(None, None).is_none() && place(None, Some(&home.path().join("missing"))).is_none());
    }

    #[test]
    fn missing_folder_of_the_state_is_created_for_the_user_alone() {
        let home = tempfile::tempdir().unwrap();
        let mode =
            |name: &str| std::fs::metadata(home.path().join(name)).unwrap().permissions().mode() & 0o777;
        let of_the_variable = place(Some(&home.path().join("a/state")), None).unwrap();
        assert!(!of_the_variable.has_or_takes("x") && of_the_variable.has_or_takes("x"));
        let of_the_home = place(None, Some(home.path())).unwrap();
        assert!(!of_the_home.has_or_takes("x") && of_the_home.has_or_takes("x"));
        for name in ["a", "a/state", "a/state/hutch", ".local", ".local/state", ".local/state/hutch/printed"]
        {
            assert_eq!(mode(name), 0o700, "{name}");
        }
        std::fs::write(home.path().join("file"), "").unwrap();
        assert!(place(Some(&home.path().join("file/state")), None).is_none(), "it cannot be created");
    }

    #[test]
    fn link_below_the_home_is_not_followed() {
        let home = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(home.path().join(".local/state")).unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), home.path().join(".local/state/hutch")).unwrap();
        assert!(!place(None, Some(home.path())).unwrap().has_or_takes("x"));
        assert_eq!(std::fs::read_dir(elsewhere.path()).unwrap().count(), 0);
    }
}
