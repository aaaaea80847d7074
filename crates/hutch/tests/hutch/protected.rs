//! Traces of a run that the next one, or programs of the machine, would take up: each is a regression found by review.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::egress::{Caller, callers};
use crate::harness::{refused, succeeded, text};
use crate::mounts::Home;
use crate::paths::{file_rules, make};

/// A mount for the time of a test.
struct Mounted(PathBuf);

impl Mounted {
    fn new(options: &[&str], at: PathBuf) -> Mounted {
        std::fs::create_dir_all(&at).expect("a mount point");
        assert!(Command::new("mount").args(options).arg(&at).status().expect("mount").success());
        Mounted(at)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn images_of_later_runs_cannot_be_written() {
    hutch_testkit::require!(root, user_namespaces);
    let home = Home::new();
    succeeded("the image is there", &home.run(Caller::Ordinary, &[], "true"));
    let cache = home.path("home/.cache");
    let mount = ["--mount", cache.to_str().expect("a path")];
    let script = "cd @/home/.cache; echo x > own && cat own; for image in hutch/images/*/etc; do echo x > $image/ld.so.preload; done; \
        mv hutch h; mkdir hutch/images/other; find . -name ld.so.preload";
    let output = home.run(Caller::Ordinary, &mount, script);
    assert_eq!(text(&output.stdout), "x\n", "{}", text(&output.stderr));
    let images = format!("{}/hutch", cache.display());
    for source in [images.clone(), format!("{images}/images")] {
        refused(
            &home.run(Caller::Ordinary, &["--mount", &source], "true"),
            125,
            &["later commands of hutch read", "`:ro`"],
        );
    }
    succeeded("read-only", &home.run(Caller::Ordinary, &["--mount", &format!("{images}:ro")], "true"));
}

/// By another path of the same folder.
#[test]
fn images_of_later_runs_cannot_be_written_by_a_bind_mount() {
    hutch_testkit::require!(root, user_namespaces);
    let home = Home::new();
    succeeded("the image is there", &home.run(Caller::Ordinary, &[], "true"));
    let source = home.path("home").display().to_string();
    let _mounted = Mounted::new(&["--bind", &source], home.path("alias"));
    let script = "for image in /c/hutch/images/*/etc; do echo x > $image/new; done; find /c -name new";
    let output = home.run(Caller::Ordinary, &["--mount", "@/alias/.cache:/c"], script);
    assert_eq!(text(&output.stdout), "", "{}", text(&output.stderr));
}

#[test]
fn files_that_flags_name_cannot_be_written() {
    hutch_testkit::require!(root, user_namespaces);
    for caller in callers() {
        let home = Home::new();
        make(&home, &["work/sub/a"]);
        let rule = r#"{"path": "/workspace/sub", "access": "Read"}"#;
        let [_, policy] = file_rules(&home, rule);
        std::fs::rename(policy, home.path("work/policy.json")).expect("moved");
        write_settings(&home, "work/settings.json", "[]");
        let config = format!(r#"{{"filesystem": {{"workspace": "{}"}}}}"#, home.path("work").display());
        std::fs::write(home.path("work/config.json"), config).expect("written");
        home.own("work/config.json");
        for (options, file) in [
            (["--policy", "@/work/policy.json"], "policy.json"),
            (["--settings", "@/work/settings.json"], "settings.json"),
            (["--config", "@/work/config.json"], "config.json"),
        ] {
            // The file says which isolation it is.
            if matches!((options[0], caller), ("--config", Caller::InGvisor)) {
                continue;
            }
            let before = home.read(&format!("work/{file}"));
            let script =
                format!("echo x > {file}; rm -f {file}; mv {file} moved; echo x > other && cat other");
            let output = match options[0] {
                "--settings" | "--config" => home.run_at(caller, &home.path("work"), &options, &script),
                _ => home.run(caller, &options, &script),
            };
            assert_eq!(text(&output.stdout), "x\n", "{caller:?} {options:?}: {}", text(&output.stderr));
            assert_eq!(home.read(&format!("work/{file}")), before, "{caller:?} {options:?}");
        }
        std::fs::write(home.path("data/policy.json"), whole_network()).expect("written");
        home.own("data/policy.json");
        for mount in ["@/data/policy.json:/p", "@/data:/d"] {
            let options = ["--policy", "@/data/policy.json", "--mount", mount];
            let output = home.run(caller, &options, "echo x > /d/policy.json; echo x > /d/new && cat /d/new");
            match mount.ends_with("/p") {
                true => refused(&output, 125, &["policy.json", "`:ro`"]),
                false => assert_eq!(text(&output.stdout), "x\n", "{caller:?}: {}", text(&output.stderr)),
            }
            assert_eq!(home.read("data/policy.json"), whole_network());
        }
    }
}

/// A link in the workspace, to which another one leads, could be replaced for the next run.
#[test]
fn link_to_a_file_of_policies_that_could_be_replaced_is_refused() {
    hutch_testkit::require!(root, user_namespaces);
    for caller in callers() {
        let home = Home::new();
        std::fs::write(home.path("data/real.json"), whole_network()).expect("written");
        home.own("data/real.json");
        std::os::unix::fs::symlink("../data/real.json", home.path("work/p.json")).expect("a link");
        std::os::unix::fs::symlink(home.path("work/p.json"), home.path("link.json")).expect("a link");
        for named in ["@/link.json", "@/work/p.json"] {
            refused(
                &home.run(caller, &["--policy", named], "true"),
                125,
                &["work/p.json is a symbolic link"],
            );
        }
        succeeded("read-only", &home.run(caller, &["--policy", "@/link.json", "--read-only"], "true"));
        // The proxy would read what the link leads to then, and send it.
        let with_value = |file: &str| {
            format!(
                r#"{{"apiVersion": "policy.hutch.dev/v1alpha1", "kind": "SandboxPolicy", "metadata": {{"name": "a"}},
                    "spec": {{"egress": {{"rules": [{{"name": "a", "hosts": ["a.example"]}}]}}, "credentials": [
                        {{"name": "c", "source": {{"file": "{file}"}}, "hosts": ["a.example"], "env": "C"}}]}}}}"#
            )
        };
        std::fs::write(home.path("data/token"), "0123456789abcdef").expect("written");
        std::os::unix::fs::symlink("../data/token", home.path("work/token")).expect("a link");
        for (file, is_refused) in [("work/token", true), ("data/token", false)] {
            std::fs::write(home.path("policy.json"), with_value(&home.path(file).display().to_string()))
                .expect("written");
            let output = home.run(caller, &["--policy", "@/policy.json"], "true");
            match is_refused {
                true => refused(&output, 125, &["source.file", "work/token is a symbolic link"]),
                false => drop(succeeded("not shown", &output)),
            }
        }
    }
}

/// The command could write what the next command of the user runs.
#[test]
fn toolchains_in_a_workspace_that_is_the_home_are_refused() {
    hutch_testkit::require!(root, user_namespaces);
    let home = Home::new();
    make(&home, &["home/.cargo/bin/cargo"]);
    let run = |workspace: &str, options: &[&str]| {
        let options = [&["--workspace", workspace, "--tools"], options].concat();
        home.run_at(Caller::Ordinary, Path::new("/"), &options, "true")
    };
    let alias = format!("{}-alias", home.path("").display());
    let _mounted = Mounted::new(&["--bind", &home.path("").display().to_string()], PathBuf::from(&alias));
    for workspace in ["@/home", "@", &format!("{alias}/home"), &alias] {
        refused(&run(workspace, &[]), 125, &["--tools", "your home folder"]);
    }
    succeeded("read-only", &run("@/home", &["--read-only"]));
    succeeded("a project", &run("@/work", &[]));
}

/// Makes a root file system with a shell and its libraries.
fn shell_root(root: &Path) {
    let script = "for file in $(command -v sh) $(ldd $(command -v sh) | grep -o '/[^ ]*'); do \
         mkdir -p \"$0/$(dirname $file)\"; cp -L $file \"$0$file\"; done; mkdir -p $0/bin; cp -n $(command -v sh) $0/bin/sh; chown -R 1000:1000 $0";
    let made = Command::new("sh").args(["-c", script]).arg(root).status();
    assert!(made.expect("sh").success());
}

#[test]
fn root_file_system_that_a_flag_names_cannot_be_written() {
    hutch_testkit::require!(root, user_namespaces);
    for caller in callers() {
        let home = Home::new();
        let root = home.path("data/root");
        shell_root(&root);
        let options = ["--rootfs", "@/data/root", "--mount", "@/data:/d"];
        let script = "echo x > /d/root/bin/new; echo x > /d/root/bin/sh; echo x > /d/new && echo over";
        let output = home.run(caller, &options, script);
        assert_eq!(text(&output.stdout), "over\n", "{caller:?}: {}", text(&output.stderr));
        assert!(!root.join("bin/new").exists(), "{caller:?}");
        assert!(root.join("bin/sh").metadata().expect("the shell").len() > 2, "{caller:?}");
        let options = ["--rootfs", "@/data/root", "--mount", "@/data/root/bin:/d"];
        refused(&home.run(caller, &options, "echo"), 125, &["later commands of hutch read", "data/root"]);
    }
}

/// Writes settings that let the working directory be written, but for these paths: a list as JSON.
fn write_settings(home: &Home, name: &str, denied: &str) {
    let settings = format!(
        r#"{{"network": {{"allowedDomains": [], "deniedDomains": []}},
            "filesystem": {{"allowWrite": ["."], "denyWrite": {denied}, "denyRead": []}}}}"#
    );
    std::fs::write(home.path(name), settings).expect("written");
    home.own(name);
}

