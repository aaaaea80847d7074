//! `/v1/…` of the real program, through curl: all statuses and bodies of the contract.

use std::os::unix::fs::{PermissionsExt, symlink};

use hutch_testkit::require;
use serde_json::json;

use crate::curl::curl;
use crate::served::{Answer, Served, serve, serve_with};

impl Served {
    fn fetch(&self, target: &str) -> Answer {
        curl(self.rest, target, &[], b"")
    }

    fn ask(&self, method: &str, target: &str) -> Answer {
        curl(self.rest, target, &["-X", method], b"")
    }

    fn put(&self, target: &str, content: &[u8]) -> Answer {
        curl(self.rest, target, &["-X", "PUT", "--data-binary", "@-"], content)
    }
}

fn error(fetched: &Answer) -> (u16, String, String) {
    let told = fetched.json();
    let text = |name: &str| told[name].as_str().unwrap_or_else(|| panic!("{told}")).to_owned();
    assert_eq!(fetched.header("content-type"), Some("application/json"));
    (fetched.status, text("code"), text("message"))
}

fn is(fetched: &Answer, status: u16, code: &str, message: &str) {
    assert_eq!(error(fetched), (status, code.to_owned(), message.to_owned()));
}

#[test]
fn health_metadata_and_unknown_paths() {
    require!(curl);
    let served = serve_with(&[("SANDBOX_ID", "box"), ("SANDBOX_API_KEY", "hidden"), ("OTHER", "x")]);
    let health = served.fetch("/v1/health");
    assert_eq!((health.status, &health.json()["status"]), (200, &json!("ok")));
    assert!(health.json()["uptime_seconds"].is_u64() && health.text().ends_with("}\n"));
    let metadata = served.fetch("/v1/metadata").json();
    assert_eq!(metadata["env"]["SANDBOX_ID"], "box");
    assert!(!metadata.to_string().contains("hidden") && metadata["env"]["OTHER"].is_null());
    let unknown = served.fetch("/v2");
    assert_eq!((unknown.status, unknown.text().as_str()), (404, "404 page not found\n"));
    let wrong = served.ask("PATCH", "/v1/files/x");
    assert_eq!((wrong.status, wrong.text().as_str()), (405, "Method Not Allowed\n"));
    assert_eq!(wrong.header("allow"), Some("DELETE, GET, HEAD, PUT"));
    assert_eq!(served.ask("POST", "/v1/health").status, 405);
    assert_eq!(served.ask("DELETE", "/v1/metadata").status, 405);
}

#[test]
fn a_file_is_put_read_and_deleted() {
    require!(curl);
    let served = serve();
    let content: Vec<u8> = (0..3_000_000_u32).map(|number| (number % 251) as u8).collect();
    let done = served.put("/v1/files/deep/down/a%20file", &content);
    assert_eq!((done.status, done.body.len()), (204, 0), "{}", done.text());
    let on_disk = served.app().join("deep/down/a file");
    assert_eq!(on_disk.metadata().unwrap().permissions().mode() & 0o7777, 0o644);
    let back = served.fetch("/v1/files/deep%2Fdown%2Fa%20file");
    assert!(back.status == 200 && back.body == content);
    assert_eq!(back.header("content-type"), Some("application/octet-stream"));
    assert_eq!(
        (back.header("accept-ranges"), back.header("content-length")),
        (Some("bytes"), Some("3000000"))
    );
    let head = curl(served.rest, "/v1/files/deep/down/a%20file", &["--head"], b"");
    assert_eq!((head.status, head.header("content-length")), (200, Some("3000000")));
    assert_eq!(curl(served.rest, "/v1/files/none", &["--head"], b"").status, 404);
    assert_eq!(served.put("/v1/files/deep/down/a%20file?mode=0750", b"short").status, 204);
    assert_eq!(on_disk.metadata().unwrap().permissions().mode() & 0o7777, 0o750);
    let root = served.app().canonicalize().unwrap();
    assert_eq!(
        served
            .fetch(&format!("/v1/files/%2F{}", &root.join("deep/down/a%20file").display().to_string()[1..]))
            .body,
        b"short"
    );
    assert_eq!(
        std::fs::read_dir(on_disk.parent().unwrap()).unwrap().count(),
        1,
        "nothing unfinished is left"
    );
    let form = curl(
        served.rest,
        "/v1/files/formed",
        &["-X", "PUT", "-F", "other=1", "-F", "file=@-"],
        b"from a form",
    );
    assert_eq!(
        (form.status, std::fs::read(served.app().join("formed")).unwrap()),
        (204, b"from a form".to_vec())
    );
    assert_eq!(served.ask("DELETE", "/v1/files/formed").status, 204);
    is(&served.ask("DELETE", "/v1/files/formed"), 404, "NOT_FOUND", "path does not exist within the sandbox");
}

