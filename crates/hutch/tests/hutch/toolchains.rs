//! The commands of the README that run a project's tests with its dependencies, against the registries themselves.

use std::collections::BTreeSet;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::egress::callers;
use crate::harness::{HUTCH, succeeded, text};
use crate::mounts::{Home, without_tools};
use crate::paths::make;
use crate::peers::{USER, with_files};
use crate::registries::{Registry, allowing};

const README: &str = include_str!("../../../../README.md");

/// A project in one language.
struct Project {
    /// Part of its command in the README.
    command: &'static str,
    /// Program that must be on the PATH.
    needs: &'static str,
    /// Registry as the machine's clients have it: that of the README, or a mirror.
    registry: fn() -> Option<Registry>,
    files: &'static [(&'static str, &'static str)],
    /// Part of the output of its tests.
    passed: &'static str,
    /// Folder that is made in the workspace.
    makes: Option<&'static str>,
}

const PROJECTS: [Project; 4] = [
    Project {
        command: "venv/bin/pytest",
        needs: "/usr/bin/python3",
        registry: Registry::of_python,
        files: &[("test_it.py", "import six\n\ndef test_it():\n    assert six.PY3\n")],
        passed: "1 passed",
        makes: Some("venv"),
    },
    Project {
        command: "npm test",
        needs: "npm",
        registry: Registry::of_npm,
        files: &[
            (
                "package.json",
                r#"{"name": "t", "version": "1.0.0", "dependencies": {"is-number": "7.0.0"},
                    "scripts": {"test": "node test.js"}}"#,
            ),
            ("test.js", "if (require('is-number')(1)) console.log('test passed')\n"),
        ],
        passed: "test passed",
        makes: Some("node_modules"),
    },
    Project {
        command: "go test",
        needs: "go",
        registry: Registry::of_go,
        files: &[
            (
                "go.mod",
                "module t\n\ngo 1.21\n\nrequire golang.org/x/exp v0.0.0-20240719175910-8a7402abbf56\n",
            ),
            (
                "go.sum",
                "golang.org/x/exp v0.0.0-20240719175910-8a7402abbf56 h1:2dVuKD2vS7b0QIHQbpyTISPd0LeHDbnYEryqj5Q1ug8=\n\
                golang.org/x/exp v0.0.0-20240719175910-8a7402abbf56/go.mod h1:M4RDyNAINzryxdtnbRXRL/OHtkFuWGRjvuhBJpk2IlY=\n",
            ),
            (
                "t_test.go",
                "package t\n\nimport (\n\t\"testing\"\n\n\t\"golang.org/x/exp/constraints\"\n)\n\n\
                func twice[T constraints.Integer](n T) T { return n + n }\n\n\
                func TestIt(t *testing.T) {\n\tif twice(1) != 2 {\n\t\tt.Fatal()\n\t}\n}\n",
            ),
        ],
        passed: "ok  \tt",
        makes: None,
    },
    Project {
        command: "cargo test",
        needs: "cargo",
        registry: Registry::of_cargo,
        files: &[
            (
                "Cargo.toml",
                "[package]\nname = \"t\"\nversion = \"0.1.0\"\nedition = \"2021\"\n\n[lib]\npath = \"lib.rs\"\n\n\
                [dependencies]\nitoa = \"1\"\n",
            ),
            ("lib.rs", "#[test]\nfn it() {\n    assert_eq!(itoa::Buffer::new().format(1), \"1\");\n}\n"),
        ],
        passed: "1 passed",
        makes: Some("target"),
    },
];

/// Returns the files of the project in Rust.
pub(crate) fn cargo_project() -> &'static [(&'static str, &'static str)] {
    PROJECTS.iter().find(|project| project.command == "cargo test").expect("a project").files
}

/// Returns the command of the README that contains this text.
fn documented(part: &str) -> String {
    let joined = README.replace("\\\n", " ");
    let found = joined.lines().find(|line| line.starts_with("hutch run ") && line.contains(part));
    found.unwrap_or_else(|| panic!("{part} is not in README.md")).to_owned()
}

/// Returns the registry of a project and the flags that open it, or why its tests cannot run.
fn opened(project: &Project) -> Result<(Registry, Vec<String>), String> {
    let have = Command::new("sh").args(["-c", &format!("command -v {}", project.needs)]).output();
    if !have.expect("sh").status.success() {
        return Err(format!("needs {}", project.needs));
    }
    let registry = (project.registry)().ok_or_else(|| format!("needs the registry of {}", project.needs))?;
    let flags = allowing(&registry.hosts)?;
    Ok((registry, flags))
}