/// A policy without rules for files.
fn whole_network() -> &'static str {
    r#"{"apiVersion": "policy.hutch.dev/v1alpha1", "kind": "SandboxPolicy", "metadata": {"name": "a"},
        "spec": {"egress": {"rules": [{"name": "a", "hosts": ["a.example"]}]}}}"#
}

#[test]
fn paths_that_are_not_to_be_written_are_closed_by_every_mount_and_link() {
    hutch_testkit::require!(root, user_namespaces);
    let home = Home::new();
    make(&home, &["work/docs/a", "work/.git/hooks/a", "data/key"]);
    let source = home.path("work").display().to_string();
    let _mounted = Mounted::new(&["--bind", &source], home.path("alias"));
    let denied = format!(r#"["{source}/docs", "{source}/new"]"#);
    write_settings(&home, "settings.json", &denied);
    for caller in callers() {
        let script = "echo x > docs/a; echo x > docs/b; echo x > new; cat docs/a";
        let output = home.run_at(caller, &home.path("alias"), &["--settings", "@/settings.json"], script);
        assert_eq!(text(&output.stdout), "SECRET\n", "{caller:?}: {}", text(&output.stderr));
        assert!(!home.path("work/docs/b").exists() && !home.path("work/new").exists(), "{caller:?}");
    }
    // Mounts in the workspace, which an ordinary user's command sees.
    let [data, git] = ["data", "work/.git"].map(|name| home.path(name).display().to_string());
    let _data = Mounted::new(&["--bind", &data], home.path("work/sub"));
    let _git = Mounted::new(&["--bind", &git], home.path("work/again"));
    let script = "cat sub/key; echo x > again/hooks/new; echo x > again/config; cat sub/file";
    let output = home.run(Caller::Ordinary, &["--deny-read", "@/data/key"], script);
    assert_eq!(text(&output.stdout), "before\n", "{}", text(&output.stderr));
    assert!(!home.path("work/.git/hooks/new").exists() && !home.path("work/.git/config").exists());
    // A link on the way that the command could replace.
    std::fs::create_dir(home.path("work/real")).expect("made");
    std::os::unix::fs::symlink("real", home.path("work/current")).expect("a link");
    std::os::unix::fs::symlink(home.path("work/current"), home.path("link")).expect("a link");
    let denied = format!(r#"["{}/f"]"#, home.path("link").display());
    write_settings(&home, "settings.json", &denied);
    let output =
        home.run_at(Caller::Ordinary, &home.path("work"), &["--settings", "@/settings.json"], "true");
    refused(&output, 125, &["current is a symbolic link that the command could replace"]);
}

#[test]
fn startup_files_are_protected_also_beside_a_home() {
    hutch_testkit::require!(root, user_namespaces);
    // Root runs the command as the owner of the workspace.
    for (caller, flag, folder) in [
        (Caller::Ordinary, "--mount", "@/home"),
        (Caller::Ordinary, "--workspace", "@/home"),
        (Caller::Ordinary, "--mount", "@"),
        (Caller::Root, "--workspace", "@/home"),
        (Caller::Root, "--workspace", "@"),
    ] {
        let home = Home::new();
        home.own("");
        make(&home, &["home/.config/git/config", "home/.bashrc", "home/.kube/config", "home/.config/app"]);
        let script = "cd @/home; echo x > .config/git/config; echo x > .bashrc; echo x > .profile; mv .config c; \
            echo x > .kube/config; mkdir -p .docker; echo x > .docker/config.json; echo x > .config/app";
        let output = home.run_at(caller, Path::new("/"), &[flag, folder], script);
        let printed = text(&output.stderr);
        for file in ["home/.config/git/config", "home/.bashrc", "home/.kube/config"] {
            assert_eq!(home.read(file), "SECRET\n", "{caller:?} {flag} {folder}: {printed}");
        }
        assert_eq!(home.read("home/.config/app"), "x\n", "{caller:?} {flag} {folder}: {printed}");
        let made = home.path("home/.profile").exists() || home.path("home/.docker").exists();
        assert!(!made, "{caller:?} {flag} {folder}: {printed}");
    }
    let home = Home::new();
    make(&home, &["home/.config/git/config", "home/.config/app"]);
    let script = "echo x > /c/git/config; echo y > /c/app";
    home.run(Caller::Ordinary, &["--mount", "@/home/.config:/c"], script);
    assert_eq!(
        (home.read("home/.config/git/config"), home.read("home/.config/app")),
        ("SECRET\n".into(), "y\n".into())
    );
}

#[test]
fn names_in_errors_are_shown_without_control_characters() {
    hutch_testkit::require!(root, user_namespaces);
    let home = Home::new();
    let name = "work/.git/hooks/a\u{1b}]0;title\u{7}\nhutch: fine";
    make(&home, &["work/.git/config", name]);
    std::fs::hard_link(home.path(name), home.path("work/second")).expect("a link");
    let printed = text(&home.run(Caller::Ordinary, &[], "true").stderr);
    assert!(printed.contains("hard link") && !printed.contains('\u{1b}'), "{printed:?}");
    assert_eq!(printed.lines().count(), 1, "{printed:?}");
}

#[test]
fn repository_that_a_rule_closes_is_not_made() {
    hutch_testkit::require!(root, user_namespaces);
    for caller in callers() {
        for (path, access) in
            [(".git", "Read"), (".git", "None"), (".git/config", "Read"), (".git/hooks", "None")]
        {
            let home = Home::new();
            let rule = format!(r#"{{"path": "/workspace/{path}", "access": "{access}"}}"#);
            let options = file_rules(&home, &rule);
            let script = format!(
                "mkdir -p {path} && touch {path}/x; echo x > {path}; mkdir .git; git init -q . && git config a.b c"
            );
            home.run(caller, &options.each_ref().map(String::as_str), &script);
            let left = home.path(&format!("work/{path}"));
            assert!(!left.exists(), "{caller:?} {path} {access}");
        }
    }
}

#[test]
fn what_is_mounted_in_a_workspace_is_not_shown_by_what_hides_something_there() {
    hutch_testkit::require!(root);
    let home = Home::new();
    make(&home, &["work/sub/z/.env", "work/.env"]);
    let _mounted = Mounted::new(&["-t", "tmpfs", "tmpfs"], home.path("work/sub"));
    make(&home, &["work/sub/z/.env", "work/sub/other"]);
    let options = ["--deny-read", "@/work/sub/z/.env", "--deny-read", "@/work/.env"];
    let output =
        home.run(Caller::Root, &options, "cat sub/other sub/z/.env .env; echo x > sub/other; echo over");
    let printed = text(&output.stdout);
    assert!(!printed.contains("SECRET") && printed.ends_with("over\n"), "{output:?}");
    assert_eq!(home.read("work/sub/other"), "SECRET\n");
    let _git = Mounted::new(&["-t", "tmpfs", "tmpfs"], home.path("work/.git"));
    refused(&home.run(Caller::Root, &[], "true"), 125, &["--workspace", ".git", "on another mount"]);
}

#[test]
fn bind_mount_is_no_second_way_to_what_is_hidden_or_protected() {
    hutch_testkit::require!(root, user_namespaces);
    let home = Home::new();
    make(&home, &["work/.env", "work/.git/config"]);
    let source = home.path("work").display().to_string();
    let _mounted = Mounted::new(&["--bind", &source], home.path("alias"));
    for caller in callers() {
        let options = ["--read-only", "--deny-read", "@/work/.env", "--mount", "@/alias:/a:ro"];
        let output = home.run(caller, &options, "cat .env /a/.env; cat /a/.git/config");
        assert_eq!(text(&output.stdout), "SECRET\n", "{caller:?}: {}", text(&output.stderr));
        for mount in ["@/alias:/a", "@/alias/.git:/a"] {
            refused(&home.run(caller, &["--mount", mount], "true"), 125, &["--mount", "overlaps"]);
        }
    }
}

/// Found by attack: each of these compared paths by their names.
#[test]
fn every_rule_about_paths_holds_where_the_folder_is_named_by_a_bind_mount() {
    hutch_testkit::require!(root, user_namespaces);
    for caller in [Caller::Root, Caller::Ordinary] {
        let home = Home::new();
        home.own("");
        make(
            &home,
            &[
                "home/.bashrc",
                "home/.config/git/config",
                "work/.bare/config",
                "work/.bare/hooks/a",
                "work/out/a",
            ],
        );
        let [real, alias] = ["", "../alias"].map(|name| home.path(name).display().to_string());
        let alias = alias.replace("/../alias", "-alias");
        let _mounted = Mounted::new(&["--bind", &real], PathBuf::from(&alias));
        // A repository that a file names by its path.
        std::fs::write(home.path("work/.git"), format!("gitdir: {real}/work/.bare\n")).expect("written");
        home.own("work/.git");
        let run = |workspace: &str, options: &[&str], script: &str| {
            let workspace = workspace.replace('&', &alias);
            let options = [&["--workspace", &workspace], options].concat();
            home.run_at(caller, Path::new("/"), &options, script)
        };
        run("&/work", &[], "echo x > .bare/config; echo x > .bare/hooks/b; echo x > new");
        assert_eq!(home.read("work/.bare/config"), "SECRET\n", "{caller:?}");
        assert!(home.path("work/new").exists() && !home.path("work/.bare/hooks/b").exists(), "{caller:?}");
        // Files of a home.
        run("&", &[], "echo x > home/.bashrc; echo x > home/.config/git/config; echo x > home/new");
        run("&/home/.config", &[], "echo x > git/config");
        assert_eq!(
            home.read("home/.bashrc") + &home.read("home/.config/git/config"),
            "SECRET\nSECRET\n",
            "{caller:?}"
        );
        assert!(home.path("home/new").exists(), "{caller:?}");
        // What settings open and deny, and policies close.
        let settings = format!(
            r#"{{"network": {{"allowedDomains": [], "deniedDomains": []}},
                "filesystem": {{"allowWrite": ["out"], "denyWrite": ["{alias}/work/out"], "denyRead": []}}}}"#
        );
        std::fs::write(home.path("settings.json"), &settings).expect("written");
        let script = "echo x > out/b; cat out/a";
        let settings_of = |options: &[&str]| {
            let options = [&["--settings", "@/settings.json"], options].concat();
            text(&home.run_at(caller, &home.path("work"), &options, script).stdout)
        };
        assert_eq!(settings_of(&[]), "SECRET\n", "{caller:?}");
        std::fs::write(home.path("settings.json"), settings.replace(&format!("{alias}/work/out"), "none"))
            .expect("written");
        for path in ["work/out", "work"] {
            let options = file_rules(&home, &format!(r#"{{"path": "{alias}/{path}", "access": "Read"}}"#));
            let found = settings_of(&options.each_ref().map(String::as_str));
            // Below /tmp, which is in memory inside, such a path is refused.
            assert!(
                found == "SECRET\n" || (found.is_empty() && alias.starts_with("/tmp")),
                "{caller:?} {path}: {found}"
            );
        }
        assert!(!home.path("work/out/b").exists(), "{caller:?}");
        // A link that the command could replace.
        make(&home, &["data/dl/sec"]);
        std::os::unix::fs::symlink(home.path("data/dl"), home.path("work/dl")).expect("a link");
        let denied = format!("{alias}/work/dl/sec");
        refused(&home.run(caller, &["--deny-read", &denied], "true"), 125, &["work/dl is a symbolic link"]);
        std::fs::remove_file(home.path("work/dl")).expect("removed");
        // A file of the image.
        shell_root(&home.path("data/root"));
        make(&home, &["data/root/secret"]);
        for (root, denied) in
            [("data/root", format!("{alias}/data/root/secret")), ("", format!("{real}/data/root/secret"))]
        {
            let root = if root.is_empty() {
                format!("{alias}/data/root")
            } else {
                home.path(root).display().to_string()
            };
            let script = "read line < /secret; echo \"got $line\"";
            let output = home.run(caller, &["--rootfs", &root, "--deny-read", &denied], script);
            assert_eq!(text(&output.stdout), "got \n", "{caller:?} {root}: {}", text(&output.stderr));
        }
        // For the command, links begin at the root of the image.
        std::os::unix::fs::symlink("/elsewhere", home.path("data/root/link")).expect("a link");
        make(&home, &["data/root/elsewhere/file"]);
        let script = "read line < /elsewhere/file; echo \"got $line\"";
        let options = ["--rootfs", "@/data/root", "--deny-read", "@/data/root/link/file"];
        let output = home.run(caller, &options, script);
        assert_eq!(text(&output.stdout), "got \n", "{caller:?}: {}", text(&output.stderr));
    }
}

/// The second run found a folder where it wanted a file, and did not hold it.
#[test]
fn placeholder_of_another_kind_is_held_by_every_run_that_needs_it() {
    hutch_testkit::require!(root, user_namespaces);
    let home = Home::new();
    let denied = |name: &str, path: &str| write_settings(&home, name, &format!(r#"["{path}"]"#));
    denied("a.json", "nd/");
    denied("b.json", "nd");
    let run = |settings: &str, script: &str| {
        let options = ["--settings", settings];
        let mut command = home.command(Caller::Ordinary, &home.path("work"), &options, script);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("hutch")
    };
    let wait = |file: &str| {
        while !home.path(file).exists() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    };
    let mut first = run("@/a.json", "touch a; read end");
    wait("work/a");
    let mut second = run("@/b.json", "touch b; read end; mkdir nd; echo evil > nd/x; true");
    wait("work/b");
    drop(first.stdin.take());
    first.wait().expect("it ends");
    drop(second.stdin.take());
    second.wait().expect("it ends");
    assert!(!home.path("work/nd").exists());
}

/// A placeholder that the user had made a file of his own was removed once it was empty again.
#[test]
fn file_of_the_user_that_was_a_placeholder_stays() {
    hutch_testkit::require!(root, user_namespaces);
    let home = Home::new();
    let options = ["--workspace", &home.path("work").display().to_string()];
    let mut run = home.command(Caller::Ordinary, Path::new("/"), &options, "touch began; read end");
    let mut run = run.stdin(Stdio::piped()).spawn().expect("hutch");
    while !home.path("work/began").exists() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    std::fs::write(home.path("work/.envrc"), "real\n").expect("written");
    drop(run.stdin.take());
    run.wait().expect("it ends");
    assert_eq!(home.read("work/.envrc"), "real\n");
    succeeded("a run", &home.run(Caller::Ordinary, &[], "true"));
    std::fs::write(home.path("work/.envrc"), "").expect("written");
    succeeded("a run", &home.run(Caller::Ordinary, &[], "true"));
    assert!(home.path("work/.envrc").exists());
}

#[test]
fn protected_file_with_a_second_name_is_refused() {
    hutch_testkit::require!(root, user_namespaces);
    for caller in callers() {
        for file in [".git/config", ".git/hooks/pre-commit", ".mcp.json"] {
            let home = Home::new();
            make(&home, &["work/.git/config", "work/.git/hooks/pre-commit", "work/.mcp.json"]);
            std::fs::hard_link(home.path(&format!("work/{file}")), home.path("work/second")).expect("a link");
            refused(&home.run(caller, &[], "true"), 125, &[file, "hard link"]);
            std::fs::remove_file(home.path("work/second")).expect("removed");
            succeeded(file, &home.run(caller, &[], "true"));
        }
    }
}

#[test]
fn link_in_the_place_of_a_folder_of_settings_is_reported() {
    hutch_testkit::require!(root, user_namespaces);
    for caller in callers() {
        let home = Home::new();
        let script = "mkdir -p sub/cc && echo x > sub/cc/config.toml && ln -s cc sub/.cargo";
        let printed = text(&home.run(caller, &[], script).stderr);
        assert!(printed.contains("may run what is new or changed here: sub/.cargo"), "{caller:?}: {printed}");
    }
}

#[test]
fn placeholders_of_another_run_are_no_change() {
    hutch_testkit::require!(root, user_namespaces);
    let home = Home::new();
    let workspace = home.path("work").display().to_string();
    let options = ["--workspace", &workspace];
    let mut first = home.command(Caller::Ordinary, Path::new("/"), &options, "touch began; read end");
    let mut first = first.stdin(Stdio::piped()).spawn().expect("hutch");
    while !home.path("work/began").exists() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    // It ends, and the first one still uses the placeholders.
    let second = home.run(Caller::Ordinary, &[], "echo x > .git");
    assert!(home.path("work/.envrc").exists());
    let printed = text(&second.stderr);
    assert!(printed.contains("changed here: .git\n"), "{printed}");
    drop(first.stdin.take());
    first.wait().expect("it ends");
    assert!(!home.path("work/.envrc").exists());
}
