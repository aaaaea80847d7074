//! `hutch run --workspace` and `--deny-read`: paths inside are those outside, and hidden ones are empty.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::egress::{Caller, callers};
use crate::harness::{refused, succeeded, text};
use crate::mounts::Home;

/// Makes files of the user, with the folders above them.
pub(crate) fn make(home: &Home, files: &[&str]) {
    for file in files {
        let mut above: Vec<&Path> = Path::new(file).ancestors().skip(1).collect();
        above.pop();
        for folder in above.into_iter().rev().filter_map(Path::to_str) {
            let _ = std::fs::create_dir(home.path(folder));
            home.own(folder);
        }
        std::fs::write(home.path(file), "SECRET\n").expect("written");
        home.own(file);
    }
}

#[test]
fn workspace_has_the_same_path_inside_and_a_second_one() {
    hutch_testkit::require!(root, user_namespaces);
    for caller in callers() {
        let home = Home::new();
        let script = "pwd; echo $HOME; echo one > @/work/one; echo two > /workspace/two; cat two; \
            cd /workspace && pwd -P; mkdir sub && mv two sub && touch ~/here";
        let printed = succeeded(&format!("{caller:?}"), &home.run(caller, &[], script));
        let path = home.path("work").display().to_string();
        assert_eq!(printed, format!("{path}\n{path}\ntwo\n{path}\n"), "{caller:?}");
        assert_eq!((home.read("work/one"), home.read("work/sub/two")), ("one\n".into(), "two\n".into()));

        let printed =
            succeeded("read-only", &home.run(caller, &["--read-only"], "pwd; touch ~/x && echo $HOME"));
        assert_eq!(printed, format!("{path}\n/tmp\n"), "{caller:?}");
    }
}

#[test]
fn files_of_the_workspace_are_protected_by_both_paths() {
    hutch_testkit::require!(root, user_namespaces);
    for caller in callers() {
        let home = Home::new();
        make(&home, &["work/.git/config", "work/.git/hooks/pre-commit"]);
        let script = "for top in @/work /workspace; do \
                echo x > $top/.git/hooks/pre-commit; echo x > $top/.git/hooks/new; echo x > $top/.git/config; \
                echo x > $top/.envrc; mv $top/.git $top/g; rm -rf $top/.git/hooks; \
            done; rm /workspace; mv @/work @/w; mv /workspace /w; cat .git/config";
        let output = home.run(caller, &[], script);
        assert_eq!(text(&output.stdout), "SECRET\n", "{caller:?}");
        assert_eq!(home.read("work/.git/hooks/pre-commit"), "SECRET\n", "{caller:?}");
        assert_eq!(home.read("work/.git/config"), "SECRET\n", "{caller:?}");
        for name in ["work/.git/hooks/new", "work/.envrc", "work/g"] {
            assert!(!home.path(name).exists(), "{caller:?}: {name}");
        }
    }
}

#[test]
fn virtual_environment_that_was_made_outside_works_inside() {
    hutch_testkit::require!(root, user_namespaces);
    for caller in callers() {
        let home = Home::new();
        let venv = home.path("work/venv");
        let made = Command::new("/usr/bin/python3").args(["-m", "venv", "--without-pip"]).arg(&venv).output();
        if !made.expect("python3").status.success() {
            return hutch_testkit::note_skip("virtual environment", "needs /usr/bin/python3 with venv");
        }
        // As pip writes the programs of a package.
        let script = format!("#!{}/bin/python\nimport sys\nprint(sys.prefix)\n", venv.display());
        std::fs::write(venv.join("bin/tool"), script).expect("written");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(venv.join("bin/tool"), mode).expect("chmod");
        let printed = succeeded(&format!("{caller:?}"), &home.run(caller, &[], "@/work/venv/bin/tool"));
        assert_eq!(printed, format!("{}\n", venv.display()), "{caller:?}");
    }
}

#[test]
fn workspace_works_in_folders_that_the_sandbox_has_too() {
    hutch_testkit::require!(root);
    let home = Home::new();
    let mut callers = callers();
    callers.retain(|caller| !matches!(caller, Caller::Ordinary));
    for place in ["/tmp", "/var/tmp", "/dev/shm", "/usr/local/share", "/etc", "/root"] {
        let Ok(folder) = tempfile::tempdir_in(place) else { continue };
        let path = folder.path().display().to_string();
        for caller in &callers {
            let options = ["--workspace", &path];
            let output =
                home.run_at(*caller, Path::new("/"), &options, "pwd; echo x > made; cat /workspace/made");
            assert_eq!(succeeded(&format!("{place} {caller:?}"), &output), format!("{path}\nx\n"));
            assert_eq!(std::fs::read_to_string(folder.path().join("made")).expect("made"), "x\n");
        }
    }
}