/// Returns the command of the README for a project, for the registry of this machine.
fn for_this_machine(project: &Project) -> Result<String, String> {
    let (registry, flags) = opened(project)?;
    let documented = documented(project.command);
    let mut words = documented.split(' ').filter(|word| !word.is_empty());
    let (mut allowed, mut others) = (BTreeSet::new(), Vec::new());
    while let Some(word) = words.next() {
        match word {
            "--allow" => drop(allowed.insert((words.next().expect("a host").to_owned(), 443))),
            word => others.push(word),
        }
    }
    let more = match allowed == registry.hosts {
        // A mirror of a registry may have an address of the local network.
        true => flags.chunks(2).filter(|pair| pair[0] == "--allow-private").flatten().cloned().collect(),
        false => [flags, registry.flags].concat(),
    };
    let documented = if allowed == registry.hosts { documented } else { others.join(" ") };
    Ok(documented.replacen("hutch run", &format!("hutch run {}", more.join(" ")), 1))
}

/// Runs a command in a new folder with the project.
fn run(project: &Project, command: &str) -> Output {
    let folder = tempfile::tempdir().expect("tempdir");
    for (name, content) in project.files {
        std::fs::write(folder.path().join(name), content).expect("written");
    }
    let programs = Path::new(HUTCH).parent().expect("a folder").display().to_string();
    let path = std::env::var("PATH").unwrap_or_default();
    let mut shell = Command::new("sh");
    shell.args(["-euc", command]).current_dir(&folder).env("PATH", format!("{path}:{programs}"));
    shell.stdin(Stdio::null()).output().expect("sh")
}

#[test]
fn test_suites_of_the_readme_run_with_their_dependencies() {
    hutch_testkit::require!(root, python);
    for project in &PROJECTS {
        let command = match for_this_machine(project) {
            Ok(command) => command,
            Err(reason) => {
                hutch_testkit::note_skip(&format!("README: {}", project.command), &reason);
                continue;
            }
        };
        let output = run(project, &command);
        let printed = succeeded(&command, &output);
        assert!(printed.contains(project.passed), "{command}: {printed}{}", text(&output.stderr));
    }
}

/// Runs a command as an ordinary user in a folder with the project. The user has the toolchains of rustup, and no downloads.
fn run_as_ordinary_user(project: &Project, command: &str) -> (Home, Output) {
    let home = Home::new();
    for (name, content) in project.files {
        let name = format!("work/{name}");
        std::fs::write(home.path(&name), content).expect("written");
        home.own(&name);
    }
    // The home of the user of the tests may be closed to others.
    let folder = |variable: &str, default: &str| {
        let own = std::env::var_os("HOME").map(|home| Path::new(&home).join(default));
        std::env::var_os(variable).map(PathBuf::from).or(own)
    };
    let tools = [
        (folder("RUSTUP_HOME", ".rustup"), "home/.rustup"),
        (folder("CARGO_HOME", ".cargo").map(|folder| folder.join("bin")), "home/.cargo/bin"),
    ];
    for name in ["home/.rustup", "home/.cargo", "home/.cargo/bin"] {
        std::fs::create_dir(home.path(name)).expect("made");
        home.own(name);
    }
    let tools = tools.map(|(from, to)| (from.filter(|folder| folder.is_dir()), home.path(to)));
    let files: Vec<(&Path, &str)> =
        tools.iter().filter_map(|(from, to)| Some((from.as_deref()?, to.to_str()?))).collect();
    let mut user = with_files(&files, Some(USER));
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{}:{path}", home.path("").display(), home.path("home/.cargo/bin").display());
    user.args(["sh", "-euc", command]).env("PATH", path).env("HOME", home.path("home"));
    without_tools(&mut user);
    user.current_dir(home.path("work")).stdin(Stdio::null());
    let output = user.output().expect("unshare");
    (home, output)
}

/// Checks that an ordinary user can run the command of the README that contains this.
fn runs_as_ordinary_user(part: &str) {
    let project = PROJECTS.iter().find(|project| project.command == part).expect("a project");
    let command = match for_this_machine(project) {
        Ok(command) => command,
        Err(reason) => {
            let test = format!("README: {part} as an ordinary user");
            return hutch_testkit::note_skip(&test, &reason);
        }
    };
    let (home, output) = run_as_ordinary_user(project, &command);
    let printed = succeeded(&command, &output);
    assert!(printed.contains(project.passed), "{command}: {printed}{}", text(&output.stderr));
    if let Some(name) = project.makes {
        let made = home.path("work").join(name);
        assert_eq!(made.metadata().expect(name).uid(), USER, "{command}: {name}");
    }
    // What was downloaded is discarded, as for root.
    for cache in ["home/.cargo/registry", "home/.npm", "home/go", "home/.cache/pip"] {
        assert!(!home.path(cache).exists(), "{command}: {cache}");
    }
}

#[test]
fn ordinary_user_runs_pytest_of_the_readme() {
    hutch_testkit::require!(root, user_namespaces, python);
    runs_as_ordinary_user("venv/bin/pytest");
}

#[test]
fn ordinary_user_runs_npm_test_of_the_readme() {
    hutch_testkit::require!(root, user_namespaces);
    runs_as_ordinary_user("npm test");
}

/// Go compiles its library too, which takes long. The same suite runs as root in any case.
#[test]
fn ordinary_user_runs_go_test_of_the_readme() {
    hutch_testkit::require!(root, user_namespaces);
    if std::env::var_os("HUTCH_SLOW_TESTS").is_none_or(|value| value != "1") {
        return hutch_testkit::note_skip(
            "README: go test as an ordinary user",
            "takes long (scripts/slow-tests)",
        );
    }
    runs_as_ordinary_user("go test");
}

