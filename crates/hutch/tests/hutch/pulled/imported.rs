//! Images that are imported from archives.

use super::*;

/// Writes an archive as `docker save` does, of the image `org/app:v1` with sandboxd.
pub(super) fn save(folder: &Path) -> PathBuf {
    save_as(folder, hex)
}

/// As [`save`], with what the configuration says is the digest of the layer.
fn save_as(folder: &Path, digest: impl Fn(&[u8]) -> String) -> PathBuf {
    let install = Command::new(HUTCH).args(["sandboxd", "install"]).arg(folder).output();
    succeeded("install", &install.expect("hutch"));
    let program = std::fs::read(folder.join("hutch-sandboxd")).expect("the program");
    let tar = |files: &[(&str, &[u8])]| super::tar(files, 0o755, (0, 0));
    let layer = tar(&[("hutch-sandboxd", &program)]);
    let architecture = if std::env::consts::ARCH == "aarch64" { "arm64" } else { "amd64" };
    let config = json!({
        "architecture": architecture, "os": "linux",
        "config": {"Cmd": ["/hutch-sandboxd", "--pause"]},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{}", digest(&layer))]},
    });
    let list = json!([{"Config": "config.json", "RepoTags": ["org/app:v1"], "Layers": ["1/layer.tar"]}]);
    let (config, list) = (config.to_string(), list.to_string());
    let files =
        [("1/layer.tar", &*layer), ("config.json", config.as_bytes()), ("manifest.json", list.as_bytes())];
    let path = folder.join("saved.tar");
    std::fs::write(&path, tar(&files)).expect("written");
    path
}