#[test]
fn workspace_below_the_second_path_is_only_at_its_own() {
    hutch_testkit::require!(root);
    let home = Home::new();
    let script = "mkdir -p /workspace/mine && mount --bind \"$1\" /workspace/mine";
    let made = !Path::new("/workspace").exists();
    let mut unshare = Command::new("unshare");
    let inner = format!(
        "{script} && \"$2\" run --workspace /workspace/mine -- sh -c 'pwd; ls -A /workspace; echo x > y'"
    );
    unshare.args(["--mount", "bash", "-c", &inner, "bash"]).arg(home.path("work")).arg(home.path("hutch"));
    let output = unshare.output().expect("unshare");
    if made {
        let _ = std::fs::remove_dir("/workspace/mine");
        let _ = std::fs::remove_dir("/workspace");
    }
    assert_eq!(succeeded("below", &output), "/workspace/mine\nmine\n");
    assert_eq!(home.read("work/y"), "x\n");
}

#[test]
fn workspace_where_the_sandbox_has_its_own_is_refused_by_name() {
    hutch_testkit::require!(root, user_namespaces);
    let home = Home::new();
    for (place, named) in [
        ("/proc/self", "has its own /proc"),
        ("/sys/kernel", "has its own /sys"),
        ("/dev/shm", "has its own /dev"),
        ("/usr", "has its own /usr; name a folder in it"),
        ("/etc", "--mount /etc:/data"),
        ("/", "whole machine"),
    ] {
        for caller in [Caller::Root, Caller::Ordinary] {
            let output = home.run_at(caller, Path::new("/"), &["--workspace", place], "true");
            // `/proc/self` is a link, which is refused before.
            let named = if place == "/proc/self" { "--workspace /proc/self" } else { named };
            refused(&output, 125, &["--workspace", named]);
        }
    }
}

#[test]
fn hidden_path_is_empty_wherever_it_shows() {
    hutch_testkit::require!(root, user_namespaces);
    for caller in callers() {
        let home = Home::new();
        make(&home, &["work/secrets/key", "work/src/.env", "data/token", "data/deep/token"]);
        let options = ["--mount", "@/data:/shown:ro", "--mount", "@/file:/etc/app/file:ro"];
        let hide = ["work/secrets", "work/src/.env", "data/deep", "file"].map(|name| format!("@/{name}"));
        let hide: Vec<&str> = hide.iter().flat_map(|path| ["--deny-read", path.as_str()]).collect();
        let script = "ls -A secrets /shown/deep; cat src/.env; cat /etc/app/file; cat /workspace/src/.env; \
            cat /proc/self/cwd/secrets/key; \
            chmod 644 src/.env; cat src/.env; echo x > src/.env; echo x > secrets/new; cp src/.env copy; ln src/.env link; \
            umount secrets; umount src/.env; mount -o remount,rw secrets; \
            cat /shown/token; stat -c %a src/.env";
        let output = home.run(caller, &[&options[..], &hide[..]].concat(), script);
        let printed = text(&output.stdout);
        let lines: Vec<&str> = printed.lines().filter(|line| !line.is_empty()).collect();
        assert_eq!(
            lines,
            ["/shown/deep:", "secrets:", "SECRET", "0"],
            "{caller:?}: {printed} {}",
            text(&output.stderr)
        );
        assert_eq!(printed.matches("SECRET").count(), 1, "{caller:?}: only the one that is not hidden");
        for name in ["work/secrets/key", "work/src/.env", "data/deep/token"] {
            assert_eq!(home.read(name), "SECRET\n", "{caller:?}: {name}");
        }
        let names: Vec<PathBuf> =
            std::fs::read_dir(home.path("work")).expect("work").flatten().map(|entry| entry.path()).collect();
        for path in &names {
            assert!(!std::fs::read_to_string(path).is_ok_and(|text| text.contains("SECRET")), "{path:?}");
        }
    }
}

