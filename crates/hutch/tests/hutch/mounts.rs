//! `hutch run --mount`: further files and folders of the machine.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::egress::{Caller, callers};
use crate::harness::{link_program, printed_before, refused, succeeded, text};

/// Owner of the files: the ordinary user.
const USER: u32 = 1000;

/// Removes the variables that name folders of tools, so that they are those below HOME.
pub(crate) fn without_tools(command: &mut Command) {
    let names = [
        "XDG_CACHE_HOME",
        "XDG_STATE_HOME",
        "CARGO_HOME",
        "RUSTUP_HOME",
        "GOPATH",
        "GOMODCACHE",
        "NVM_DIR",
        "PYENV_ROOT",
    ];
    for name in names.iter().chain(&["npm_config_cache", "PIP_CACHE_DIR", "UV_CACHE_DIR"]) {
        command.env_remove(name);
    }
}

/// Folders and files of the user, and a copy of the program that the user can execute.
pub(crate) struct Home {
    folder: tempfile::TempDir,
}

impl Home {
    pub(crate) fn new() -> Home {
        let folder = tempfile::tempdir().expect("tempdir");
        let home = Home { folder };
        std::fs::set_permissions(home.path(""), PermissionsExt::from_mode(0o755)).expect("chmod");
        for name in ["", "work", "data", "data/.git", "cache", "home"] {
            let _ = std::fs::create_dir(home.path(name));
            home.own(name);
        }
        for name in ["file", "data/file"] {
            std::fs::write(home.path(name), "before\n").expect("written");
            home.own(name);
        }
        link_program(home.path("hutch"));
        printed_before(&home.path("home"), USER);
        home
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        if name.is_empty() { self.folder.path().to_owned() } else { self.folder.path().join(name) }
    }

    pub(crate) fn own(&self, name: &str) {
        std::os::unix::fs::chown(self.path(name), Some(USER), Some(USER)).expect("chown");
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).expect(name)
    }

    /// `hutch run` with the workspace `work`, options in which `@` is the folder, and a script.
    pub(crate) fn run(&self, caller: Caller, options: &[&str], script: &str) -> Output {
        let workspace = self.path("work").display().to_string();
        self.run_at(caller, Path::new("/"), &[&["--workspace", &workspace], options].concat(), script)
    }

    /// `hutch run` with the workspace `work` and further variables of the caller.
    pub(crate) fn run_with(
        &self,
        caller: Caller,
        variables: &[(&str, &str)],
        options: &[&str],
        script: &str,
    ) -> Output {
        let workspace = self.path("work").display().to_string();
        let options = [&["--workspace", &workspace], options].concat();
        let mut command = self.command(caller, Path::new("/"), &options, script);
        command.envs(variables.iter().copied()).output().expect("hutch")
    }

    /// `hutch run` in this working directory, with options in which `@` is the folder, and a script.
    pub(crate) fn run_at(&self, caller: Caller, place: &Path, options: &[&str], script: &str) -> Output {
        self.command(caller, place, options, script).output().expect("hutch")
    }

    pub(crate) fn command(&self, caller: Caller, place: &Path, options: &[&str], script: &str) -> Command {
        let hutch = self.path("hutch");
        let mut command = match caller {
            Caller::Ordinary => {
                let mut setpriv = Command::new("setpriv");
                setpriv.args(["--reuid=1000", "--regid=1000", "--clear-groups"]).arg(hutch);
                setpriv
            }
            Caller::Root | Caller::InGvisor => Command::new(hutch),
        };
        command.arg("run");
        if matches!(caller, Caller::InGvisor) {
            command.args(["--isolation", "gvisor"]);
        }
        let folder = self.path("").display().to_string();
        command.args(options.iter().map(|option| option.replace('@', &folder)));
        command.args(["--", "sh", "-c", &script.replace('@', &folder)]);
        command.env("HOME", self.path("home"));
        without_tools(&mut command);
        command.current_dir(place).stdin(Stdio::null());
        command
    }
}