#[test]
fn parts_and_conditions() {
    require!(curl);
    let served = serve();
    served.put("/v1/files/ten", b"0123456789");
    served.put("/v1/files/nothing", b"");
    let part = |range: &str| curl(served.rest, "/v1/files/ten", &["-H", &format!("Range: {range}")], b"");
    let middle = part("bytes=2-4");
    assert_eq!(
        (middle.status, middle.body.as_slice(), middle.header("content-range")),
        (206, &b"234"[..], Some("bytes 2-4/10"))
    );
    assert_eq!(part("bytes=-3").body, b"789");
    assert_eq!((part("bytes=0-1,3-4").status, part("bytes=0-1,3-4").body.len()), (200, 10));
    let beyond = part("bytes=10-");
    assert_eq!((beyond.status, beyond.header("content-range")), (416, Some("bytes */10")));
    assert_eq!(curl(served.rest, "/v1/files/nothing", &["-H", "Range: bytes=0-"], b"").status, 200);
    let date = served.fetch("/v1/files/ten").header("last-modified").unwrap().to_owned();
    let given = |header: &str, date: &str| {
        curl(served.rest, "/v1/files/ten", &["-H", &format!("{header}: {date}")], b"")
    };
    let known = given("If-Modified-Since", &date);
    assert_eq!((known.status, known.body.len()), (304, 0));
    assert_eq!(given("If-Modified-Since", "Thu, 01 Jan 1970 00:00:00 GMT").status, 200);
    assert_eq!(given("If-Unmodified-Since", "Thu, 01 Jan 1970 00:00:00 GMT").status, 412);
    let of = |version: &str| {
        let headers = ["-H", "Range: bytes=0-0", "-H", &format!("If-Range: {version}")];
        curl(served.rest, "/v1/files/ten", &headers, b"").status
    };
    assert_eq!((of(&date), of("Thu, 01 Jan 1970 00:00:00 GMT"), of("\"tag\"")), (206, 200, 200));
}

#[test]
fn folders_are_listed() {
    require!(curl);
    let served = serve();
    let app = served.app();
    std::fs::create_dir_all(app.join("folder/inner")).unwrap();
    std::fs::write(app.join("folder/b"), "12345").unwrap();
    std::fs::set_permissions(app.join("folder/b"), std::fs::Permissions::from_mode(0o640)).unwrap();
    let time = std::fs::FileTimes::new()
        .set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(951_782_400));
    std::fs::File::options().write(true).open(app.join("folder/b")).unwrap().set_times(time).unwrap();
    symlink("inner", app.join("folder/a-link")).unwrap();
    symlink("nowhere", app.join("folder/broken")).unwrap();
    symlink("/etc", app.join("folder/out")).unwrap();
    let listed = served.fetch("/v1/files/folder");
    assert_eq!((listed.status, listed.header("content-type")), (200, Some("application/json")));
    assert!(listed.text().ends_with("}\n"));
    let listed = listed.json();
    assert_eq!(listed["path"], "/folder");
    let names: Vec<_> =
        listed["entries"].as_array().unwrap().iter().map(|e| (&e["name"], &e["type"])).collect();
    let expected =
        [("a-link", "directory"), ("b", "file"), ("inner", "directory")].map(|(n, t)| (json!(n), json!(t)));
    assert_eq!(names, expected.iter().map(|(n, t)| (n, t)).collect::<Vec<_>>());
    let file = json!({"name": "b", "size": 5, "type": "file", "modified_at": "2000-02-29T00:00:00Z", "mode": "0640"});
    assert_eq!(listed["entries"][1], file);
    assert_eq!(served.fetch("/v1/stat/folder/b").json(), file);
    for target in ["/v1/files/", "/v1/files/%2F", "/v1/files/folder%2F.."] {
        assert_eq!(served.fetch(target).json()["entries"][0]["name"], "folder", "{target}");
    }
    assert_eq!(
        served.fetch("/v1/files/folder/inner").json(),
        json!({"path": "/folder/inner", "entries": []})
    );
}

