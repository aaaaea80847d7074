//! `hutch run --tools`: the caller's caches of downloads, as copies.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::json;

use crate::egress::{Caller, callers, server};
use crate::harness::{succeeded, text};
use crate::mounts::Home;
use crate::paths::make;

/// Folders of downloads below HOME, with the path by which the command knows them.
const CACHES: [(&str, &str); 6] = [
    ("home/.cargo/registry", "$CARGO_HOME/registry"),
    ("home/.cargo/git", "$CARGO_HOME/git"),
    ("home/.npm/_cacache", "$npm_config_cache/_cacache"),
    ("home/go/pkg/mod", "$GOMODCACHE"),
    ("home/.cache/pip", "$PIP_CACHE_DIR"),
    ("home/.cache/uv", "$UV_CACHE_DIR"),
];

/// Address of a server. It is loopback, and no other test uses it.
const SERVER: &str = "127.77.6.2";

fn filled() -> Home {
    let home = Home::new();
    for (folder, _) in CACHES {
        make(&home, &[&format!("{folder}/file"), &format!("{folder}/below/file")]);
    }
    make(
        &home,
        &["home/.cargo/credentials.toml", "home/.npm/_logs/log", "home/.npmrc", "home/.cargo/config.toml"],
    );
    home
}

#[test]
fn caches_of_tools_can_be_written_and_stay_as_they_are() {
    hutch_testkit::require!(root, user_namespaces);
    for caller in callers() {
        let home = filled();
        let folders = CACHES.map(|(_, inside)| inside).join(" ");
        let script = format!(
            "for folder in {folders}; do cat $folder/file && echo new > $folder/new && echo changed > $folder/file && \
                rm $folder/below/file && mv $folder/below $folder/moved && cat $folder/new || echo failed $folder; done; \
             touch $CARGO_HOME/.package-cache $npm_config_cache/new; ls -A $CARGO_HOME $npm_config_cache | sort; \
             cat $CARGO_HOME/credentials.toml @/home/.npmrc $npm_config_cache/_logs/log"
        );
        let output = home.run(caller, &["--tools"], &script);
        let expected = "SECRET\nnew\n".repeat(CACHES.len());
        let printed = text(&output.stdout);
        let rest = printed.strip_prefix(&expected);
        let rest = rest.unwrap_or_else(|| panic!("{caller:?}: {printed}{}", text(&output.stderr)));
        let names: Vec<&str> = rest.lines().filter(|line| !line.is_empty() && !line.ends_with(':')).collect();
        assert_eq!(names, [".package-cache", "_cacache", "git", "new", "registry"], "{caller:?}");
        for (folder, _) in CACHES {
            for file in ["file", "below/file"] {
                assert_eq!(home.read(&format!("{folder}/{file}")), "SECRET\n", "{caller:?}: {folder}/{file}");
            }
            assert!(!home.path(&format!("{folder}/new")).exists(), "{caller:?}: {folder}");
        }
        let again = home.run(caller, &["--tools"], "cat $PIP_CACHE_DIR/file; ls $PIP_CACHE_DIR");
        assert_eq!(succeeded("again", &again), "SECRET\nbelow\nfile\n", "{caller:?}: it was discarded");
    }
}

#[test]
fn part_of_a_cache_can_be_hidden() {
    hutch_testkit::require!(root, user_namespaces);
    for caller in callers() {
        let home = filled();
        let hide = ["--deny-read", "@/home/.cache/uv/below", "--deny-read", "@/home/go/pkg/mod/file"];
        let script = "cat $UV_CACHE_DIR/file; ls -A $UV_CACHE_DIR/below; rm -rf $UV_CACHE_DIR/below; cat $GOMODCACHE/file; \
            mv $GOMODCACHE/file $GOMODCACHE/other; cat $GOMODCACHE/other; cat $GOMODCACHE/below/file";
        let output = home.run(caller, &[&["--tools"], &hide[..]].concat(), script);
        assert_eq!(text(&output.stdout), "SECRET\n".repeat(2), "{caller:?}: {}", text(&output.stderr));
    }
}

#[test]
fn caches_of_another_user_are_not_shown() {
    hutch_testkit::require!(root, user_namespaces);
    let home = filled();
    std::os::unix::fs::chown(home.path("work"), Some(1234), Some(1234)).expect("chown");
    let script = "echo ${PIP_CACHE_DIR:-none}; cat @/home/.cache/pip/file";
    let output = home.run(Caller::Root, &["--tools"], script);
    assert_eq!(text(&output.stdout), "none\n", "{}", text(&output.stderr));
}

