//! Files of a workspace that programs of this machine run later.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::harness::{refused, succeeded, text};
use crate::ordinary::{Caller, ORDINARY, Place};

const CALLERS: [Caller; 2] = [Caller::Root, Caller::Ordinary];

/// A repository with one commit, that belongs to the caller.
fn repository(place: &Place, caller: Caller, name: &str) -> std::path::PathBuf {
    let folder = place.folder_of(Caller::Root, name);
    let script = "git init -q . && git config user.email a@b && git config user.name c && echo x > f && git add f && git commit -qm m";
    let made =
        Command::new("sh").args(["-c", script]).current_dir(&folder).env("HOME", place.path()).output();
    succeeded("git", &made.expect("git"));
    if caller == Caller::Ordinary {
        let owner = format!("{ORDINARY}:{ORDINARY}");
        succeeded("chown", &Command::new("chown").args(["-R", &owner]).arg(&folder).output().expect("chown"));
    }
    folder
}

/// Everything in a folder but what a commit makes.
fn listing(folder: &Path) -> String {
    let find = Command::new("find")
        .arg(folder)
        .args(["-not", "-path", "*/objects/*", "-printf", "%P %i %m %s\n"])
        .output();
    let mut lines: Vec<String> = succeeded("find", &find.expect("find")).lines().map(str::to_owned).collect();
    lines.retain(|line| !line.starts_with(' '));
    lines.sort();
    lines.join("\n")
}

/// Ways around the protection; each prints a line when it works.
const ATTACKS: &str = r"
hook() { printf '#!/bin/sh\ntouch %s' $1 > $2 && echo WORKED $2; }
hook /x .git/hooks/pre-commit
(mv .git away && echo WORKED mv .git; mkdir -p .git/hooks && hook /x .git/hooks/post-checkout)
(mv .git/hooks .git/h && echo WORKED mv hooks; rm -rf .git/hooks; rmdir .git/hooks && echo WORKED rmdir)
(mkdir other && mv -T other .git && echo WORKED replace; ln -sfn /tmp .git/hooks && [ -L .git/hooks ] && echo WORKED link)
git config core.hooksPath /workspace/evil && echo WORKED config
git config core.fsmonitor 'touch /x' && echo WORKED config
echo evil > .git/commondir && echo WORKED commondir
mkdir -p .git/modules/x && echo WORKED modules
mkdir -p .git/worktrees/x && echo WORKED worktrees
echo evil > .git/config.worktree && echo WORKED config.worktree
for file in .envrc .mcp.json .cargo/config.toml; do
  (echo evil > $file && echo WORKED $file); (mv $file x && echo WORKED mv $file); (rm -f $file && echo WORKED rm $file)
done
(mv .cargo y && echo WORKED mv .cargo)
for folder in .vscode .idea .claude; do
  (echo evil > $folder/tasks.json && echo WORKED $folder); (mv $folder x && echo WORKED mv $folder)
done
for one in .git/hooks .git/config .envrc .claude; do mount -o remount,rw $one && echo WORKED remount; umount $one && echo WORKED umount; done
git --git-dir=.git status --porcelain --untracked-files=no >/dev/null || echo git is broken
echo y > f; git -c user.email=a@b -c user.name=c commit -qam n || echo commit is broken
echo over
";

#[test]
fn files_that_run_on_the_host_are_not_written_from_a_workspace() {
    hutch_testkit::require!(root, user_namespaces);
    let place = Place::new();
    let gvisor = hutch_testkit::Need::Runsc.missing().is_none();
    let ways = CALLERS.map(|caller| (caller, "hutch")).into_iter();
    for (caller, isolation) in ways.chain(gvisor.then_some((Caller::Root, "gvisor"))) {
        let folder = repository(&place, caller, &format!("{caller:?}-{isolation}-repository"));
        let (hooks, config) =
            (listing(&folder.join(".git/hooks")), fs::read(folder.join(".git/config")).expect("read"));
        let options = ["--isolation", isolation, "--workspace", &folder.display().to_string()];
        let output = place.run(caller, &options, ATTACKS).output().expect("hutch run");
        let printed = text(&output.stdout);
        assert!(
            !printed.contains("WORKED") && !printed.contains("broken") && printed.ends_with("over\n"),
            "{caller:?} {isolation}: {output:?}"
        );
        assert_eq!(listing(&folder.join(".git/hooks")), hooks, "{caller:?} {isolation}");
        assert_eq!(fs::read(folder.join(".git/config")).expect("read"), config);
        for gone in [
            ".envrc",
            ".mcp.json",
            ".cargo",
            ".vscode",
            ".idea",
            ".claude",
            ".git/commondir",
            ".git/worktrees",
        ] {
            assert!(!folder.join(gone).exists(), "{caller:?}: the placeholder {gone} stayed");
        }
    }
}