#[test]
fn folders_and_files_appear_where_they_are_wanted_and_can_be_written_where_allowed() {
    hutch_testkit::require!(root, user_namespaces);
    for caller in callers() {
        let home = Home::new();
        let options = [
            "--mount",
            "@/data",
            "--mount",
            "@/cache:/var/cache/of mine",
            "--mount",
            "@/file:/etc/app/file:ro",
        ];
        let script = "cat @/data/file /etc/app/file && echo after > @/data/file && echo new > '/var/cache/of mine/new' \
            && ls -a @ && ! echo x > /etc/app/file";
        let output = home.run(caller, &options, script);
        let printed = succeeded(&format!("{caller:?}"), &output);
        assert_eq!(
            printed, "before\nbefore\n.\n..\ndata\nwork\n",
            "{caller:?}: only what is mounted is there"
        );
        assert_eq!(
            (home.read("data/file"), home.read("cache/new")),
            ("after\n".into(), "new\n".into()),
            "{caller:?}"
        );
        assert_eq!(std::fs::metadata(home.path("cache/new")).expect("new").uid(), USER, "{caller:?}");
        assert_eq!(home.read("file"), "before\n");

        let output = home.run(
            caller,
            &["--mount", "@/data:ro"],
            "echo x > @/data/file || touch @/data/y || rm @/data/file",
        );
        assert!(!output.status.success(), "{caller:?}");
        assert_eq!(home.read("data/file"), "after\n", "{caller:?}");
        assert!(!home.path("data/y").exists(), "{caller:?}");
    }
}

#[test]
fn files_of_a_mounted_folder_that_run_on_the_machine_later_are_protected() {
    hutch_testkit::require!(root, user_namespaces);
    for caller in callers() {
        let home = Home::new();
        let script = "mkdir -p /d/.git/hooks; echo x > /d/.git/hooks/pre-commit; echo x > /d/.envrc; mv /d/.git /d/g; \
            mkdir -p /d/deep/.vscode; echo ok > /d/deep/.vscode/tasks.json";
        let output = home.run(caller, &["--mount", "@/data:/d"], script);
        assert!(
            !home.path("data/.git/hooks/pre-commit").exists() && !home.path("data/.envrc").exists(),
            "{caller:?}"
        );
        assert!(home.path("data/.git").is_dir() && !home.path("data/g").exists(), "{caller:?}");
        let stderr = text(&output.stderr);
        assert!(stderr.contains("new or changed here: /d/deep/.vscode"), "{caller:?}: {stderr}");
        let names: Vec<_> =
            std::fs::read_dir(home.path("data")).expect("data").flatten().map(|e| e.file_name()).collect();
        assert_eq!(names.len(), 3, "no placeholder stays: {names:?}");
    }
}

#[test]
fn what_differs_without_root_is_printed_once_for_a_user() {
    hutch_testkit::require!(root, user_namespaces);
    let home = Home::new();
    let run = |caller, variables: &[(&str, &str)], options: &[&str]| {
        let output = home.run_with(caller, variables, options, "echo ran; echo own >&2");
        assert_eq!(succeeded("hutch", &output), "ran\n");
        // The command runs while it is printed.
        let stderr = text(&output.stderr);
        assert!(stderr.contains("own\n"), "{stderr}");
        stderr.replacen("own\n", "", 1)
    };
    assert_eq!(run(Caller::Ordinary, &[], &["--allow", "a.example"]), "", "printed before");
    std::fs::remove_dir_all(home.path("home/.local")).expect("removed");
    assert_eq!(run(Caller::Root, &[], &["--allow", "a.example"]), "", "root differs in nothing");
    let first = run(Caller::Ordinary, &[], &[]);
    assert!(first.starts_with("hutch: without root: ") && first.lines().count() == 1, "{first}");
    assert!(first.contains("your user id") && first.contains("mounted below"), "{first}");
    assert!(!first.contains("proxy"), "this command has none: {first}");
    assert_eq!(run(Caller::Ordinary, &[], &[]), "");
    let with_network = run(Caller::Ordinary, &[], &["--allow", "a.example"]);
    assert!(with_network.contains("proxy") && !with_network.contains("mounted below"), "{with_network}");
    assert_eq!(run(Caller::Ordinary, &[], &["--allow", "a.example"]), "");
    // It is printed each time where that cannot be stored.
    let cache = home.path("cache").display().to_string();
    for variable in [("HOME", "/nonexistent"), ("HOME", "/proc"), ("XDG_STATE_HOME", "/sys")] {
        let variables = [variable, ("XDG_CACHE_HOME", &cache)];
        assert_eq!(run(Caller::Ordinary, &variables, &[]), first, "{variable:?}");
    }
}