/// Folders above what is hidden are moved, copied, exchanged and removed.
#[test]
fn hidden_path_stays_hidden_when_folders_above_it_are_moved() {
    hutch_testkit::require!(root, user_namespaces, python);
    for caller in callers() {
        let home = Home::new();
        make(&home, &["work/a/b/secrets/key", "work/a/b/file"]);
        let hide = ["--deny-read", "@/work/a/b/secrets", "--deny-read", "@/work/a/b/file"];
        let script = "exec 9< a/b; mv a/b c; cat c/secrets/key c/file; mv c a/d; cat a/d/secrets/key a/d/file; mv a e; \
            cat e/d/secrets/key e/d/file /proc/self/fd/9/secrets/key /proc/self/fd/9/file; \
            mv e/d/secrets e/d/s; cat e/d/s/key; mv e/d/file e/d/f; cat e/d/f; mkdir new; mv -T new e/d/secrets; \
            cp -r e copied; cat copied/d/secrets/key copied/d/file; rm -rf e; cat e/d/secrets/key e/d/file; \
            python3 -c \"import os, ctypes; libc = ctypes.CDLL(None); os.makedirs('x', exist_ok=True); \
                libc.renameat2(-100, b'e', -100, b'x', 2)\"; cat x/d/secrets/key x/d/file; find . -type f | xargs cat; true";
        let output = home.run(caller, &hide, script);
        assert!(!text(&output.stdout).contains("SECRET"), "{caller:?}: {output:?}");
        let found =
            Command::new("grep").args(["-rl", "SECRET"]).arg(home.path("work")).output().expect("grep");
        assert_eq!(
            text(&found.stdout).lines().count(),
            2,
            "{caller:?}: both are kept: {}",
            text(&found.stdout)
        );
    }
}

/// Regression: a run moved or closed a folder above what is hidden, and the next run showed it.
#[test]
fn hidden_path_stays_hidden_in_later_runs() {
    hutch_testkit::require!(root, user_namespaces);
    for caller in callers() {
        let home = Home::new();
        make(&home, &["work/conf/key", "work/a/b/key", "work/policy/key"]);
        let [flag, policy] = file_rules(&home, r#"{"path": "/workspace/policy/key", "access": "None"}"#);
        let options = ["--deny-read", "@/work/conf/key", "--deny-read", "@/work/a/b/key", &flag, &policy];
        let first = "mv conf c2 || mv a a2 || mv a/b a/b2 || mv policy p2 || echo held; \
            chmod 000 conf a/b policy; ls";
        let output = home.run(caller, &options, first);
        assert!(text(&output.stdout).starts_with("held\n"), "{caller:?}: {output:?}");
        let second = "chmod 755 conf a/b policy; cat conf/key a/b/key policy/key; find . -name key | xargs cat; echo over";
        let output = home.run(caller, &options, second);
        let printed = text(&output.stdout);
        assert!(!printed.contains("SECRET") && printed.ends_with("over\n"), "{caller:?}: {output:?}");
        for name in ["work/conf", "work/a/b", "work/policy"] {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            std::fs::set_permissions(home.path(name), mode).expect("chmod");
            assert_eq!(home.read(&format!("{name}/key")), "SECRET\n", "{caller:?}");
        }
    }
}

#[test]
fn hidden_path_must_exist_and_leave_a_workspace() {
    hutch_testkit::require!(root, user_namespaces);
    let home = Home::new();
    let link = home.path("work/link");
    make(&home, &["work/key"]);
    std::os::unix::fs::symlink(home.path("work/key"), &link).expect("link");
    for caller in [Caller::Root, Caller::Ordinary] {
        for (path, named) in [("@/work/typo", "No such file"), ("@/work", "workspace"), ("@", "workspace")] {
            refused(&home.run(caller, &["--deny-read", path], "true"), 125, &["--deny-read", named]);
        }
        // Shown nowhere.
        let output = home.run(caller, &["--deny-read", "@/data", "--deny-read", "/root"], "echo fine");
        assert_eq!(succeeded("not shown", &output), "fine\n");
        // The command could make the link lead elsewhere for the next run.
        let linked = home.run(caller, &["--deny-read", "@/work/link"], "true");
        refused(&linked, 125, &["--deny-read", "work/link is a symbolic link"]);
        let output = home.run(caller, &["--deny-read", "/usr/share"], "ls -A /usr/share; echo over");
        assert_eq!(succeeded("of the image", &output), "over\n");
    }
}

/// Writes a policy with these rules for files, and returns the options that name it.
pub(crate) fn file_rules(home: &Home, rules: &str) -> [String; 2] {
    policy_of_files(home, "files", rules)
}

fn policy_of_files(home: &Home, name: &str, rules: &str) -> [String; 2] {
    let text = format!(
        r#"{{"apiVersion": "policy.hutch.dev/v1alpha1", "kind": "SandboxPolicy", "metadata": {{"name": "{name}"}},
            "spec": {{"files": [{rules}]}}}}"#
    );
    let file = format!("policy-{name}.json");
    std::fs::write(home.path(&file), text).expect("written");
    home.own(&file);
    ["--policy".to_owned(), home.path(&file).display().to_string()]
}