/// Regression: a file `.git` was protected, and the repository that it names in the same workspace was not.
#[test]
fn repository_that_a_file_names_and_a_bare_one_run_nothing_of_a_workspace() {
    hutch_testkit::require!(root, user_namespaces);
    const HOOK: &str = "#!/bin/sh\\ntouch /x";
    let place = Place::new();
    for caller in CALLERS {
        for (name, layout, repository) in [
            ("named", "git init -q --bare .bare && printf 'gitdir: ./.bare\n' > .git", ".bare/"),
            ("dotted", "git init -q --bare a/.bare && printf 'gitdir: a/../a/.bare' > .git", "a/.bare/"),
            (
                "worktree",
                "git init -q --bare .bare && mkdir -p .bare/worktrees/w && printf '../..' > .bare/worktrees/w/commondir && \
                 printf 'gitdir: .bare/worktrees/w' > .git",
                ".bare/",
            ),
            ("bare", "git init -q --bare .", ""),
        ] {
            let folder = place.folder_of(Caller::Root, &format!("{caller:?}-{name}"));
            let sh = |script: &str| {
                let mut sh = Command::new("sh");
                sh.args(["-c", script]).current_dir(&folder).env("HOME", place.path());
                succeeded(name, &sh.output().expect("sh"));
            };
            sh(layout);
            if caller == Caller::Ordinary {
                sh(&format!("chown -R {ORDINARY}:{ORDINARY} ."));
            }
            let before =
                (listing(&folder.join(repository).join("hooks")), fs::read(folder.join(".git")).ok());
            let attack = format!(
                "[ ! -e .bare/worktrees ] || (echo evil > .bare/worktrees/w/commondir && echo WORKED commondir)
                [ ! -e .bare/worktrees ] || (echo x > .bare/worktrees/w/index && echo index)
                cd /workspace/{repository}. || exit 1
                (printf '{HOOK}' > hooks/post-checkout && echo WORKED hook)
                (echo '[core]' >> config && echo WORKED config)
                (mkdir -p other && mv hooks other/h && echo WORKED mv hooks)
                (mv config other/c && echo WORKED mv config; rm -f config && echo WORKED rm config)
                [ -n '{repository}' ] || (mv objects o && echo WORKED mv objects; mv refs r && echo WORKED mv refs)
                cd /workspace && (mv .bare away && echo WORKED mv; mv a b && mv b/.bare a && echo WORKED mv a)
                [ ! -e .git ] || (echo 'gitdir: /workspace/evil' > .git && echo WORKED .git)
                echo over",
            );
            let options = ["--workspace", &folder.display().to_string()];
            let output = place.run(caller, &options, &attack).output().expect("hutch run");
            let printed = text(&output.stdout);
            let expected = if name == "worktree" { "index\nover\n" } else { "over\n" };
            assert_eq!(printed, expected, "{caller:?} {name}: {output:?}");
            let after = (listing(&folder.join(repository).join("hooks")), fs::read(folder.join(".git")).ok());
            assert_eq!(after, before, "{caller:?} {name}");
        }
    }
}

#[test]
fn protected_file_is_written_when_it_is_allowed() {
    hutch_testkit::require!(root, user_namespaces);
    let place = Place::new();
    let folder = repository(&place, Caller::Root, "repository");
    let named = folder.display().to_string();
    let options = ["--workspace", &named, "--allow-write", ".git/config", "--allow-write", ".vscode"];
    let script = "git remote add origin https://example.com/x && mkdir .vscode && echo written";
    let output = place.run(Caller::Root, &options, script).output().expect("hutch run");
    assert_eq!(text(&output.stdout), "written\n", "{output:?}");
    let printed = text(&output.stderr);
    assert!(
        printed.contains(".git/config") && printed.contains(".vscode"),
        "what changed is reported: {printed}"
    );
    for wrong in ["/etc", "../x", "Makefile", ""] {
        let output =
            place.run(Caller::Root, &["--workspace", &named, "--allow-write", wrong], "true").output();
        assert_eq!(output.expect("hutch run").status.code(), Some(125), "{wrong:?}");
    }
}