#[test]
fn folder_that_the_caller_cannot_write_is_refused_with_the_way_out() {
    hutch_testkit::require!(root, user_namespaces);
    let home = Home::new();
    for name in ["theirs", "theirs-too"] {
        std::fs::create_dir(home.path(name)).expect("made");
        std::fs::set_permissions(home.path(name), PermissionsExt::from_mode(0o755)).expect("chmod");
    }
    let output = home.run(Caller::Ordinary, &["--mount", "@/theirs:/d"], "true");
    refused(
        &output,
        125,
        &["--mount", "/theirs: ", "cannot be written", "show it with `:ro` after its path"],
    );
    succeeded("hutch", &home.run(Caller::Ordinary, &["--mount", "@/theirs:/d:ro"], "test -d /d"));
    let place = Path::new("/");
    let output = home.run_at(Caller::Ordinary, place, &["--workspace", "@/theirs-too"], "true");
    refused(&output, 125, &["--workspace", "cannot be written", "show it with --read-only"]);
    let options = ["--workspace", "@/theirs-too", "--read-only"];
    succeeded("hutch", &home.run_at(Caller::Ordinary, place, &options, "true"));
}

#[test]
fn mounts_that_would_open_more_than_they_say_are_refused() {
    hutch_testkit::require!(root, user_namespaces);
    let home = Home::new();
    let link = |name: &str, to: &Path| std::os::unix::fs::symlink(to, home.path(name)).expect("link");
    link("link", &home.path("data"));
    link("file-link", &home.path("file"));
    let _socket = std::os::unix::net::UnixListener::bind(home.path("socket")).expect("socket");
    for (mount, named) in [
        ("@/missing", "No such file"),
        ("@/link", "symbolic link"),
        ("@/file-link", "symbolic link"),
        ("@/socket", "neither a file nor a folder"),
        ("/", "whole machine"),
        ("/dev/null:/x", "neither a file nor a folder"),
        ("@/data:/proc/x", "at or below /proc"),
        ("@/data:/workspace/x", "at or below /workspace"),
        ("@/data:/tmp", "mounted already"),
        ("@/data:/usr", "mounted already"),
        ("@/data:/", "below /"),
        ("@/data:/a/../proc", ".."),
        ("@/data:x", "SRC[:DST][:ro]"),
        ("@/work/..:/up", "overlaps"),
        ("@/work/..:/up:ro", "overlaps"),
        ("@/work:/again", "overlaps"),
    ] {
        for caller in [Caller::Root, Caller::Ordinary] {
            let output = home.run(caller, &["--mount", mount], "true");
            refused(&output, 125, &["--mount", named]);
        }
    }
    let twice = ["--mount", "@/data:/d", "--mount", "@/cache:/d/e"];
    refused(&home.run(Caller::Root, &twice, "true"), 125, &["/d is mounted already"]);
    std::fs::create_dir(home.path("work/sub")).expect("made");
    refused(&home.run(Caller::Root, &["--mount", "@/work/sub:/s"], "true"), 125, &["overlaps"]);
    let both = ["--read-only", "--mount", "@/work:/again:ro"];
    assert!(home.run(Caller::Root, &both, "test -d /again").status.success());
}

#[test]
fn toolchain_that_is_not_shown_or_cannot_be_used_is_named() {
    hutch_testkit::require!(root, user_namespaces);
    let home = Home::new();
    for folder in ["home/.cargo", "home/.cargo/bin"] {
        std::fs::create_dir(home.path(folder)).expect("made");
    }
    let tool = home.path("home/.cargo/bin/some-tool");
    std::fs::write(&tool, "#!/bin/sh\necho ran\n").expect("written");
    std::fs::set_permissions(&tool, PermissionsExt::from_mode(0o755)).expect("chmod");
    let path = format!("{}:/usr/bin:/bin", home.path("home/.cargo/bin").display());
    let run = |options: &[&str]| {
        let mut command = Command::new(home.path("hutch"));
        command.args(["run", "--workspace"]).arg(home.path("work")).args(options).args(["--", "some-tool"]);
        without_tools(&mut command);
        command.env("HOME", home.path("home")).env("PATH", &path).output().expect("hutch")
    };
    refused(&run(&[]), 127, &["some-tool", "; --tools shows the caller's toolchains"]);
    assert_eq!(succeeded("a tool", &run(&["--tools"])), "ran\n");
    std::os::unix::fs::chown(home.path("home"), Some(0), Some(0)).expect("chown");
    std::fs::set_permissions(home.path("home"), PermissionsExt::from_mode(0o700)).expect("chmod");
    let stderr = text(&run(&["--tools"]).stderr).to_string();
    assert!(stderr.contains("runs as uid 1000, the owner of the workspace, and cannot use"), "{stderr}");
}
