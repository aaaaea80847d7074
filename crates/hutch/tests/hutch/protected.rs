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
            &["images of hutch", "`:ro`"],
        );
    }
    succeeded("read-only", &home.run(Caller::Ordinary, &["--mount", &format!("{images}:ro")], "true"));
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