/// The kernel stacks two overlays, and not a third one. The jail that takes the place of the first has its network.
#[test]
fn cache_of_which_there_can_be_no_copy_is_read_only() {
    hutch_testkit::require!(root, user_namespaces);
    let scanned = [(Caller::Root, true), (Caller::Ordinary, true)];
    for (caller, scanned) in callers().into_iter().map(|caller| (caller, false)).chain(scanned) {
        let home = filled();
        let cache = home.path("home/.cache/pip");
        let script = "set -e; mount -t tmpfs none \"$1\"; cd \"$1\"; mkdir a b; echo SECRET > a/file; chown -R 1000:1000 .; \
            mount -t overlay none -o lowerdir=a:b b; mkdir c d; mount -t overlay none -o lowerdir=b:c d; \
            mount --bind d \"$2\"; mount --bind \"$3\" /etc/hosts; shift 3; cd /; exec \"$@\"";
        let (stage, hutch, hosts) = (home.path("cache"), home.path("hutch"), home.path("hosts"));
        std::fs::write(&hosts, format!("127.0.0.1 localhost\n{SERVER} web.example\n")).expect("written");
        let (port, received) = server(&format!("{SERVER}:0"), b"hello\n");
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "bash", "-c", script, "bash"]).args([&stage, &cache, &hosts]);
        if matches!(caller, Caller::Ordinary) {
            unshare.args(["setpriv", "--reuid=1000", "--regid=1000", "--clear-groups"]);
        }
        unshare.arg(&hutch).args(["run", "--tools"]);
        if scanned {
            // Threads scan the output of the first jail.
            let config = json!({"filesystem": {"workspace": home.path("work")}, "network": {"mode": "none"},
                "credentials": {"mode": "just_in_time", "secret_scanning": true}});
            std::fs::write(home.path("config.json"), config.to_string()).expect("written");
            unshare.arg("--config").arg(home.path("config.json"));
            unshare.args(["--", "sh", "-c", "cat $PIP_CACHE_DIR/file"]).env("HOME", home.path("home"));
            crate::mounts::without_tools(&mut unshare);
            let output = unshare.output().expect("unshare");
            assert_eq!(text(&output.stdout), "SECRET\n", "{caller:?}: {}", text(&output.stderr));
            continue;
        }
        unshare.arg("--workspace").arg(home.path("work"));
        if matches!(caller, Caller::InGvisor) {
            unshare.args(["--isolation", "gvisor"]);
        }
        unshare.args(["--allow", &format!("web.example:{port}"), "--allow-private", SERVER]);
        let inside = format!(
            "cat $PIP_CACHE_DIR/file; echo x > $PIP_CACHE_DIR/new || echo fixed; \
             exec 3<>/dev/tcp/web.example/{port}; head -n 1 <&3; echo data >&3"
        );
        unshare.args(["--", "bash", "-c", &inside]).env("HOME", home.path("home"));
        crate::mounts::without_tools(&mut unshare);
        let output = unshare.output().expect("unshare");
        let stderr = text(&output.stderr);
        assert_eq!(text(&output.stdout), "SECRET\nfixed\nhello\n", "{caller:?}: {stderr}");
        assert_eq!(received.recv_timeout(Duration::from_secs(20)).expect("a connection"), b"data\n");
        assert_eq!(stderr.matches("the caches of --tools are read-only").count(), 1, "{caller:?}: {stderr}");
    }
}

/// A project whose dependencies are in the caller's cache builds without a network.
#[test]
fn project_builds_offline_with_the_caches_of_its_user() {
    hutch_testkit::require!(root, user_namespaces);
    for caller in callers() {
        let home = Home::new();
        let work = home.path("work");
        for (name, content) in crate::toolchains::cargo_project() {
            std::fs::write(work.join(name), content).expect("written");
        }
        let cargo_home = home.path("home/.cargo");
        let mut fetch = Command::new("cargo");
        fetch.arg("fetch").current_dir(&work).env("CARGO_HOME", &cargo_home);
        match fetch.output() {
            Ok(output) if output.status.success() => {}
            other => return hutch_testkit::note_skip("offline build", &format!("cargo fetch: {other:?}")),
        }
        let own = Command::new("chown").args(["-R", "1000:1000"]).arg(home.path("")).status();
        assert!(own.expect("chown").success());
        let before = listing(&cargo_home);
        // The toolchains are those of the user of the tests, who has another home.
        let rustup = std::env::var("RUSTUP_HOME").unwrap_or_else(|_| "/root/.rustup".to_owned());
        let toolchain = Command::new("rustc").args(["--print", "sysroot"]).output().expect("rustc");
        let toolchain = text(&toolchain.stdout).trim().to_owned();
        let (shown, mounted) = (format!("{toolchain}:/toolchain:ro"), Path::new(&rustup).exists());
        if !mounted || matches!(caller, Caller::Ordinary) && !is_readable_by_all(Path::new(&toolchain)) {
            hutch_testkit::note_skip("offline build", "needs a toolchain that the user can read");
            continue;
        }
        let script = "PATH=/toolchain/bin:$PATH cargo test --offline 2>&1";
        let output = home.run(caller, &["--tools", "--mount", &shown], script);
        assert!(succeeded(&format!("{caller:?}"), &output).contains("1 passed"), "{caller:?}");
        assert_eq!(listing(&cargo_home), before, "{caller:?}");
    }
}

fn is_readable_by_all(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    path.ancestors().all(|folder| folder.metadata().is_ok_and(|found| found.mode() & 0o005 == 0o005))
}

fn listing(folder: &Path) -> String {
    let find = Command::new("find").arg(folder).args(["-printf", "%P %i %s %C@\n"]).output().expect("find");
    text(&find.stdout)
}
