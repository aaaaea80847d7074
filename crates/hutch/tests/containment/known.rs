//! Known attacks that need a server, an image or a race of their own: see `hutch_jail::attack::Known`.

use std::fs;
use std::path::{Path, PathBuf};

use hutch_jail::attack::{Known, Shown};
use serde_json::{Value, json};

use crate::harness::{Up, text};
use crate::layouts::{self, Entry};
use crate::names::{pod, submitted};
use crate::ordinary::{Caller, Place, apply};
use crate::ways::program;

/// A file of the host that says `planted`, in a folder of its own.
fn planted(place: &Place) -> PathBuf {
    let file = place.folder_of(Caller::Root, "planted").join("file");
    fs::write(&file, "planted").expect("write");
    file
}

/// A folder for images with one of this name, which has the program that tries attacks.
fn images(place: &Place, name: &str, config: &Value, more: &[(&str, Entry<'_>)]) -> PathBuf {
    let folder = place.path().join("images");
    let bytes = fs::read(program()).expect("the program");
    let mut entries = vec![("hutch-attack", Entry::Program(&bytes))];
    entries.extend(more.iter().map(|(path, entry)| (*path, entry.clone())));
    layouts::image(&folder.join(name), config, &entries);
    folder
}

fn python(name: &str, script: &str, more: &Value) -> Value {
    let mut container = json!({"name": "c", "image": "hutch/host", "command": ["python3", "-uc", script]});
    container.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    pod(
        name,
        json!({"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container]}),
    )
}

/// The phase of a Pod that has ended, or why it does not start.
#[track_caller]
fn end_of(up: &Up, name: &str) -> String {
    let query = "{.status.phase},{.status.containerStatuses[*].state.waiting.reason}";
    up.eventually(&format!("get pod {name} -o jsonpath={query}"), |status| {
        status.starts_with("Succeeded") || status.starts_with("Failed") || status.contains("Error")
    })
}

#[test]
fn every_known_attack_is_documented_with_its_test() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let documentation = fs::read_to_string(repository.join("docs/jail.md")).expect("docs/jail.md");
    let source = |name: &str| {
        let file = repository.join("crates/hutch/tests/containment").join(format!("{name}.rs"));
        fs::read_to_string(&file).unwrap_or_default()
    };
    for known in Known::ALL {
        let (attacks, test) = match known.shown() {
            Shown::ByAttacks(attacks) => (attacks, None),
            Shown::ByTest(test) => (&[][..], Some(test)),
            Shown::ByBoth(attacks, test) => (attacks, Some(test)),
        };
        let place = tempfile::tempdir().expect("tempdir");
        let planted = hutch_jail::attack::Planted::new(place.path()).expect("planted");
        let all = hutch_jail::attack::all(&planted);
        for attack in attacks {
            assert!(all.iter().any(|known| known.name == *attack), "{known}: no attack {attack}");
        }
        if let Some(test) = test {
            let (module, function) = test.split_once("::").unwrap_or((test, "#[test]"));
            assert!(source(module).contains(function), "{known}: no test {test}");
        }
        let mut by: Vec<&str> = attacks.to_vec();
        by.extend(test);
        let row = format!("| {} | {} | {} |", known.name(), known.what(), by.join(", "));
        assert!(documentation.contains(&row), "docs/jail.md lacks this row:\n{row}");
    }
}

#[test]
fn the_program_of_init_cannot_be_written_by_way_of_proc_self_exe() {
    hutch_testkit::require!(root, kubectl, python);
    const SCANNER: &str = "import os, time\n\
        own = os.readlink('/proc/self/exe')\n\
        with open('/tmp/x', 'w') as f: f.write('#!/proc/self/exe\\n')\n\
        os.chmod('/tmp/x', 0o755)\n\
        print('ready')\n\
        end = time.monotonic() + 20\n\
        while time.monotonic() < end and not os.path.exists('/tmp/end'):\n\
        \x20 for pid in filter(str.isdigit, os.listdir('/proc')):\n\
        \x20   try:\n\
        \x20     fd = os.open(f'/proc/{pid}/exe', os.O_RDONLY)\n\
        \x20   except OSError: continue\n\
        \x20   name = os.readlink(f'/proc/self/fd/{fd}')\n\
        \x20   if name != own and not name.startswith('/usr/'):\n\
        \x20     try:\n\
        \x20       os.close(os.open(f'/proc/self/fd/{fd}', os.O_WRONLY)); print('WRITABLE', name)\n\
        \x20     except OSError as e: print('seen', name, e.errno)\n\
        \x20   os.close(fd)\n\
        print('end')";
    let up = Up::start(&[]);
    let before = fs::read(find_warden(&up).expect("it is there")).expect("the program of init");
    let volumes = json!([{"name": "tmp", "emptyDir": {}}]);
    let mut object =
        python("scanner", SCANNER, &json!({"volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}]}));
    object["spec"]["volumes"] = volumes;
    apply(&up, &object);
    up.eventually("logs scanner", |log| log.contains("ready"));
    for _ in 0..10 {
        for command in ["/tmp/x", "/proc/self/exe", "/proc/1/exe"] {
            // However it ends: what counts is what the scanner could do meanwhile.
            up.kubectl(&format!("exec scanner -- {command} held channel"));
        }
    }
    up.kubectl("exec scanner -- touch /tmp/end");
    let log = up.eventually("logs scanner", |log| log.contains("end\n"));
    assert!(!log.contains("WRITABLE") && log.contains("seen"), "{log}");
    assert_eq!(fs::read(find_warden(&up).expect("it is there")).expect("read"), before, "it was written");
}

/// The program that inits of this server run.
fn find_warden(up: &Up) -> Option<PathBuf> {
    let find =
        std::process::Command::new("find").arg(up.data()).args(["-name", "warden", "-type", "f"]).output();
    text(&find.ok()?.stdout).lines().next().map(PathBuf::from)
}

#[test]
fn a_mount_point_that_changes_places_with_a_link_stays_inside() {
    hutch_testkit::require!(root, kubectl, python);
    let place = Place::new();
    let target = place.folder_of(Caller::Root, "target");
    fs::set_permissions(&target, std::os::unix::fs::PermissionsExt::from_mode(0o777)).expect("mode");
    let up = Up::start(&[]);
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "shared"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}});
    apply(&up, &claim);
    let mover = format!(
        "import os\nos.chdir('/v')\nos.makedirs('a/b', exist_ok=True)\nos.path.lexists('l') or os.symlink('{}', 'l')\n\
         os.path.lexists('u') or os.symlink('../../../../../..{}', 'u')\nprint('ready')\n\
         while True:\n\
         \x20 for link in 'lu':\n\
         \x20   os.rename('a', 'x'); os.rename(link, 'a'); os.rename('a', link); os.rename('x', 'a')",
        target.display(),
        target.display()
    );
    let volume = json!({"name": "v", "persistentVolumeClaim": {"claimName": "shared"}});
    let mount = json!({"name": "v", "mountPath": "/v"});
    let mut object = python("mover", &mover, &json!({"volumeMounts": [mount]}));
    object["spec"]["volumes"] = json!([volume]);
    apply(&up, &object);
    up.eventually("logs mover", |log| log.contains("ready"));
    let gvisor = hutch_testkit::Need::Runsc.missing().is_none();
    let mut started = [0, 0];
    for number in 0..if gvisor { 40 } else { 30 } {
        let name = format!("mounted-{number}");
        let in_gvisor = number >= 30;
        let container = json!({"name": "c", "image": "hutch/host", "command": ["sh", "-c", "echo here > /v/a/b/mark"],
            "volumeMounts": [mount, {"name": "w", "mountPath": "/v/a/b"}]});
        let mut spec = json!({"restartPolicy": "Never", "containers": [container],
            "volumes": [volume, {"name": "w", "emptyDir": {}}]});
        if in_gvisor {
            spec["runtimeClassName"] = json!("gvisor");
        }
        apply(&up, &pod(&name, spec));
        started[usize::from(in_gvisor)] += usize::from(end_of(&up, &name).starts_with("Succeeded"));
    }
    assert!(
        started[0] > 0 && (started[1] > 0 || !gvisor),
        "no Pod came to its first instruction: {started:?}"
    );
    let found: Vec<_> = fs::read_dir(&target).expect("folder").flatten().map(|entry| entry.path()).collect();
    assert!(found.is_empty(), "made on the host: {found:?}");
    up.ok("delete pod --all --force --grace-period=0");
}

#[test]
fn a_volume_of_an_image_that_leads_out_shows_no_host_file() {
    hutch_testkit::require!(root, kubectl);
    let place = Place::new();
    let file = planted(&place);
    let folder = file.parent().expect("a folder").display().to_string();
    let volumes =
        json!({"Volumes": {format!("/../../../../../..{folder}"): {}, folder.as_str(): {}, "/..": {}}});
    let images = images(&place, "volumes", &volumes, &[]);
    let reference = format!("oci:{}/volumes", images.display());
    let attempts = [format!("read {}", file.display()), format!("read /..{}", file.display())];
    for caller in [Caller::Root, Caller::Ordinary] {
        let words = ["run", "--image", &reference, "--", "/hutch-attack", &attempts[0], &attempts[1]];
        let output = place.program(caller, &words).output().expect("hutch run");
        let printed = text(&output.stdout);
        assert!(!printed.contains("\tplanted"), "{printed}");
        assert_eq!(printed.matches("\tENOENT").count(), 2, "{printed}{}", text(&output.stderr));
    }
    let up = Up::start(&["--image-dir", &images.display().to_string()]);
    let container =
        json!({"name": "c", "image": reference, "command": ["/hutch-attack", attempts[0], attempts[1]]});
    apply(&up, &pod("volumes", json!({"restartPolicy": "Never", "containers": [container]})));
    assert!(end_of(&up, "volumes").starts_with("Succeeded"));
    let printed = up.ok("logs volumes");
    assert_eq!(printed.matches("\tENOENT").count(), 2, "{printed}");
}

#[test]
fn a_working_folder_that_is_a_descriptor_shows_no_host_file() {
    hutch_testkit::require!(root, kubectl);
    let place = Place::new();
    let file = planted(&place);
    let images = images(&place, "cwd", &json!({}), &[]);
    let up = Up::start(&["--image-dir", &images.display().to_string()]);
    let mut folders: Vec<String> = (3..16).map(|number| format!("/proc/self/fd/{number}")).collect();
    folders.extend(["/proc/self/cwd", "/proc/1/root", "/proc/1/cwd", "/proc/self/root"].map(str::to_owned));
    for (number, folder) in folders.iter().enumerate() {
        let up_and_out = format!("read ../../../../../../../..{}", file.display());
        let container = json!({"name": "c", "image": format!("oci:{}/cwd", images.display()), "workingDir": folder,
            "command": ["/hutch-attack", up_and_out, format!("read .{}", file.display()), "held-folders"]});
        let object =
            pod(&format!("cwd-{number}"), json!({"restartPolicy": "Never", "containers": [container]}));
        if !submitted(&up, &object) {
            continue;
        }
        let end = end_of(&up, &format!("cwd-{number}"));
        let printed = text(&up.kubectl(&format!("logs cwd-{number}")).stdout);
        assert!(!printed.contains("\tplanted"), "{folder}: {printed}");
        assert!(
            end.starts_with("Failed") || end.contains("Error") || printed.contains("held-folders\tnone"),
            "{folder}: {end} {printed}"
        );
    }
}

#[test]
fn links_of_an_image_in_dev_and_proc_lead_nowhere() {
    hutch_testkit::require!(root, user_namespaces, kubectl);
    let place = Place::new();
    let target = planted(&place).parent().expect("a folder").display().to_string();
    let pattern = "/proc/sys/kernel/core_pattern";
    let before = fs::read_to_string(pattern).expect("a pattern");
    let cases: [(&str, Vec<(&str, Entry<'_>)>); 5] = [
        ("null", vec![("dev", Entry::Folder), ("dev/null", Entry::Link(pattern))]),
        (
            "console",
            vec![
                ("dev", Entry::Folder),
                ("dev/pts", Entry::Folder),
                ("dev/console", Entry::Link(pattern)),
                ("dev/pts/0", Entry::Link("/proc/sysrq-trigger")),
                ("dev/ptmx", Entry::Link(pattern)),
            ],
        ),
        ("dev", vec![("dev", Entry::Link(&target))]),
        ("proc", vec![("proc", Entry::Link(&target))]),
        (
            "attr",
            vec![
                ("proc", Entry::Folder),
                ("proc/self", Entry::Link(&target)),
                ("proc/sys", Entry::Link("/dev")),
            ],
        ),
    ];
    let masked = [
        "open-write /proc/sys/kernel/core_pattern",
        "read /proc/kcore",
        "read /proc/keys",
        "read /proc/timer_list",
    ];
    for (name, entries) in &cases {
        images(&place, name, &json!({}), entries);
    }
    let folder = place.path().join("images").display().to_string();
    let up = Up::start(&["--image-dir", &folder]);
    let held = |name: &str, printed: &str| {
        for attempt in masked {
            let found = printed.lines().find_map(|line| line.strip_prefix(&format!("{attempt}\t")));
            let found = found.unwrap_or_else(|| panic!("{name}: {attempt} is not in {printed}"));
            assert!(
                ["EROFS", "EACCES", "EPERM", "ENOENT", "empty"].contains(&found),
                "{name}: {attempt}: {found}"
            );
        }
    };
    for (name, _) in &cases {
        let reference = format!("oci:{folder}/{name}");
        for caller in [Caller::Root, Caller::Ordinary] {
            let mut words = vec!["run", "--image", &reference, "--", "/hutch-attack"];
            words.extend(masked);
            let output = place.program(caller, &words).output().expect("hutch run");
            // Refused, with the name of what is a link, or harmless.
            match output.status.code() {
                Some(0) => held(name, &text(&output.stdout)),
                code => assert!(
                    code == Some(125) && text(&output.stderr).contains("/proc")
                        || text(&output.stderr).contains("/dev"),
                    "{name}: {code:?} {}",
                    text(&output.stderr)
                ),
            }
        }
        let mut command = vec!["/hutch-attack"];
        command.extend(masked);
        let container =
            json!({"name": "c", "image": reference, "command": command, "tty": *name == "console"});
        apply(&up, &pod(name, json!({"restartPolicy": "Never", "containers": [container]})));
        if end_of(&up, name).starts_with("Succeeded") {
            held(name, &up.ok(&format!("logs {name}")).replace('\r', ""));
        }
    }
    assert_eq!(fs::read_to_string(pattern).expect("a pattern"), before);
    let left: Vec<_> =
        fs::read_dir(&target).expect("folder").flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(left, ["file"], "made on the host");
}

#[test]
fn what_opens_the_host_is_refused() {
    hutch_testkit::require!(root, kubectl);
    let up = Up::start(&[]);
    let container = |more: Value| {
        let mut container = json!({"name": "c", "image": "hutch/host", "command": ["sleep", "1000000"]});
        container.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        json!([container])
    };
    let plain = || container(json!({}));
    let mounted = || container(json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]}));
    let secured = |context: Value| json!({"containers": container(json!({"securityContext": context}))});
    let mut specs = vec![
        (
            "host-path",
            json!({"containers": mounted(), "volumes": [{"name": "v", "hostPath": {"path": "/"}}]}),
        ),
        (
            "docker-sock",
            json!({"containers": mounted(), "volumes": [{"name": "v", "hostPath": {"path": "/var/run/docker.sock"}}]}),
        ),
        ("privileged", secured(json!({"privileged": true}))),
        ("unmasked", secured(json!({"procMount": "Unmasked"}))),
        ("host-network", json!({"containers": plain(), "hostNetwork": true})),
        ("host-pid", json!({"containers": plain(), "hostPID": true})),
        ("host-ipc", json!({"containers": plain(), "hostIPC": true})),
        (
            "device",
            json!({"containers": container(json!({"volumeDevices": [{"name": "v", "devicePath": "/dev/sda"}]})),
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}),
        ),
    ];
    for capability in ["SYS_ADMIN", "SYS_MODULE", "DAC_READ_SEARCH", "ALL"] {
        specs.push((capability, secured(json!({"capabilities": {"add": [capability]}}))));
    }
    for (name, spec) in specs {
        let name = name.to_lowercase().replace('_', "-");
        if !submitted(&up, &pod(&name, spec)) {
            continue;
        }
        let warned = format!("get events --field-selector=involvedObject.name={name},type=Warning -o name");
        up.eventually(&warned, |events| !events.is_empty());
        let end = up.ok(&format!("get pod {name} -o jsonpath={{.status}}"));
        assert!(!end.contains("\"running\""), "{name} runs: {end}");
    }
}

#[test]
fn processes_that_are_being_made_give_nothing_away() {
    hutch_testkit::require!(root, kubectl, python);
    const SCANNER: &str = "import os, time\n\
        old = set(os.listdir('/proc'))\n\
        print('ready')\n\
        found = set()\n\
        end = time.monotonic() + 30\n\
        def link(path):\n\
        \x20 try: return os.readlink(path)\n\
        \x20 except OSError: return None\n\
        while time.monotonic() < end and not os.path.exists('/tmp/end'):\n\
        \x20 for pid in set(os.listdir('/proc')) - old:\n\
        \x20   for name in ('exe', 'root', 'cwd'): found.add((name, link(f'/proc/{pid}/{name}')))\n\
        \x20   try:\n\
        \x20     for fd in os.listdir(f'/proc/{pid}/fd'): found.add(('fd', (link(f'/proc/{pid}/fd/{fd}') or '').split(':')[0]))\n\
        \x20   except OSError: pass\n\
        for item in sorted(found, key=str): print(*item)\n\
        print('end')";
    let up = Up::start(&[]);
    let mut object =
        python("scanner", SCANNER, &json!({"volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}]}));
    object["spec"]["volumes"] = json!([{"name": "tmp", "emptyDir": {}}]);
    apply(&up, &object);
    up.eventually("logs scanner", |log| log.contains("ready"));
    for _ in 0..20 {
        up.ok("exec scanner -- sleep 0.02");
    }
    up.ok("exec scanner -- touch /tmp/end");
    let log = up.eventually("logs scanner", |log| log.contains("end\n"));
    let allowed = |line: &str| {
        matches!(line.split_once(' '), Some(("exe", exe)) if exe == "None" || exe.starts_with("/usr/bin/"))
            || ["ready", "end", "root None", "root /", "cwd None", "cwd /", "fd pipe", "fd socket", "fd /dev/null", "fd "].contains(&line)
            // What the programs themselves open.
            || line == "fd /tmp/end" || line.starts_with("fd /usr/") || line.starts_with("fd /etc/")
    };
    let odd: Vec<&str> = log.lines().filter(|line| !allowed(line.trim_end_matches('\r'))).collect();
    assert!(odd.is_empty(), "{odd:?}\n{log}");
    assert!(log.contains("exe /usr/bin/"), "no process was seen: {log}");
}