#[test]
fn new_repository_is_made_and_reported() {
    hutch_testkit::require!(root, user_namespaces);
    let place = Place::new();
    for caller in CALLERS {
        let folder = place.folder_of(caller, &format!("{caller:?}-new"));
        let script = "git init -q . && mkdir -p a/b/.vscode && echo {} > a/b/.vscode/tasks.json && \
                      printf '#!/bin/sh' > .git/hooks/pre-commit";
        let named = folder.display().to_string();
        let output = place.run(caller, &["--workspace", &named], script).output().expect("hutch run");
        let printed = text(&output.stderr);
        assert!(output.status.success(), "{caller:?}: {output:?}");
        for name in [".git/hooks/pre-commit", ".git/config", "a/b/.vscode/tasks.json"] {
            assert!(printed.contains(name), "{caller:?}: {name} is not in {printed}");
        }
        let output = place.run(caller, &["--workspace", &named, "--json"], "echo x > a/.envrc").output();
        let object: Value = serde_json::from_slice(&output.expect("hutch run").stdout).expect("JSON");
        assert_eq!(object["changedOnHost"]["names"], serde_json::json!(["a/.envrc"]), "{object}");
    }
}

#[test]
fn link_on_the_way_to_a_protected_file_is_refused() {
    hutch_testkit::require!(root, user_namespaces);
    let place = Place::new();
    for link in [".git", ".envrc", ".vscode", ".cargo"] {
        let folder = place.folder_of(Caller::Root, &format!("linked{link}"));
        std::os::unix::fs::symlink("/tmp", folder.join(link)).expect("link");
        let named = folder.display().to_string();
        let output = place.run(Caller::Root, &["--workspace", &named], "true").output().expect("hutch run");
        refused(&output, 125, &[link, "symbolic link"]);
    }
    let folder = place.folder_of(Caller::Root, "submodule");
    fs::write(folder.join(".git"), "gitdir: /elsewhere\n").expect("write");
    let named = folder.display().to_string();
    let script = "echo gitdir: /workspace/x > .git; mv .git y; rm -f .git; cat .git";
    let output = place.run(Caller::Root, &["--workspace", &named], script).output().expect("hutch run");
    assert_eq!(text(&output.stdout), "gitdir: /elsewhere\n", "{output:?}");
}

#[test]
fn placeholders_of_a_killed_run_are_removed_by_the_next() {
    hutch_testkit::require!(root, user_namespaces);
    let place = Place::new();
    let folder = repository(&place, Caller::Ordinary, "repository");
    let before = listing(&folder);
    let named = folder.display().to_string();
    let mut command = place.run(Caller::Ordinary, &["--workspace", &named], "echo runs; sleep 1000");
    let mut child = command.stdout(Stdio::piped()).spawn().expect("hutch run");
    let mut runs = [0; 5];
    child.stdout.take().expect("standard output").read_exact(&mut runs).expect("read");
    assert_eq!(fs::metadata(folder.join(".claude")).expect("stat").uid(), ORDINARY);
    child.kill().expect("kill");
    child.wait().expect("wait");
    assert!(folder.join(".claude").exists());
    let output = place.run(Caller::Ordinary, &["--workspace", &named], "true").output().expect("hutch run");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(listing(&folder), before);
    // A folder of the user is never taken for a placeholder, even if it is empty.
    fs::create_dir(folder.join(".idea")).expect("folder");
    chown(folder.join(".idea"), Some(ORDINARY), Some(ORDINARY)).expect("owner");
    let output = place.run(Caller::Ordinary, &["--workspace", &named], "true").output().expect("hutch run");
    assert!(output.status.success() && folder.join(".idea").exists(), "{output:?}");
}

/// A file that is moved into the place of a trusted file keeps its own ctime.
#[test]
fn trusted_file_that_is_moved_into_place_is_reported() {
    hutch_testkit::require!(root, user_namespaces);
    let place = Place::new();
    for caller in CALLERS {
        let folder = place.folder_of(caller, &format!("{caller:?}-moved"));
        let named = folder.display().to_string();
        let run = |script: &str| {
            let output =
                place.run(caller, &["--workspace", &named, "--json"], script).output().expect("hutch run");
            let object: Value = serde_json::from_slice(&output.stdout).expect("JSON");
            object["changedOnHost"]["names"].clone()
        };
        let prepare = "git init -q tmp && mv tmp/.git g && rmdir tmp && echo x > g/hooks/pre-commit && mkdir -p src p/cargo && \
                       cp -r g src/g && mkdir -p b/v && echo {} > b/v/tasks.json && echo x > p/cargo/config";
        assert_eq!(run(prepare), serde_json::json!([]), "{caller:?}");
        let names =
            run("mv g .git && mv src/g src/.git && mv b/v b/.vscode && mv b d && mv p/cargo p/.cargo");
        let names: Vec<&str> = names.as_array().expect("names").iter().filter_map(Value::as_str).collect();
        for name in [
            ".git/hooks/pre-commit",
            ".git/config",
            "src/.git/hooks/pre-commit",
            "d/.vscode/tasks.json",
            "p/.cargo/config",
        ] {
            assert!(names.contains(&name), "{caller:?}: {name} is not in {names:?}");
        }
        assert_eq!(run("true"), serde_json::json!([]), "{caller:?}: nothing changed");
        // Made just before the run.
        fs::write(folder.join("src/.envrc"), "x").expect("write");
        assert_eq!(run("true"), serde_json::json!([]), "{caller:?}: made before");
    }
}

