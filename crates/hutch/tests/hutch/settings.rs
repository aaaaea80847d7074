//! `hutch run --settings` and `hutch policy import`: settings of srt and other formats.

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::egress::{Caller, callers};
use crate::harness::{HUTCH, refused, succeeded, text};
use crate::mounts::Home;
use crate::paths::make;

/// Runs a script in the folder `work` with these settings, in which `@` is the folder of the user.
fn run(home: &Home, caller: Caller, settings: &Value, flags: &[&str], script: &str) -> Output {
    let file = home.path("settings.json");
    let folder = home.path("").display().to_string();
    std::fs::write(&file, settings.to_string().replace('@', &folder)).expect("written");
    let options = [&["--settings", file.to_str().expect("a path")], flags].concat();
    home.run_at(caller, &home.path("work"), &options, script)
}

fn files(settings: Value) -> Value {
    let network = json!({"allowedDomains": [], "deniedDomains": []});
    json!({"network": network, "filesystem": settings})
}

#[test]
fn difference_of_what_is_shown_is_printed_once() {
    hutch_testkit::require!(root, user_namespaces);
    let home = Home::new();
    std::fs::remove_file(home.path("home/.local/state/hutch/printed/settings-files")).expect("removed");
    let printed = || {
        let output = run(&home, Caller::Ordinary, &files(json!({"allowWrite": ["."]})), &[], "true");
        succeeded("hutch run", &output);
        text(&output.stderr)
            .contains("the command sees /usr, the working directory, and the paths of allowRead")
    };
    assert!(printed());
    assert!(!printed());
}

