//! Files and routes of the real program.

use std::os::unix::fs::symlink;

use hutch_testkit::wait::until;
use serde_json::json;
use std::io::Write;

use crate::served::serve;

#[test]
fn health_and_routes() {
    let served = serve();
    let health = served.get("/");
    assert_eq!(
        (health.status, health.text().as_str()),
        (200, r#"{"status":"ok","message":"Sandbox Runtime is active."}"#)
    );
    assert_eq!(health.header("content-type"), Some("application/json"));
    let unknown = served.get("/nothing/here");
    assert_eq!((unknown.status, unknown.text().as_str()), (404, r#"{"detail":"Not Found"}"#));
    for (request, allow) in [
        ("HEAD /", "GET"),
        ("HEAD /list/", "GET"),
        ("POST /exists/x", "GET"),
        ("GET /execute", "POST"),
        ("PUT /upload", "POST"),
    ] {
        let mut stream = served.connect();
        write!(stream, "{request} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        std::io::Read::read_to_string(&mut stream, &mut text).unwrap();
        assert!(text.starts_with("HTTP/1.1 405 "), "{request}: {text}");
        assert!(text.contains(&format!("\r\nallow: {allow}\r\n")), "{request}: {text}");
    }
    let redirected = served.get("/list?x=1");
    assert_eq!((redirected.status, redirected.header("location")), (307, Some("/list/?x=1")));
}

#[test]
fn uploaded_files_are_listed_found_and_downloaded() {
    let served = serve();
    let content: Vec<u8> = (0..3_000_000_u32).map(|number| (number % 251) as u8).collect();
    let done = served.upload("deep/down/a file.bin", &content);
    assert_eq!(
        (done.status, done.text().as_str()),
        (200, r#"{"message":"File 'deep/down/a file.bin' uploaded successfully."}"#)
    );
    // As the client sends it: everything encoded, twice.
    for target in
        ["deep%2Fdown%2Fa%20file.bin", "deep%252Fdown%252Fa%2520file.bin", "/deep/down/a%20file.bin"]
    {
        let back = served.get(&format!("/download/{target}"));
        assert_eq!(back.status, 200, "{target}");
        assert!(back.body == content, "{target}");
        assert_eq!(back.header("content-type"), Some("application/octet-stream"));
        assert!(back.header("etag").is_some() && back.header("last-modified").unwrap().ends_with("GMT"));
        assert!(
            back.header("content-disposition").unwrap().ends_with("deep/down/a%20file.bin"),
            "{}",
            back.head
        );
    }
    served.upload("plain", b"x");
    assert_eq!(
        served.get("/download/plain").header("content-disposition"),
        Some("attachment; filename=\"plain\"")
    );
    let list = served.get("/list/").json();
    let mut names: Vec<_> =
        list.as_array().unwrap().iter().map(|e| (e["name"].clone(), e["type"].clone())).collect();
    names.sort_by_key(|(name, _)| name.to_string());
    assert_eq!(names, [(json!("deep"), json!("directory")), (json!("plain"), json!("file"))]);
    let file = &served.get("/list/deep%2Fdown").json()[0];
    assert_eq!((&file["size"], file["mod_time"].is_f64()), (&json!(3_000_000), true));
    assert_eq!(served.get("/exists/deep%2Fdown").text(), r#"{"path":"deep/down","exists":true}"#);
    assert_eq!(served.get("/exists/no%2Fsuch").text(), r#"{"path":"no/such","exists":false}"#);
    assert_eq!(served.get("/exists/").json()["exists"], true);
    assert_eq!(served.get("/download/deep").text(), r#"{"message":"File not found"}"#);
    let missing = served.get("/list/plain");
    assert_eq!((missing.status, missing.text().as_str()), (404, r#"{"message":"Path is not a directory"}"#));
    // A folder in the way is the system's error, with the path in Python's form.
    let refused = served.upload("deep", b"x");
    assert_eq!(refused.status, 500);
    let text = format!(
        "File upload failed: [Errno 21] Is a directory: '{}/deep'",
        served.app().canonicalize().unwrap().display()
    );
    assert_eq!(refused.json(), json!({ "message": text }));
}

#[test]
fn nothing_outside_the_base_folder_is_reached() {
    let served = serve();
    let outside = served.folder.path().join("secret");
    std::fs::write(&outside, "secret").unwrap();
    symlink(&outside, served.app().join("link")).unwrap();
    symlink(served.folder.path(), served.app().join("up")).unwrap();
    std::fs::write(served.app().join("own"), "own").unwrap();
    symlink(served.app().canonicalize().unwrap().join("own"), served.app().join("inside")).unwrap();
    let denied = r#"{"message":"Access denied"}"#;
    for path in [
        "..",
        "../secret",
        "%2e%2e%2fsecret",
        "%252e%252e%252fsecret",
        "a/../../secret",
        "link",
        "up/secret",
        "up",
        "%00",
    ] {
        for route in ["download", "list", "exists"] {
            let answer = served.get(&format!("/{route}/{path}"));
            assert_eq!((answer.status, answer.text().as_str()), (403, denied), "/{route}/{path}");
        }
    }
    for name in ["../secret", "link", "up/new", "/../secret"] {
        let answer = served.upload(name, b"overwritten");
        assert_eq!((answer.status, answer.text().as_str()), (403, denied), "{name}");
    }
    assert_eq!(std::fs::read(&outside).unwrap(), b"secret");
    assert_eq!(served.get("/download/inside").body, b"own", "a link that stays inside is followed");
    assert_eq!(served.upload("/etc/absolute", b"x").status, 200);
    assert!(served.app().join("etc/absolute").exists(), "an absolute path is taken below the base");
}

#[test]
fn an_interrupted_upload_leaves_no_file() {
    let served = serve();
    served.upload("kept", b"first");
    let mut stream = served.connect();
    let part = "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"kept\"\r\n\r\n";
    let part = format!("{part}{}", "second".repeat(50_000));
    write!(stream, "POST /upload HTTP/1.1\r\nhost: x\r\ncontent-type: multipart/form-data; boundary=b\r\ncontent-length: 999999\r\n\r\n{part}").unwrap();
    until("it is being written", || served.app().read_dir().unwrap().count() == 2);
    drop(stream);
    until("it is forgotten", || served.app().read_dir().unwrap().count() == 1);
    assert_eq!(std::fs::read(served.app().join("kept")).unwrap(), b"first");
}

#[test]
fn forms_without_a_file_are_refused() {
    let served = serve();
    let none = served.post("/upload", "application/json", b"{}");
    let missing = json!({"detail": [{"type": "missing", "loc": ["body", "file"], "msg": "Field required", "input": null}]});
    assert_eq!((none.status, none.json()), (422, missing.clone()));
    let other = b"--b\r\nContent-Disposition: form-data; name=\"other\"\r\n\r\nx\r\n--b--\r\n";
    let other = served.post("/upload", "multipart/form-data; boundary=b", other);
    assert_eq!((other.status, other.json()), (422, missing));
    let text = b"--b\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\nx\r\n--b--\r\n";
    let text = served.post("/upload", "multipart/form-data; boundary=b", text);
    assert_eq!((text.status, &text.json()["detail"][0]["type"]), (422, &json!("value_error")));
    let unbounded = served.post("/upload", "multipart/form-data", b"x");
    assert_eq!(
        (unbounded.status, unbounded.text().as_str()),
        (400, r#"{"detail":"Missing boundary in multipart."}"#)
    );
    let broken = served.post("/upload", "multipart/form-data; boundary=b", b"nonsense");
    assert_eq!(
        (broken.status, broken.text().as_str()),
        (400, r#"{"detail":"There was an error parsing the body"}"#)
    );
}