#[test]
fn many_settings_do_not_hide_a_hook() {
    hutch_testkit::require!(root, user_namespaces);
    let place = Place::new();
    let folder = place.folder_of(Caller::Root, "flood");
    let script = "for i in $(seq 300); do mkdir -p $i/.vscode; done; mkdir -p zz/.git/hooks; echo x > zz/.git/hooks/pre-commit";
    let output = place.run(Caller::Root, &["--workspace", &folder.display().to_string()], script).output();
    let printed = text(&output.expect("hutch run").stderr);
    assert!(printed.contains("zz/.git/hooks/pre-commit") && printed.contains("and 202 more"), "{printed}");
}

#[test]
fn git_does_not_commit_placeholders() {
    hutch_testkit::require!(root, user_namespaces);
    let place = Place::new();
    for caller in CALLERS {
        let folder = repository(&place, caller, &format!("{caller:?}-added"));
        let script = "echo x > new; git add -A && git status --porcelain";
        let output = place.run(caller, &["--workspace", &folder.display().to_string()], script).output();
        let output = output.expect("hutch run");
        assert_eq!(text(&output.stdout), "A  new\n", "{caller:?}: {output:?}");
    }
}

#[test]
fn older_name_of_cargos_settings_is_protected_when_it_is_there() {
    hutch_testkit::require!(root, user_namespaces);
    let place = Place::new();
    let folder = place.folder_of(Caller::Root, "cargo");
    fs::create_dir(folder.join(".cargo")).expect("folder");
    fs::write(folder.join(".cargo/config"), "kept").expect("write");
    let script = "echo changed > .cargo/config; rm -f .cargo/config; mv .cargo away";
    let output = place.run(Caller::Root, &["--workspace", &folder.display().to_string()], script).output();
    assert_eq!(fs::read_to_string(folder.join(".cargo/config")).expect("read"), "kept", "{output:?}");
}

#[test]
fn status_of_the_command_is_kept_when_the_output_is_closed() {
    hutch_testkit::require!(root, user_namespaces);
    let place = Place::new();
    let mut command = place.run(Caller::Root, &["--json"], "exit 3");
    let (reader, writer) = std::io::pipe().expect("pipe");
    drop(reader);
    let output = command.stdout(writer).output().expect("hutch run");
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(3), String::new()));
}

#[test]
fn link_on_the_way_to_a_workspace_or_a_root_is_refused() {
    hutch_testkit::require!(root, user_namespaces);
    let place = Place::new();
    let target = place.folder_of(Caller::Root, "target").canonicalize().expect("path");
    let top = place.folder_of(Caller::Root, "top");
    std::os::unix::fs::symlink(&target, top.join("link")).expect("link");
    fs::create_dir(target.join("below")).expect("folder");
    for flag in ["--workspace", "--rootfs"] {
        for path in ["link", "link/below"] {
            let named = top.join(path).display().to_string();
            let meant = target.join(path.strip_prefix("link/").unwrap_or("")).display().to_string();
            let output = place.run(Caller::Root, &[flag, &named], "true").output().expect("hutch run");
            refused(&output, 125, &[flag, &named, "symbolic link", meant.trim_end_matches('/')]);
        }
    }
}

#[test]
fn gvisor_makes_no_mount_point_in_a_root_of_the_caller() {
    hutch_testkit::require!(root, runsc);
    let place = Place::new();
    let root = place.folder_of(Caller::Root, "root");
    hutch_testkit::copy_program(place.path().join("hutch"), root.join("hutch"));
    let workspace = place.folder_of(Caller::Root, "workspace").display().to_string();
    let named = root.display().to_string();
    let options = ["run", "--isolation", "gvisor", "--rootfs", &named, "--workspace", &workspace];
    let words = [&options[..], &["--", "/hutch", "--version"]].concat();
    let output = place.program(Caller::Root, &words).output().expect("hutch run");
    assert!(text(&output.stdout).starts_with("hutch "), "{output:?}");
    assert_eq!(fs::read_dir(&root).expect("folder").count(), 1);
}