#[test]
fn invalid_requests_have_documented_errors() {
    require!(curl);
    let served = serve();
    std::fs::create_dir_all(served.app().join("folder/inner")).unwrap();
    std::fs::write(served.app().join("file"), "x").unwrap();
    symlink("/etc", served.app().join("out")).unwrap();
    let escapes = "path traversal outside sandbox root is forbidden";
    for target in
        ["/v1/files/..%2Fx", "/v1/files/%2e%2e/x", "/v1/files/folder%2F..%2F..%2Fx", "/v1/files/out/passwd"]
    {
        is(&served.fetch(target), 403, "PERMISSION_DENIED", escapes);
        is(&served.put(target, b"x"), 403, "PERMISSION_DENIED", escapes);
        is(&served.ask("DELETE", target), 403, "PERMISSION_DENIED", escapes);
    }
    assert_eq!(
        served.fetch("/v1/files/%2Fetc%2Fpasswd").status,
        404,
        "absolute paths are below the folder too"
    );
    is(&served.fetch("/v1/files/%zz"), 400, "INVALID_ARGUMENT", "path has a % without two hex digits");
    is(&served.fetch("/v1/files/a%00b"), 400, "INVALID_ARGUMENT", "path holds a NUL byte");
    is(
        &served.put("/v1/files/x?mode=644", b""),
        400,
        "INVALID_ARGUMENT",
        "mode \"644\" must match ^0[0-7]{3}$",
    );
    is(&served.put("/v1/files/folder", b""), 400, "INVALID_ARGUMENT", "target path is a directory");
    assert_eq!(served.put("/v1/files/file/below", b"").status, 409);
    is(&served.fetch("/v1/files/file/below"), 404, "NOT_FOUND", "path does not exist within the sandbox");
    let missing = "multipart body is missing the required \"file\" part";
    is(
        &curl(served.rest, "/v1/files/x", &["-X", "PUT", "-F", "other=1"], b""),
        400,
        "INVALID_ARGUMENT",
        missing,
    );
    let broken = ["-X", "PUT", "-H", "Content-Type: multipart/form-data; boundary=b", "--data-binary", "@-"];
    let told = error(&curl(served.rest, "/v1/files/x", &broken, b"--b\r\nnothing"));
    assert!(told.0 == 400 && told.2.starts_with("invalid multipart body: "), "{told:?}");
    is(
        &served.ask("DELETE", "/v1/files/none?recursive=maybe"),
        404,
        "NOT_FOUND",
        "path does not exist within the sandbox",
    );
    is(
        &served.ask("DELETE", "/v1/files/file?recursive=maybe"),
        400,
        "INVALID_ARGUMENT",
        "recursive \"maybe\" must be a boolean",
    );
    is(
        &served.ask("DELETE", "/v1/files/folder"),
        409,
        "CONFLICT",
        "directory is not empty; pass recursive=true to remove it",
    );
    let root = "cannot delete the sandbox root; pass recursive=true to clear its contents";
    is(&served.ask("DELETE", "/v1/files/"), 409, "CONFLICT", root);
    for (method, target, status, location) in [
        ("GET", "/v1/files//folder/./inner", 301, "/v1/files/folder/inner"),
        ("PUT", "/v1/files/../../x?mode=0600", 307, "/x?mode=0600"),
        ("GET", "/v1/files", 301, "/v1/files/"),
    ] {
        let sent = served.ask(method, target);
        assert_eq!((sent.status, sent.header("location")), (status, Some(location)), "{target}");
    }
    assert_eq!(served.ask("DELETE", "/v1/files/folder?recursive=T").status, 204);
    assert_eq!(served.ask("DELETE", "/v1/files/?recursive=1").status, 204);
    assert_eq!(std::fs::read_dir(served.app()).unwrap().count(), 0);
}

#[test]
fn folders_modes_moves_and_ports() {
    require!(curl);
    let served = serve();
    assert_eq!(served.ask("PUT", "/v1/folders/a/b?mode=0700").status, 204);
    assert_eq!(served.app().join("a/b").metadata().unwrap().permissions().mode() & 0o777, 0o700);
    served.put("/v1/files/a/file", b"x");
    assert_eq!(served.ask("PUT", "/v1/folders/a/file").status, 409);
    assert_eq!(served.ask("PUT", "/v1/mode/a/file?mode=0711").status, 204);
    assert_eq!(served.fetch("/v1/stat/a/file").json()["mode"], "0711");
    assert_eq!(error(&served.ask("PUT", "/v1/mode/a/file")).1, "INVALID_ARGUMENT");
    assert_eq!(served.ask("POST", "/v1/move/a/file?to=a/b/moved").status, 204);
    served.put("/v1/files/other", b"y");
    assert_eq!(served.ask("POST", "/v1/move/other?to=%2Fa%2Fb%2Fmoved").status, 409);
    assert_eq!(served.ask("POST", "/v1/move/other?to=/a/b/moved&replace=true").status, 204);
    assert_eq!(served.fetch("/v1/files/a/b/moved").body, b"y");
    assert_eq!(served.ask("POST", "/v1/move/a?to=../x").status, 403);
    assert_eq!(error(&served.ask("POST", "/v1/move/a")).1, "INVALID_ARGUMENT");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let ports = served.fetch("/v1/ports").json();
    let ports: Vec<u64> =
        ports["ports"].as_array().unwrap().iter().map(|p| p["port"].as_u64().unwrap()).collect();
    assert!(ports.contains(&u64::from(listener.local_addr().unwrap().port())));
    assert!(!ports.contains(&u64::from(served.rest)), "its own are not listed");
}