#[test]
fn policy_takes_files_away_and_opens_none() {
    hutch_testkit::require!(root, user_namespaces);
    for caller in callers() {
        let home = Home::new();
        make(&home, &["work/key", "work/docs/a", "work/src/a"]);
        let rules =
            r#"{"path": "/workspace/key", "access": "None"}, {"path": "/workspace/docs", "access": "Read"}"#;
        let options = file_rules(&home, rules);
        let options = options.each_ref().map(String::as_str);
        let script = "cat key; cat docs/a; echo x > docs/a; echo x > docs/new; rm -rf docs; mv docs d; mv key k; \
            echo x > src/a; cat src/a";
        let output = home.run(caller, &options, script);
        assert_eq!(text(&output.stdout), "SECRET\nx\n", "{caller:?}: {}", text(&output.stderr));
        assert_eq!((home.read("work/key"), home.read("work/docs/a")), ("SECRET\n".into(), "SECRET\n".into()));
        assert!(!home.path("work/docs/new").exists() && !home.path("work/d").exists(), "{caller:?}");

        make(&home, &["work/out/a"]);
        let rules =
            r#"{"path": "/workspace", "access": "Read"}, {"path": "/workspace/out", "access": "Write"}"#;
        let options = file_rules(&home, rules);
        let options = options.each_ref().map(String::as_str);
        let script = "echo x > src/a; echo x > new; echo y > out/a; cat out/a";
        assert_eq!(text(&home.run(caller, &options, script).stdout), "y\n", "{caller:?}");
        assert_eq!(home.read("work/src/a"), "x\n", "{caller:?}");
        let closed = [options[0], options[1], "--read-only"];
        assert_eq!(text(&home.run(caller, &closed, script).stdout), "y\n", "{caller:?}: as it was");
        std::fs::write(home.path("work/out/a"), "SECRET\n").expect("written");
        assert_eq!(
            text(&home.run(caller, &closed, script).stdout),
            "SECRET\n",
            "{caller:?}: it opens nothing"
        );
    }
}