/// Code inside leaves a link that a later run of the same workspace could mount over.
#[test]
fn link_in_a_workspace_does_not_choose_what_is_covered() {
    hutch_testkit::require!(root, user_namespaces, python);
    const SWAP: &str = "import os, ctypes, time\n\
        libc = ctypes.CDLL(None)\n\
        os.makedirs('.git/hooks', exist_ok=True); os.symlink('/usr/local', 'link')\n\
        end = time.monotonic() + 60\n\
        while time.monotonic() < end and not os.path.exists('end'):\n\
        \x20 for _ in range(2): libc.renameat2(-100, b'.git/hooks', -100, b'link', 2)";
    let place = Place::new();
    let workspace = place.folder_of(Caller::Root, "shared");
    let named = workspace.display().to_string();
    let words = ["run", "--workspace", &named, "--", "python3", "-c", SWAP];
    let mut swapper = place.program(Caller::Root, &words).spawn().expect("hutch run");
    let changes = || workspace.join("link").is_symlink() || workspace.join(".git/hooks").is_symlink();
    hutch_testkit::wait::until("a link", changes);
    for _ in 0..40 {
        // The folder of this machine is never empty; that of the workspace is.
        let mut command =
            place.run(Caller::Root, &["--workspace", &named], "ls /usr/local | head -1; echo over");
        let printed = text(&command.output().expect("hutch run").stdout);
        assert_ne!(printed, "over\n", "the workspace covers /usr/local");
    }
    fs::write(workspace.join("end"), "").expect("write");
    swapper.wait().expect("wait");
}

/// One run exchanges folders of a workspace for links out of it while others start in the same workspace, or below.
#[test]
fn workspace_that_another_run_changes_meanwhile_leads_nowhere() {
    hutch_testkit::require!(root, user_namespaces, python);
    const SWAP: &str = "import os, ctypes, time\n\
        libc = ctypes.CDLL(None)\n\
        os.chdir('/workspace')\n\
        os.makedirs('.git', exist_ok=True); os.makedirs('sub', exist_ok=True)\n\
        for name in ('.git', 'sub'): os.symlink(os.environ['TARGET'], name + '-link')\n\
        print('ready', flush=True)\n\
        end = time.monotonic() + 60\n\
        while time.monotonic() < end and not os.path.exists('end'):\n\
        \x20 for name in (b'.git', b'sub'):\n\
        \x20   libc.renameat2(-100, name, -100, name + b'-link', 2); libc.renameat2(-100, name, -100, name + b'-link', 2)";
    let place = Place::new();
    let target = place.folder_of(Caller::Root, "target");
    fs::write(target.join("keep"), "host-data").expect("write");
    for name in ["hooks", "modules", "worktrees", ".vscode", ".idea", ".claude", ".cargo"] {
        fs::create_dir(target.join(name)).expect("folder");
    }
    for name in ["config", "commondir", "config.worktree", ".envrc", ".mcp.json", ".cargo/config.toml"] {
        fs::write(target.join(name), "").expect("write");
    }
    let before = listing(&target);
    let workspace = place.folder_of(Caller::Root, "shared");
    let named = workspace.display().to_string();
    let target_named = format!("TARGET={}", target.display());
    let words = ["run", "--workspace", &named, "--env", &target_named, "--", "python3", "-c", SWAP];
    let mut swapper = place.program(Caller::Root, &words).spawn().expect("hutch run");
    let changes = || workspace.join("sub-link").is_symlink() || workspace.join("sub").is_symlink();
    hutch_testkit::wait::until("links", changes);
    let gvisor = hutch_testkit::Need::Runsc.missing().is_none();
    let script = "cat .git/keep keep; echo ESCAPED > .git/pwned; echo ESCAPED > pwned; true";
    for number in 0..20 {
        for folder in [named.clone(), format!("{named}/sub")] {
            for isolation in ["hutch", "gvisor"] {
                if isolation == "gvisor" && (!gvisor || number > 4) {
                    continue;
                }
                let options = ["--isolation", isolation, "--workspace", &folder];
                let output = place.run(Caller::Root, &options, script).output().expect("hutch run");
                assert!(!text(&output.stdout).contains("host-data"), "{isolation} {folder}: {output:?}");
                assert_eq!(listing(&target), before, "{isolation} {folder}: {output:?}");
            }
        }
    }
    fs::write(workspace.join("end"), "").expect("write");
    swapper.wait().expect("wait");
}