#[test]
fn imported_image_runs_by_its_name() {
    hutch_testkit::require!(root, user_namespaces);
    let home = Home::new();
    let folder = tempfile::tempdir().expect("tempdir");
    let saved = save(folder.path()).display().to_string();
    let command = ["run", "--image", "hutch.local/org/app:v1", "--", "/hutch-sandboxd", "--version"];
    let before = home.hutch(&command);
    assert!(text(&before.stderr).contains("hutch image import"), "{}", text(&before.stderr));
    failed(&home.hutch(&["image", "pull", "hutch.local/org/app:v1"]), "hutch image import");
    failed(&home.hutch(&["image", "import", "/etc/passwd", "app"]), "/etc/passwd");
    let printed = succeeded("import", &home.hutch(&["image", "import", &saved, "--json"]));
    let result: Value = serde_json::from_str(&printed).expect("JSON");
    assert_eq!(result["name"], "hutch.local/org/app:v1", "{printed}");
    let inspected = succeeded("inspect", &home.hutch(&["image", "inspect", "org/app:v1"]));
    assert!(inspected.contains("hutch.local/org/app:v1"), "{inspected}");
    let short = home.hutch(&["run", "--image", "org/app:v1", "--", "true"]);
    assert!(text(&short.stderr).contains("hutch.local/org/app:v1 is here"), "{}", text(&short.stderr));
    failed(&home.hutch(&["image", "import", "/proc/self/exe", "app"]), "not a tar archive");
    failed(&home.hutch(&["image", "import", "-", "app"]), "standard input");
    let ran = succeeded("run", &home.hutch(&command));
    assert_eq!(ran, format!("hutch-sandboxd {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn import_that_fails_leaves_the_image_of_the_name() {
    hutch_testkit::require!(root, user_namespaces);
    let (home, folder) = (Home::new(), tempfile::tempdir().expect("tempdir"));
    let import = |path: PathBuf| home.hutch(&["image", "import", &path.display().to_string(), "app:v1"]);
    succeeded("import", &import(save(folder.path())));
    let list = || succeeded("list", &home.hutch(&["image", "list", "--json"]));
    let before = list();
    let other = folder.path().join("other");
    std::fs::create_dir(&other).expect("made");
    failed(&import(save_as(&other, |_| "0".repeat(64))), "saved.tar");
    assert_eq!(list(), before);
    let ran = home.hutch(&["run", "--image", "hutch.local/app:v1", "--", "/hutch-sandboxd", "--version"]);
    succeeded("run", &ran);
}

#[test]
fn pod_uses_an_imported_image_without_a_pull() {
    hutch_testkit::require!(root, user_namespaces, kubectl);
    let folder = tempfile::tempdir().expect("tempdir");
    let (saved, data) = (save(folder.path()), folder.path().join("data"));
    let mut import = Command::new(HUTCH);
    import.args(["image", "import"]).arg(saved).args(["app:v2", "--data-dir"]).arg(&data);
    succeeded("import", &import.output().expect("hutch"));
    let up = Up::start_on(&data, &["--pull-from", "*"]);
    let always = json!({"imagePullPolicy": "Always"});
    apply(&up, "default", &pod("here", "hutch.local/app:v2", &always));
    up.ok("wait --for=condition=Ready pod/here --timeout=120s");
    assert!(event(&up, "default", "here", "Pulled").contains("already present"));
    up.ok("run tried --image=hutch.local/app:v2");
    up.ok("wait --for=condition=Ready pod/tried --timeout=120s");
    apply(&up, "default", &pod("missing", "hutch.local/app:v3", &always));
    waits(&up, "default", "missing", "ErrImageNeverPull");
    assert!(event(&up, "default", "missing", "ErrImageNeverPull").contains("hutch image import"));
}

#[test]
fn export_writes_into_pipes_and_through_links() {
    hutch_testkit::require!(root, user_namespaces);
    let (home, folder) = (Home::new(), tempfile::tempdir().expect("tempdir"));
    let saved = save(folder.path()).display().to_string();
    succeeded("import", &home.hutch(&["image", "import", &saved]));
    let at = |name: &str| folder.path().join(name).display().to_string();
    let export = |to: &str| home.hutch(&["image", "export", "org/app:v1", to]);
    let as_json = |to: &str| home.hutch(&["image", "export", "org/app:v1", to, "--json"]);
    let printed: Value = serde_json::from_str(&succeeded("export", &as_json(&at("whole")))).expect("JSON");
    assert_eq!(printed["name"], "hutch.local/org/app:v1", "{printed}");
    assert_eq!(printed["file"], at("whole"), "{printed}");
    let inspected = succeeded("inspect", &home.hutch(&["image", "inspect", "org/app:v1", "--json"]));
    let inspected: Value = serde_json::from_str(&inspected).expect("JSON");
    assert_eq!(printed["manifest"], inspected[0]["manifest"], "{printed}");
    failed(&as_json("-"), "--json: with -");
    let whole = std::fs::read(at("whole")).expect("the archive");
    std::os::unix::fs::symlink(at("target"), at("link")).expect("a link");
    std::fs::write(at("target"), "").expect("written");
    succeeded("export", &export(&at("link")));
    assert_eq!(std::fs::read(at("target")).expect("the archive"), whole);
    assert!(std::fs::symlink_metadata(at("link")).expect("it").is_symlink());
    succeeded("mkfifo", &Command::new("mkfifo").arg(at("pipe")).output().expect("mkfifo"));
    let pipe = at("pipe");
    let reader = std::thread::spawn(move || std::fs::read(pipe).expect("the pipe"));
    succeeded("export", &export(&at("pipe")));
    assert_eq!(reader.join().expect("a reader"), whole);
    failed(&export(&at("")), "is a folder");
    failed(&export(&at("missing/file")), "missing");
}

#[test]
fn folder_that_cannot_be_read_is_not_an_empty_one() {
    hutch_testkit::require!(root, user_namespaces);
    let (home, folder) = (Home::new(), tempfile::tempdir().expect("tempdir"));
    let saved = save(folder.path()).display().to_string();
    succeeded("import", &home.hutch(&["image", "import", &saved]));
    let program = folder.path().join("hutch");
    hutch_testkit::copy_program(binary(), &program);
    for path in [folder.path(), home.0.path()] {
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).expect("chmod");
    }
    for words in [&["list"][..], &["prune"], &["inspect", "org/app:v1"]] {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=1000", "--regid=1000", "--clear-groups"]).arg(&program).arg("image");
        command.args(words).arg("--data-dir").arg(home.lib()).current_dir("/");
        let output = command.output().expect("setpriv");
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        assert!(text(&output.stderr).contains("Permission denied"), "{}", text(&output.stderr));
    }
}

#[test]
fn image_without_a_command_runs_its_own() {
    hutch_testkit::require!(root, user_namespaces);
    let (home, folder) = (Home::new(), tempfile::tempdir().expect("tempdir"));
    let config = json!({"Entrypoint": ["sh", "-c", "pwd; echo $GREETING; echo \"$@\"", "sh"], "Cmd": ["one", "two"],
        "Env": ["GREETING=hello"], "WorkingDir": "/srv/app"});
    for (name, config) in [("app:v1", config), ("none:v1", json!({}))] {
        let saved = save_scripted(folder.path(), &config).display().to_string();
        succeeded("import", &home.hutch(&["image", "import", &saved, name]));
    }
    let run = |words: &[&str]| {
        // Programs and their libraries are those of the machine.
        let own = ["run", "--image", "hutch.local/app:v1", "--mount", "/usr:/usr:ro"];
        home.hutch(&[&own, words].concat())
    };
    let printed = "/srv/app\nhello\none two\n";
    assert_eq!(succeeded("run", &run(&[])), printed);
    assert_eq!(succeeded("run", &run(&["--env", "GREETING=bye"])), printed.replace("hello", "bye"));
    let other = ["--", "sh", "-c", "pwd; echo $GREETING"];
    assert_eq!(succeeded("run", &run(&other)), "/workspace\nhello\n", "a command takes the place of all");
    let workspace = folder.path().join("w");
    std::fs::create_dir(&workspace).expect("made");
    let workspace = workspace.canonicalize().expect("a path").display().to_string();
    let within = printed.replace("/srv/app", &workspace);
    assert_eq!(succeeded("run", &run(&["--workspace", &workspace])), within);
    let as_json: Value = serde_json::from_str(&succeeded("run", &run(&["--json"]))).expect("JSON");
    assert_eq!(as_json["stdout"]["text"], printed, "{as_json}");
    if hutch_testkit::Need::Runsc.missing().is_none() {
        assert_eq!(succeeded("run", &run(&["--isolation", "gvisor"])), printed, "gvisor");
    }
    for (image, part) in [("hutch.local/none:v1", "names no command"), ("hutch/pause", "in Pods only")] {
        let output = home.hutch(&["run", "--image", image]);
        let printed = text(&output.stderr);
        assert!(output.status.code() == Some(125) && printed.contains(part), "{image}: {printed}");
    }
    let none = home.hutch(&["run"]);
    assert!(none.status.code() == Some(125) && text(&none.stderr).contains("COMMAND"), "{none:?}");
}

/// As [`save`], an image with this configuration, which has the programs of a folder that is mounted at `/usr`.
fn save_scripted(folder: &Path, config: &Value) -> PathBuf {
    let mut layer = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(0);
    header.set_mode(0o755);
    header.set_uid(0);
    header.set_gid(0);
    header.set_entry_type(tar::EntryType::Directory);
    layer.append_data(&mut header, "srv/app/", std::io::empty()).expect("added");
    header.set_entry_type(tar::EntryType::Symlink);
    for name in ["bin", "lib", "lib64"] {
        layer.append_link(&mut header, name, format!("usr/{name}")).expect("added");
    }
    let layer = layer.into_inner().expect("an archive");
    let architecture = if std::env::consts::ARCH == "aarch64" { "arm64" } else { "amd64" };
    let config = json!({
        "architecture": architecture, "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{}", hex(&layer))]},
    });
    let list = json!([{"Config": "config.json", "RepoTags": ["org/script:v1"], "Layers": ["1/layer.tar"]}]);
    let (config, list) = (config.to_string(), list.to_string());
    let files =
        [("1/layer.tar", &*layer), ("config.json", config.as_bytes()), ("manifest.json", list.as_bytes())];
    let path = folder.join("script.tar");
    std::fs::write(&path, super::tar(&files, 0o644, (0, 0))).expect("written");
    path
}