/// The command made it, and read what it had written. With a second policy, the rule of the first was lost.
#[test]
fn missing_file_that_a_policy_closes_is_not_made() {
    hutch_testkit::require!(root, user_namespaces);
    let rule = |access: &str| format!(r#"{{"path": "/workspace/sub/.env", "access": "{access}"}}"#);
    for caller in callers() {
        for all in [&["None"][..], &["Read"], &["Read", "None"], &["None", "Read"]] {
            let home = Home::new();
            make(&home, &["work/sub/a"]);
            let policies = all.iter().enumerate();
            let options: Vec<String> = policies
                .flat_map(|(number, access)| policy_of_files(&home, &format!("p{number}"), &rule(access)))
                .collect();
            let options: Vec<&str> = options.iter().map(String::as_str).collect();
            let script = "echo x > sub/.env; cat sub/.env; mv sub/.env b; mv sub c; ln sub/a sub/.env; echo y > sub/a; cat sub/a";
            let output = home.run(caller, &options, script);
            assert_eq!(text(&output.stdout), "y\n", "{caller:?} {all:?}: {}", text(&output.stderr));
            assert!(
                !home.path("work/sub/.env").exists() && !home.path("work/c").exists(),
                "{caller:?} {all:?}"
            );
        }
    }
}

/// Rules were compared with paths as the flags wrote them, so some had no effect.
#[test]
fn rules_for_files_hold_however_a_path_is_written() {
    hutch_testkit::require!(root, user_namespaces);
    for caller in callers() {
        let home = Home::new();
        make(&home, &["work/docs/a"]);
        let at = |path: &str| home.path(path).display().to_string();
        for (rule, options, script) in [
            (at("data"), &["--mount", "data"][..], "echo x > @/data/new; echo x > @/data/file"),
            (at("data"), &["--mount", "./work/../data:/d"], "echo x > /d/new; echo x > /d/file"),
            (at("data/file"), &["--mount", "data"], "echo x > @/data/file"),
            (at("data/file"), &["--mount", "data/file:/f"], "echo x > /f"),
            (at("work/docs"), &["--workspace", "work/."], "echo x > docs/new; rm docs/a; mv docs d"),
        ] {
            let rules = format!(r#"{{"path": "{rule}", "access": "Read"}}"#);
            let policy = file_rules(&home, &rules);
            let all = [&[policy[0].as_str(), policy[1].as_str()][..], options].concat();
            let output = home.run_at(caller, &home.path(""), &all, &format!("{script}; echo over"));
            let error = text(&output.stderr);
            assert_eq!(text(&output.stdout), "over\n", "{caller:?} {rule} {options:?}: {error}");
            assert_eq!(
                (home.read("data/file"), home.read("work/docs/a")),
                ("before\n".into(), "SECRET\n".into())
            );
            for new in ["data/new", "work/docs/new", "work/new", "work/d"] {
                assert!(!home.path(new).exists(), "{caller:?} {rule} {options:?}: {new}");
            }
        }
    }
}

#[test]
fn startup_files_of_a_home_are_protected() {
    hutch_testkit::require!(root, user_namespaces);
    for caller in callers() {
        let home = Home::new();
        make(&home, &["home/.bashrc", "home/.ssh/authorized_keys"]);
        let names = ".bashrc .bash_profile .profile .zshrc .zshenv .gitconfig .config/git/config .ssh/config .ssh/authorized_keys";
        let script = format!(
            "for name in {names}; do echo x > $name; rm -f $name; mv $name moved; done; mv .ssh s; mv .config c; rm -f moved; echo over > fine"
        );
        let options = ["--workspace", "@/home"];
        let output = home.run_at(caller, Path::new("/"), &options, &script);
        assert_eq!(home.read("home/fine"), "over\n", "{caller:?}: {}", text(&output.stderr));
        for new in [
            ".bash_profile",
            ".profile",
            ".zshrc",
            ".zshenv",
            ".gitconfig",
            ".config",
            ".ssh/config",
            "s",
            "c",
        ] {
            assert!(!home.path("home").join(new).exists(), "{caller:?}: {new}");
        }
        assert_eq!(home.read("home/.bashrc"), "SECRET\n", "{caller:?}");
        assert_eq!(home.read("home/.ssh/authorized_keys"), "SECRET\n", "{caller:?}");
        // The placeholders of two files have the effect of missing ones.
        for login in [".profile", ".bash_login"] {
            std::fs::write(home.path("home").join(login), format!("echo {login}\n")).expect("written");
            home.own(&format!("home/{login}"));
            let output = home.run_at(caller, Path::new("/"), &options, "bash -lc true");
            assert_eq!(text(&output.stdout), format!("{login}\n"), "{caller:?}");
        }
        // A policy can open none of them.
        let folder = home.path("home").display().to_string();
        let rules = format!(
            r#"{{"path": "{folder}", "access": "Read"}}, {{"path": "{folder}/.ssh", "access": "Write"}}"#
        );
        let opened = file_rules(&home, &rules);
        let opened = [&options[..], &[&opened[0], &opened[1]]].concat();
        refused(&home.run_at(caller, Path::new("/"), &opened, "true"), 125, &["stays protected"]);
        // In another folder they mean nothing, and the caller can open one.
        make(&home, &["work/.bashrc"]);
        home.run(caller, &[], "echo x > .bashrc");
        assert_eq!(home.read("work/.bashrc"), "x\n", "{caller:?}");
        let options = ["--workspace", "@/home", "--allow-write", ".bashrc"];
        home.run_at(caller, Path::new("/"), &options, "echo x > .bashrc");
        assert_eq!(home.read("home/.bashrc"), "x\n", "{caller:?}");
    }
}

#[test]
fn rules_for_files_that_cannot_be_enforced_are_refused() {
    hutch_testkit::require!(root);
    let home = Home::new();
    make(&home, &["work/.git/config", "work/docs/a"]);
    for (rules, reason) in [
        (r#"{"path": "/tmp/x", "access": "Read"}"#, "in memory"),
        (r#"{"path": "/proc/cpuinfo", "access": "None"}"#, "each sandbox has its own"),
        (r#"{"path": "/sys/class", "access": "None"}"#, "each sandbox has its own"),
        (r#"{"path": "docs", "access": "Read"}"#, "not a path of a rule"),
        (
            r#"{"path": "/workspace/docs", "access": "Read"}, {"path": "/workspace/docs/a", "access": "Write"}"#,
            "only within the workspace",
        ),
        (
            r#"{"path": "/workspace", "access": "Read"}, {"path": "/workspace/.git", "access": "Write"}"#,
            "stays protected",
        ),
        (r#"{"path": "/workspace", "access": "None"}"#, "the workspace is in it"),
    ] {
        let options = file_rules(&home, rules);
        let options = options.each_ref().map(String::as_str);
        refused(&home.run(Caller::Root, &options, "true"), 125, &[reason]);
    }
}

#[test]
fn rules_for_files_that_are_to_be_reported_let_the_command_start() {
    hutch_testkit::require!(root);
    let home = Home::new();
    make(&home, &["work/key", "work/docs/a"]);
    let write = |name: &str, spec: &str| {
        let text = format!(
            r#"{{"apiVersion": "policy.hutch.dev/v1alpha1", "kind": "SandboxPolicy", "metadata": {{"name": "{name}"}}, "spec": {spec}}}"#
        );
        let file = home.path(&format!("{name}.json"));
        std::fs::write(&file, text).expect("written");
        file.display().to_string()
    };
    let reports = write(
        "reports",
        r#"{"onUnsupported": "Report", "scanner": {"logs": "Block"},
            "files": [{"path": "/tmp/x", "access": "Read"}, {"path": "/workspace/key", "access": "None"}]}"#,
    );
    let output = home.run(Caller::Root, &["--policy", &reports], "cat key; cat docs/a");
    assert_eq!(succeeded("the other rule holds", &output), "SECRET\n");
    let error = text(&output.stderr);
    for part in
        ["not enforced: ", "policy \"reports\": spec.files[0]: /tmp/x", "in memory", "spec.scanner.logs"]
    {
        assert!(error.contains(part), "{part}: {error}");
    }
    // Another policy needs as much at the same path, or less but something.
    for access in ["None", "Read"] {
        let rule = format!(r#"{{"files": [{{"path": "/tmp/x", "access": "{access}"}}]}}"#);
        let needs = write("needs", &rule);
        let output = home.run(Caller::Root, &["--policy", &reports, "--policy", &needs], "true");
        refused(
            &output,
            125,
            &["\"reports\": spec.files[0], policy \"needs\": spec.files[0]: /tmp/x", "in memory"],
        );
    }
    // Within what is only reported, another policy needs something.
    let whole =
        write("whole", r#"{"onUnsupported": "Report", "files": [{"path": "/tmp", "access": "None"}]}"#);
    succeeded("reported", &home.run(Caller::Root, &["--policy", &whole], "true"));
    let needs = write("needs", r#"{"files": [{"path": "/tmp/x", "access": "Read"}]}"#);
    let output = home.run(Caller::Root, &["--policy", &whole, "--policy", &needs], "true");
    refused(&output, 125, &["policy \"needs\": spec.files[0]: /tmp/x", "in memory"]);
    let output = home.run(Caller::Root, &["--policy", &reports, "--policy", &reports], "true");
    refused(&output, 125, &["metadata.name", "two policies are named \"reports\""]);
    let alone = write("alone", r#"{"onUnsupported": "Report", "scanner": {"outbound": "Block"}}"#);
    refused(&home.run(Caller::Root, &["--policy", &alone], "true"), 125, &["spec.onUnsupported"]);
}

#[test]
fn policy_is_read_once_so_it_may_come_from_a_pipe() {
    hutch_testkit::require!(root);
    let home = Home::new();
    let [_, file] = file_rules(&home, r#"{"path": "/usr/share", "access": "None"}"#);
    let script = "cat \"$1\" | \"$0\" run --policy /dev/stdin -- ls -A /usr/share";
    let output = Command::new("sh").args(["-c", script]).arg(home.path("hutch")).arg(&file).output();
    assert_eq!(succeeded("hutch run", &output.expect("sh")), "");
}