#[test]
fn files_are_shown_and_hidden_as_the_settings_say() {
    hutch_testkit::require!(root, user_namespaces);
    for caller in callers() {
        let home = Home::new();
        make(
            &home,
            &["work/config/prod", "work/secrets/key", "work/src/a", "work/.git/config", "cache/file"],
        );
        let settings = files(json!({
            "denyRead": ["@", "secrets", "~/.ssh", "@/work/missing"],
            "allowRead": [".", "@/data"],
            "allowWrite": [".", "@/cache/**", "/tmp", "@/missing"],
            "denyWrite": [".env", "./config", "later/"],
        }));
        let script = "pwd; echo $HOME; echo x > new; echo x > src/new; echo x > @/cache/new; echo x > /tmp/x && cat /tmp/x; \
            cat @/data/file; ls -A secrets; cat secrets/key; \
            echo x > .env; echo x > config/prod; echo x > config/new; echo x > later/new; mv config c; mv src s && mv s src; \
            echo x > @/data/new; echo x > .git/config; ls @";
        let output = run(&home, caller, &settings, &[], script);
        let work = home.path("work").display().to_string();
        let expected = format!("{work}\n{work}\nx\nbefore\ncache\ndata\nwork\n");
        assert_eq!(text(&output.stdout), expected, "{caller:?}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains("filesystem.allowWrite[3]"), "{}", text(&output.stderr));
        for (name, content) in [
            ("work/new", "x\n"),
            ("work/src/new", "x\n"),
            ("cache/new", "x\n"),
            ("work/config/prod", "SECRET\n"),
            ("work/.git/config", "SECRET\n"),
        ] {
            assert_eq!(home.read(name), content, "{caller:?}: {name}");
        }
        for name in ["work/.env", "work/config/new", "work/later", "data/new", "work/c"] {
            assert!(!home.path(name).exists(), "{caller:?}: {name}");
        }
    }
}

#[test]
fn pattern_hides_what_matches_at_the_start() {
    hutch_testkit::require!(root, user_namespaces);
    for caller in callers() {
        let home = Home::new();
        make(
            &home,
            &["work/.env", "work/a/.env", "work/a/build/out", "work/a/keep", "data/x.pem", "data/y.txt"],
        );
        let settings = files(json!({
            "denyRead": ["**/.env", "**/build/**", "@/data/*.pem"], "allowRead": ["@/data"], "allowWrite": ["."],
        }));
        // A link that matches.
        std::fs::create_dir(home.path("work/a/c")).expect("a folder");
        std::os::unix::fs::symlink("../../.env", home.path("work/a/c/.env")).expect("a link");
        let script =
            "cat .env a/.env a/c/.env a/build/out @/data/x.pem; ls -A a/build; cat a/keep; cat @/data/y.txt";
        let output = run(&home, caller, &settings, &[], script);
        assert_eq!(text(&output.stdout), "SECRET\nSECRET\n", "{caller:?}: {}", text(&output.stderr));
        // A folder that an earlier run closed, which can be listed and not searched, or neither.
        for mode in ["444", "000"] {
            run(&home, caller, &settings, &[], &format!("chmod {mode} a"));
            let script = "chmod 755 a; cat .env a/.env a/build/out; echo over";
            let output = run(&home, caller, &settings, &[], script);
            assert_eq!(text(&output.stdout), "over\n", "{caller:?} {mode}: {}", text(&output.stderr));
            let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            std::fs::set_permissions(home.path("work/a"), open).expect("chmod");
        }
        assert_eq!(home.read("work/a/.env"), "SECRET\n");
    }
}

#[test]
fn only_what_is_listed_can_be_written() {
    hutch_testkit::require!(root, user_namespaces);
    for caller in callers() {
        let home = Home::new();
        make(&home, &["work/out/a", "work/single", "work/src/a", "work/out/kept/a"]);
        let settings = files(json!({
            "denyRead": [], "allowWrite": ["out", "single"], "denyWrite": ["out/kept"], "allowGitConfig": true,
        }));
        let script = "cat src/a; echo x > src/a; echo x > new; echo x > out/a; echo x > out/new; echo x > single; \
            echo x > out/kept/a; mv out o; rm single; echo $HOME; touch ~/x && echo home";
        let output = run(&home, caller, &settings, &[], script);
        assert_eq!(text(&output.stdout), "SECRET\n/tmp\nhome\n", "{caller:?}: {}", text(&output.stderr));
        for (name, content) in [
            ("work/src/a", "SECRET\n"),
            ("work/out/kept/a", "SECRET\n"),
            ("work/out/a", "x\n"),
            ("work/out/new", "x\n"),
            ("work/single", "x\n"),
        ] {
            assert_eq!(home.read(name), content, "{caller:?}: {name}");
        }
        assert!(!home.path("work/new").exists());
    }
}

/// Regression: what the settings open in a read-only workspace was open although a policy, or a link in `denyWrite`, closes it.
#[test]
fn policy_and_links_close_what_the_settings_open_for_writing() {
    hutch_testkit::require!(root, user_namespaces);
    for caller in callers() {
        let home = Home::new();
        make(&home, &["work/out/a", "work/more/a", "work/open/a"]);
        std::os::unix::fs::symlink("more", home.path("work/link")).expect("a link");
        let rule = |path: &str| json!({"path": path, "access": "Read"});
        let settings =
            files(json!({"allowWrite": ["out", "more", "open"], "denyWrite": ["link"], "denyRead": []}));
        let script = "for folder in out more open; do echo x > $folder/a; echo x > $folder/new; done; cat more/a open/a out/a";
        for (rules, expected) in [
            (json!([rule("/workspace/out")]), "SECRET\nx\nSECRET\n"),
            (json!([rule("/workspace/out"), rule("/workspace/open/a")]), "SECRET\nSECRET\nSECRET\n"),
            (json!([rule("/workspace")]), "SECRET\nSECRET\nSECRET\n"),
            (json!([]), "SECRET\nx\nx\n"),
        ] {
            for file in ["work/out/a", "work/open/a"] {
                std::fs::write(home.path(file), "SECRET\n").expect("written");
            }
            let mut flags = Vec::new();
            let file = home.path("policy.json").display().to_string();
            if rules != json!([]) {
                let policy = json!({"apiVersion": "policy.hutch.dev/v1alpha1", "kind": "SandboxPolicy",
                    "metadata": {"name": "a"}, "spec": {"files": rules}});
                std::fs::write(&file, policy.to_string()).expect("written");
                flags = vec!["--policy", &file];
            }
            let output = run(&home, caller, &settings, &flags, script);
            let sorted = text(&output.stdout);
            assert_eq!(sorted, expected, "{caller:?} {rules}: {}", text(&output.stderr));
        }
    }
}

/// Regression: patterns were compared with the workspace and `--mount` alone, and a mount below a denied folder stayed.
#[test]
fn what_flags_show_is_hidden_as_the_settings_say() {
    hutch_testkit::require!(root, user_namespaces);
    for caller in callers() {
        let home = Home::new();
        make(
            &home,
            &["home/.pyenv/versions/3/key.pem", "home/.pyenv/versions/3/lib", "data/priv/a", "data/pub/a"],
        );
        let settings = files(json!({
            "denyRead": ["@/home/.pyenv/**/*.pem", "@/data"], "allowRead": ["@/data/pub"], "allowWrite": ["."],
        }));
        let script = "cat @/home/.pyenv/versions/3/key.pem @/data/priv/a; cat @/home/.pyenv/versions/3/lib @/data/pub/a";
        let script = script.replace('@', &home.path("").display().to_string());
        // The second is relative to the working directory.
        for mount in [format!("{}:ro", home.path("data/priv").display()), "../data/priv:ro".to_owned()] {
            let output = run(&home, caller, &settings, &["--tools", "--mount", &mount], &script);
            assert_eq!(
                text(&output.stdout),
                "SECRET\nSECRET\n",
                "{caller:?} {mount}: {}",
                text(&output.stderr)
            );
        }
    }
}

#[test]
fn network_is_as_the_settings_say() {
    hutch_testkit::require!(root, user_namespaces, python);
    for caller in callers() {
        let home = Home::new();
        let mut settings = files(json!({"denyRead": [], "allowWrite": ["."], "denyWrite": []}));
        settings["network"] = json!({
            "allowedDomains": ["a.example", "*.b.example:8443"],
            "deniedDomains": ["x.b.example", "*:22"],
            "deniedDomainReasons": {"*:22": "use https"},
            "allowLocalBinding": true,
        });
        settings["git"] = json!({"safeDirectories": ["/one", "/two"]});
        let script = "for name in a.example c.d.b.example x.b.example other.example; do \
                getent ahostsv4 $name > /dev/null && echo $name; done; git config --get-all safe.directory; \
            python3 -c \"import socket\nfor to in (('a.example', 22), ('x.b.example', 8443), ('y.b.example', 443)):\n \
                try: socket.create_connection(to, 60).recv(1)\n \
                except OSError as error: print(type(error).__name__)\"";
        let output = run(&home, caller, &settings, &[], script);
        let printed = text(&output.stdout);
        let stderr = text(&output.stderr);
        assert!(
            printed.starts_with("a.example\nc.d.b.example\nx.b.example\n"),
            "{caller:?}: {printed} {stderr}"
        );
        let refused = "/one\n/two\n".to_owned() + &"ConnectionResetError\n".repeat(3);
        assert!(printed.ends_with(&refused), "{caller:?}: {printed} {stderr}");
        for line in [
            "rule \"denied *:22: use https\" of policy \"network.allowedDomains\" denies it",
            "rule \"denied x.b.example\" of policy",
            "refused y.b.example:443: no rule of policy \"network.allowedDomains\" allows it",
            "network.allowLocalBinding: no effect",
        ] {
            assert!(stderr.contains(line), "{caller:?}: {line} is not in {stderr}");
        }
    }
}

#[test]
fn setting_that_cannot_be_enforced_is_refused_by_name() {
    hutch_testkit::require!(root, user_namespaces);
    let home = Home::new();
    make(&home, &["work/a/b", "work/.git/hooks/pre-commit", "data/private/out/x"]);
    for (settings, named) in [
        (
            json!({"credentials": {"allowPlaintextInject": true}}),
            "credentials.allowPlaintextInject: values go",
        ),
        (
            json!({"credentials": {"files": [{"path": "a", "mode": "mask"}]}}),
            "credentials.files[0].mode: only a",
        ),
        (
            json!({"credentials": {"files": [{"path": "a", "mode": "deny"}]},
                "filesystem": {"denyRead": [], "allowRead": ["a/b"], "allowWrite": [], "denyWrite": []}}),
            "filesystem.allowRead[0]: ",
        ),
        (
            json!({"network": {"tlsTerminate": {"caCertPath": "a", "caKeyPath": "b"}}}),
            "network.tlsTerminate.caCertPath: a sandbox has",
        ),
        (
            json!({"network": {"parentProxy": {"http": "https://a:1"}}}),
            "network.parentProxy.http: write it like",
        ),
        (json!({"network": {"allowedDomains": ["ok.example", "*.com"]}}), "network.allowedDomains[1]"),
        (json!({"network": {"allowed": []}}), "network.allowed: unknown key"),
        (files(json!({"denyWrite": ["**/.env"]})), "filesystem.denyWrite[0]: `**/.env` is a pattern"),
        (files(json!({"denyRead": ["/*/x"]})), "filesystem.denyRead[0]: a pattern needs a folder"),
        (files(json!({"allowWrite": ["/"]})), "filesystem.allowWrite[0]: / is above"),
        (files(json!({"allowWrite": [".git"]})), "filesystem.allowWrite[0]: programs of this machine run"),
        (
            files(json!({"allowWrite": ["a", ".git/hooks"]})),
            "filesystem.allowWrite[1]: programs of this machine",
        ),
        (files(json!({"denyRead": ["@"]})), "filesystem.denyRead[0]: the working directory is in"),
        (files(json!({"denyRead": ["a"], "allowRead": ["a/b"]})), "filesystem.allowRead[0]"),
        (
            files(json!({"denyRead": ["@/data/private"], "allowRead": ["@/data", "@/data/private/out"]})),
            "filesystem.allowRead[1]",
        ),
        (json!([]), "not a JSON object"),
    ] {
        refused(&run(&home, Caller::Ordinary, &settings, &[], "true"), 125, &["--settings", named]);
    }
    let both = run(&home, Caller::Ordinary, &json!({}), &["--allow", "a.example"], "true");
    refused(&both, 125, &["--settings", "--allow"]);
}

fn import(format: &str, flags: &[&str], text: &str) -> (Output, PathBuf) {
    let folder = tempfile::tempdir().expect("tempdir").keep();
    let file = folder.join("file");
    std::fs::write(&file, text).expect("written");
    let mut hutch = Command::new(HUTCH);
    hutch.args(["policy", "import", "--from", format]).args(flags).arg(&file);
    (hutch.output().expect("hutch"), folder)
}

#[test]
fn imported_policy_is_a_policy_and_changes_of_meaning_are_lines() {
    hutch_testkit::require!(root, user_namespaces);
    let srt = json!({
        "network": {"allowedDomains": ["*.npmjs.org", "a.example:8443"], "deniedDomains": ["evil.npmjs.org"]},
        "filesystem": {"denyRead": ["/usr/share/doc"], "allowRead": ["~/doc"], "allowWrite": ["."], "denyWrite": []},
        "allowPty": true,
    });
    let config = json!({"network": {"egress_allowlist": ["api.example:443"]}, "resources": {"cpu_limit": "2"},
        "credentials": {"mode": "just_in_time", "secret_scanning": true}});
    let of_srt = [
        "allowPty: no effect",
        "filesystem.allowRead[0]: `~/doc`",
        "filesystem.allowWrite: no part of",
        "network.strictAllowlist: ",
    ];
    let of_config = ["resources: no part of", "credentials.mode: ", "credentials.secret_scanning: "];
    for (format, text_of, lines) in [("srt", srt, &of_srt[..]), ("sandbox-config", config, &of_config)] {
        let (output, folder) = import(format, &[], &text_of.to_string());
        let policy = succeeded(format, &output);
        let stderr = text(&output.stderr);
        assert_eq!(stderr.lines().count(), lines.len(), "{stderr}");
        assert!(lines.iter().all(|line| stderr.contains(line)), "{stderr}");
        assert_eq!(policy.contains("builtin/secrets"), format == "sandbox-config", "{policy}");
        let file = folder.join("policy.yaml");
        std::fs::write(&file, policy).expect("written");
        let script = "for name in x.y.npmjs.org a.example api.example other.example; do \
            getent ahostsv4 $name > /dev/null && echo $name; done; \
            test -z \"$(ls -A /usr/share/doc 2> /dev/null)\" && echo hidden; true";
        let mut hutch = Command::new(HUTCH);
        hutch.args(["run", "--policy"]).arg(&file).args(["--", "sh", "-c", script]);
        let expected = if format == "srt" { "x.y.npmjs.org\na.example\nhidden\n" } else { "api.example\n" };
        assert_eq!(succeeded("run", &hutch.output().expect("hutch")), expected);
        std::fs::remove_dir_all(folder).expect("removed");
    }
}

#[test]
fn import_refuses_what_cannot_be_enforced_unless_it_may_lose_it() {
    let settings = json!({"network": {"allowedDomains": ["a.example"], "parentProxy": {}},
            "credentials": {"allowPlaintextInject": true},
            "filesystem": {"denyRead": ["~/.ssh"], "allowWrite": [], "denyWrite": []}});
    let (output, folder) = import("srt", &[], &settings.to_string());
    let stderr = text(&output.stderr);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), String::new()), "{stderr}");
    assert!(
        stderr.contains("credentials.allowPlaintextInject: ")
            && stderr.contains("network.parentProxy: ")
            && stderr.contains("filesystem.denyRead[0]: `~/.ssh`")
            && stderr.contains("--lossy")
    );
    std::fs::remove_dir_all(folder).expect("removed");
    let (output, folder) = import("srt", &["--lossy"], &settings.to_string());
    let stderr = text(&output.stderr);
    assert!(
        succeeded("lossy", &output).contains("a.example")
            && stderr.contains("credentials.allowPlaintextInject: "),
        "{stderr}"
    );
    std::fs::remove_dir_all(folder).expect("removed");
    for (format, text_of, named) in [
        ("srt", "{\"x\": 1}", "x: unknown key"),
        ("sandbox-config", "{\"x\": 1}", "unknown field `x`"),
        ("sandbox-config", "{\"network\": {\"egress_allowlist\": [\"*.a.example\"]}}", "egress_allowlist[0]"),
    ] {
        let (output, folder) = import(format, &["--lossy"], text_of);
        refused(&output, 1, &[named]);
        std::fs::remove_dir_all(folder).expect("removed");
    }
}