#[test]
fn removal_is_reported_as_json() {
    hutch_testkit::require!(root, user_namespaces);
    let (home, folder) = (Home::new(), tempfile::tempdir().expect("tempdir"));
    let saved = save(folder.path()).display().to_string();
    succeeded("import", &home.hutch(&["image", "import", &saved]));
    succeeded("import", &home.hutch(&["image", "import", &saved, "other:v1"]));
    let as_json = |words: &[&str]| -> Value {
        let printed = succeeded(words[0], &home.hutch(&[&["image"], words, &["--json"]].concat()));
        serde_json::from_str(&printed).expect("JSON")
    };
    // What the archive has besides the image.
    assert_eq!(as_json(&["prune"])["names"], json!([]));
    let listed = as_json(&["inspect", "other:v1"]);
    let nothing = json!({"names": [], "removed": [], "bytes": 0});
    let name_only = json!({"names": ["hutch.local/org/app:v1"], "removed": [], "bytes": 0});
    assert_eq!(as_json(&["remove", "org/app:v1"]), name_only, "the image has another name");
    assert_eq!(as_json(&["prune"]), nothing);
    let sorted = |result: &Value| -> Vec<String> {
        let mut removed: Vec<String> = serde_json::from_value(result["removed"].clone()).expect("texts");
        removed.sort();
        removed
    };
    let pruned = as_json(&["prune", "--all"]);
    assert_eq!(pruned["names"], json!(["hutch.local/other:v1"]), "{pruned}");
    assert!(pruned["bytes"].as_u64() > listed[0]["size"].as_u64(), "{pruned} {listed}");
    assert!(pruned["removed"].as_array().expect("a list").contains(&listed[0]["manifest"]), "{pruned}");
    assert_eq!(as_json(&["prune", "--all"]), nothing);
    succeeded("import", &home.hutch(&["image", "import", &saved]));
    as_json(&["prune"]);
    assert_eq!(sorted(&as_json(&["remove", "org/app:v1"])), sorted(&pruned));
    failed(&home.hutch(&["image", "remove", "org/app:v1", "--json"]), "no image org/app:v1");
}