#[test]
fn ordinary_user_runs_cargo_test_of_the_readme() {
    hutch_testkit::require!(root, user_namespaces);
    runs_as_ordinary_user("cargo test");
}

/// The layouts of nvm, pyenv and uv, with a program of the machine in the place of each interpreter.
#[test]
fn versions_of_nvm_pyenv_and_uv_run_inside() {
    hutch_testkit::require!(root, user_namespaces);
    let versions = [
        (".nvm/versions/node/v22.11.0/bin", "node"),
        (".pyenv/versions/3.12.7/bin", "python3.12"),
        (".local/share/uv/python/cpython-3.13.1-linux-x86_64-gnu/bin", "python3.13"),
        (".local/share/uv/tools/ruff/bin", "ruff"),
    ];
    for caller in callers() {
        let home = Home::new();
        for (folder, program) in versions {
            let file = format!("home/{folder}/{program}");
            make(&home, &[&file]);
            std::fs::copy("/bin/sh", home.path(&file)).expect("copied");
        }
        // As pyenv makes them: a script that finds the version by its variable.
        make(&home, &["home/.pyenv/shims/python", "home/.nvm/nvm.sh"]);
        make(&home, &["home/.local/share/uv/credentials/credentials.toml"]);
        let shim = "#!/bin/sh\nexec \"$PYENV_ROOT/versions/3.12.7/bin/python3.12\" \"$@\"\n";
        std::fs::write(home.path("home/.pyenv/shims/python"), shim).expect("written");
        std::fs::set_permissions(home.path("home/.pyenv/shims/python"), PermissionsExt::from_mode(0o755))
            .expect("chmod");
        let folders = versions.map(|(folder, _)| home.path("home").join(folder).display().to_string());
        let shims = home.path("home/.pyenv/shims").display().to_string();
        let callers_path = std::env::var("PATH").unwrap_or_default();
        let path = format!("{}:{shims}:{callers_path}", folders.join(":"));
        let script = "for program in node python3.12 python3.13 ruff python; do \
                $program -c 'echo ran' || echo \"no $program\"; command -v $program; done; \
            echo x >> $NVM_DIR/nvm.sh; echo $NVM_DIR $PYENV_ROOT; \
            cat ${NVM_DIR%.nvm}.local/share/uv/credentials/*";
        let output = home.run_with(caller, &[("PATH", &path)], &["--tools"], script);
        let shown = |name: &str| home.path("home").join(name).display().to_string();
        let mut expected: String =
            versions.iter().map(|(folder, program)| format!("ran\n{}/{program}\n", shown(folder))).collect();
        expected += &format!("ran\n{shims}/python\n{} {}\n", shown(".nvm"), shown(".pyenv"));
        assert_eq!(text(&output.stdout), expected, "{caller:?} {}", text(&output.stderr));
        assert_eq!(home.read("home/.nvm/nvm.sh"), "SECRET\n", "{caller:?}: it is read-only");
        let closed = format!("{}/node -c 'echo ran'", folders[0]);
        let without = home.run_with(caller, &[("PATH", &path)], &[], &closed);
        assert!(!without.status.success(), "{caller:?}");
    }
}

/// Returns the command without the flags that open the network. cargo does not try again.
fn closed(command: &str) -> String {
    let words: Vec<&str> = command.split(' ').collect();
    let is_flag = |word: &str| word.starts_with("--allow");
    let kept = (0..words.len()).filter(|at| !is_flag(words[*at]) && (*at == 0 || !is_flag(words[*at - 1])));
    let kept = kept.map(|at| words[at]).collect::<Vec<_>>().join(" ");
    kept.replacen("hutch run", "hutch run --env CARGO_NET_RETRY=0", 1)
}

#[test]
fn without_its_registry_a_test_suite_does_not_run() {
    hutch_testkit::require!(root, user_namespaces);
    for project in PROJECTS.iter().filter(|project| ["cargo test", "go test"].contains(&project.command)) {
        let found = opened(project).and_then(|(registry, _)| Ok((registry, for_this_machine(project)?)));
        let (registry, command) = match found {
            Ok(found) => found,
            Err(reason) => {
                hutch_testkit::note_skip(&format!("README: {}, closed", project.command), &reason);
                continue;
            }
        };
        let closed = closed(&command);
        let mut outputs = vec![("an ordinary user", run_as_ordinary_user(project, &closed).1)];
        // Go would find the module among the downloads of root.
        if project.command == "cargo test" {
            outputs.push(("root", run(project, &closed)));
        }
        for (who, output) in outputs {
            let printed = text(&output.stderr) + &text(&output.stdout);
            let named = registry.hosts.iter().any(|(host, _)| printed.contains(host));
            assert!(!output.status.success() && named, "{who}: {closed}: {output:?}");
            assert!(!printed.contains(project.passed), "{who}: {closed}: {printed}");
        }
    }
}