#[test]
fn a_folder_is_downloaded_and_uploaded_as_tar() {
    require!(curl);
    let served = serve();
    std::fs::create_dir_all(served.app().join("one/deep")).unwrap();
    std::fs::write(served.app().join("one/deep/large"), vec![7; 5_000_000]).unwrap();
    std::fs::write(served.app().join("one/small"), "s").unwrap();
    let packed = served.fetch("/v1/archive/one");
    assert_eq!((packed.status, packed.header("content-type")), (200, Some("application/x-tar")));
    let path = served.folder.path().join("packed.tar");
    std::fs::write(&path, &packed.body).unwrap();
    let listed = std::process::Command::new("tar").arg("-tf").arg(path).output().unwrap();
    let names = String::from_utf8(listed.stdout).unwrap();
    let mut names: Vec<&str> = names.lines().collect();
    names.sort_unstable();
    assert_eq!(names, ["deep/", "deep/large", "small"]);
    assert_eq!(served.put("/v1/archive/two/below", &packed.body).status, 204);
    assert_eq!(std::fs::read(served.app().join("two/below/deep/large")).unwrap(), vec![7; 5_000_000]);
    let broken = error(&served.put("/v1/archive/three", &packed.body[..3_000_000]));
    assert_eq!((broken.0, broken.1.as_str()), (400, "INVALID_ARGUMENT"));
    assert!(!served.app().join("three/deep/large").exists(), "half a file is no file");
    assert_eq!(error(&served.put("/v1/archive/three", &vec![b'x'; 2000])).0, 400);
    assert_eq!(served.fetch("/v1/archive/none").status, 404);
}

#[test]
fn a_tar_name_of_10_mib_is_refused() {
    require!(curl);
    let served = serve();
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::GNULongName);
    header.set_size(10 << 20);
    header.set_cksum();
    let stream = [header.as_bytes(), &vec![b'n'; 10 << 20][..]].concat();
    let said = "the tar stream cannot be read: headers of more than 65536 bytes before one entry";
    is(&served.put("/v1/archive/named", &stream), 400, "INVALID_ARGUMENT", said);
    assert!(!served.app().join("named").exists());
}

#[test]
fn changes_are_streamed_line_by_line() {
    use std::io::{BufRead, BufReader};
    require!(curl);
    let served = serve();
    std::fs::create_dir_all(served.app().join("top/deep")).unwrap();
    let mut child = std::process::Command::new("curl")
        .args([
            "-sN",
            "--max-time",
            "60",
            &format!("http://127.0.0.1:{}/v1/watch/top?recursive=true", served.rest),
        ])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    // The start of the watch is visible only by its first change.
    let (stop, app) = (std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false)), served.app());
    let writer = std::thread::spawn({
        let stop = stop.clone();
        move || {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                std::fs::write(app.join("top/deep/file"), "x").unwrap();
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
        }
    });
    let told: serde_json::Value = lines
        .by_ref()
        .map(|line| serde_json::from_str::<serde_json::Value>(&line.unwrap()).unwrap())
        .find(|change| change["type"] == "write")
        .unwrap();
    assert_eq!(told, json!({"type": "write", "path": "/top/deep/file", "directory": false, "cookie": 0}));
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    writer.join().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(served.fetch("/v1/watch/none").status, 404);
}

#[test]
fn the_token_is_required_except_for_health() {
    require!(curl);
    let token = "a-token-of-good-length";
    let served = serve_with(&[("SANDBOXD_TOKEN", token)]);
    assert_eq!(served.fetch("/v1/health").status, 200);
    let refused = served.fetch("/v1/files/");
    assert_eq!((error(&refused).0, error(&refused).1.as_str()), (401, "UNAUTHENTICATED"));
    let header = format!("Authorization: Bearer {token}");
    assert_eq!(curl(served.rest, "/v1/files/", &["-H", &header], b"").status, 200);
    assert_eq!(curl(served.rest, "/v1/files/", &["-H", "Authorization: Bearer x"], b"").status, 401);
    assert_eq!(curl(served.port, "/", &[], b"").status, 200);
    assert_eq!(curl(served.port, "/list/", &[], b"").status, 401);
    assert_eq!(curl(served.port, "/list/", &["-H", &header], b"").status, 200);
}
