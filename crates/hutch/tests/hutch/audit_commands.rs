//! `hutch audit` on a log that the test writes: times, kinds, following, and exporters that end at any point.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant, SystemTime};

use hutch_audit::event::{Connection, ConnectionActivity, CredentialUse, Decision, Sandbox, Verdict};
use hutch_audit::{Event, Log, Options};
use hutch_testkit::wait::until;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::audit_strict::SmallDisk;
use crate::harness::{binary, succeeded, text};
use crate::inspected::{authority, with_port};
use crate::peers::Peer;

const HOUR: Duration = Duration::from_secs(3600);
const BOX: Sandbox<'static> = Sandbox { namespace: "team", name: "box", uid: None };

/// Data folder with a log.
fn data() -> (TempDir, Log) {
    let folder = tempfile::tempdir().expect("a folder");
    let log = Log::open(&folder.path().join("audit"), Options::default()).expect("a log");
    (folder, log)
}

fn record(log: &Log, event: &Event) {
    log.push(event.record()).expect("recorded");
}

fn connection(time: SystemTime, host: &str) -> Event {
    let (activity, verdict) = (ConnectionActivity::Open, Verdict::of(Decision::Allowed));
    let (address, port, traffic) = (None, Some(443), None);
    Event::connection(
        time,
        &Connection { sandbox: BOX, activity, host, address, port, traffic, count: None, verdict },
    )
}

fn used(time: SystemTime, credential: &str, decision: Decision) -> Event {
    let verdict = Verdict::of(decision);
    Event::credential(time, &CredentialUse { sandbox: BOX, credential, host: "api.example", verdict })
}

fn command(data: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.arg("audit").args(words).arg("--data-dir").arg(data);
    command
}

fn audit(data: &Path, words: &[&str]) -> Output {
    command(data, words).output().expect("hutch")
}

/// Fifth words of lines: what an event is about.
fn subjects(printed: &str) -> Vec<String> {
    let subject = |line: &str| line.split_whitespace().nth(4).unwrap_or_default().to_owned();
    printed.lines().map(subject).collect()
}

#[test]
fn list_selects_by_time_and_by_kind() {
    let (data, log) = data();
    let now = SystemTime::now();
    for (hours, name) in [(3, "oldest"), (2, "older"), (0, "new")] {
        record(&log, &connection(now - HOUR * hours, &format!("{name}.example")));
        record(&log, &used(now - HOUR * hours, name, Decision::Allowed));
    }
    record(&log, &used(now, "refused", Decision::Denied));
    log.close();
    let list = |words: &[&str]| {
        let words = [&["list", "--sandbox", "team/box"], words].concat();
        subjects(&succeeded("list", &audit(data.path(), &words)))
    };
    let credentials = ["--kind", "credential"];
    assert_eq!(list(&credentials), ["oldest", "older", "new", "refused"]);
    assert_eq!(list(&["--kind", "credential", "--denied"]), ["refused"]);
    assert_eq!(list(&["--kind", "connection", "--since", "90m"]), ["new.example:443"]);
    assert_eq!(
        list(&["--kind", "connection", "--until", "90m"]),
        ["oldest.example:443", "older.example:443"]
    );
    assert_eq!(list(&["--since", "150m", "--until", "60m"]), ["older.example:443", "older"]);
    let at = k8s_openapi::jiff::Timestamp::try_from(now - HOUR * 2 - HOUR / 2).expect("a time").to_string();
    assert_eq!(list(&["--kind", "credential", "--since", &at]), ["older", "new", "refused"]);
    let both = list(&["--kind", "credential", "--kind", "connection", "--since", "1h"]);
    assert_eq!(both, ["new.example:443", "new", "refused"]);
    let wrong = audit(data.path(), &["list", "--since", "yesterday"]);
    assert!(wrong.status.code() == Some(2) && text(&wrong.stderr).contains("--since"), "{wrong:?}");
}

/// A command whose lines of output are received. It ends with this.
struct Lines(Child, mpsc::Receiver<String>);

impl Lines {
    fn of(mut command: Command) -> Lines {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("hutch");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Lines(child, receiver)
    }

    fn next(&self) -> String {
        self.1.recv_timeout(Duration::from_secs(120)).expect("a line")
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn follow_prints_what_is_recorded_later() {
    let (data, log) = data();
    let now = SystemTime::now();
    record(&log, &used(now - HOUR * 2, "old", Decision::Allowed));
    record(&log, &used(now, "first", Decision::Allowed));
    let words = ["follow", "--kind", "credential", "--since", "1h"];
    let lines = Lines::of(command(data.path(), &words));
    let json = Lines::of(command(data.path(), &[&words[..], &["--output", "json", "--denied"]].concat()));
    assert!(lines.next().contains("team/box"), "the first one");
    for number in 0..3 {
        record(&log, &connection(SystemTime::now(), "passed.example"));
        record(&log, &used(SystemTime::now(), &format!("later-{number}"), Decision::Denied));
        let line = lines.next();
        assert!(
            line.contains(" denied ") && line.ends_with(&format!("later-{number} for api.example")),
            "{line}"
        );
        let event: Value = serde_json::from_str(&json.next()).expect("JSON");
        assert_eq!(event["class_uid"], 6003);
    }
    log.close();
}

/// Time at which a receiver kills the exporter.
#[derive(Clone, Copy, PartialEq)]
enum Then {
    /// Before the answer.
    KillBefore,
    /// As soon as the answer is sent.
    KillAfter,
}

/// A receiver of a webhook, and what it has received.
struct Receiver {
    address: SocketAddr,
    received: Arc<Mutex<Vec<u8>>>,
    /// The exporter, and what becomes of it.
    exporter: Arc<Mutex<Option<(u32, Then)>>>,
}

impl Receiver {
    fn start() -> Receiver {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let address = listener.local_addr().expect("an address");
        let (received, exporter) = (Arc::<Mutex<Vec<u8>>>::default(), Arc::<Mutex<_>>::default());
        let (kept, known) = (received.clone(), exporter.clone());
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let (kept, known) = (kept.clone(), known.clone());
                std::thread::spawn(move || serve(client, &kept, &known));
            }
        });
        Receiver { address, received, exporter }
    }

    fn numbers(&self) -> Vec<u64> {
        let received = self.received.lock().expect("no panic");
        let lines = received.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let number = |line: &[u8]| serde_json::from_slice::<Value>(line).expect("JSON")["seq"].as_u64();
        lines.filter_map(number).collect()
    }
}

fn serve(client: TcpStream, received: &Mutex<Vec<u8>>, exporter: &Mutex<Option<(u32, Then)>>) {
    let mut reader = BufReader::new(client.try_clone().expect("cloned"));
    loop {
        let (mut line, mut length) = (String::new(), 0);
        while line != "\r\n" {
            line.clear();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            if let Some((name, value)) = line.split_once(": ")
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().expect("a length");
            }
        }
        let mut body = vec![0; length];
        if reader.read_exact(&mut body).is_err() {
            return;
        }
        // A body of OTLP has no end of a line.
        body.push(b'\n');
        received.lock().expect("no panic").extend_from_slice(&body);
        let kill = |then: Then| {
            let mut exporter = exporter.lock().expect("no panic");
            if let Some((pid, _)) = exporter.take_if(|(_, planned)| *planned == then) {
                crate::processes::kill(pid);
            }
        };
        kill(Then::KillBefore);
        // The exporter may have gone.
        let _ = (&client).write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        kill(Then::KillAfter);
    }
}

#[test]
fn exporter_that_is_killed_around_the_answer_loses_no_record() {
    let (data, log) = data();
    let secret = data.path().join("secret");
    std::fs::write(&secret, "0123456789abcdef").expect("written");
    let receiver = Receiver::start();
    let to = format!("webhook+http://{}", receiver.address);
    let export = |more: &[&str]| {
        let mut command = command(data.path(), &["export", "--to", &to]);
        command.arg("--secret-file").arg(&secret).args(more);
        command
    };
    for (round, then) in [Then::KillBefore, Then::KillAfter].repeat(3).into_iter().enumerate() {
        (0..20).for_each(|number| {
            record(&log, &connection(SystemTime::now(), &format!("h{round}-{number}.example")))
        });
        // It waits for a record until the receiver knows which process it is.
        let mut child = export(&["--follow"]).stderr(Stdio::null()).spawn().expect("hutch");
        *receiver.exporter.lock().expect("no panic") = Some((child.id(), then));
        record(&log, &connection(SystemTime::now(), "last.example"));
        assert!(!child.wait().expect("ended").success(), "it was killed");
    }
    log.close();
    let report = succeeded("export", &export(&[]).output().expect("hutch"));
    let mut numbers = receiver.numbers();
    let end = *numbers.iter().max().expect("records");
    assert!(report.contains(&format!("sent up to record {end}")), "{report}");
    assert!(numbers.len() as u64 > end, "a batch whose answer was lost comes again");
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers, (1..=end).collect::<Vec<_>>());
}

/// Numbers of the records in bodies and lines that have arrived whole.
fn numbers_in(lines: &[u8]) -> Vec<u64> {
    let of_otlp = |record: &Value| {
        let attributes = record["attributes"].as_array()?;
        let number = attributes.iter().find(|attribute| attribute["key"] == "hutch.audit.seq")?;
        number["value"]["intValue"].as_str()?.parse::<u64>().ok()
    };
    let numbers = |value: Value| -> Vec<u64> {
        match value["resourceLogs"][0]["scopeLogs"][0]["logRecords"].as_array() {
            Some(records) => records.iter().filter_map(of_otlp).collect(),
            None => value["seq"].as_u64().into_iter().collect(),
        }
    };
    let lines = lines.split(|byte| *byte == b'\n');
    lines.filter_map(|line| serde_json::from_slice(line).ok()).flat_map(numbers).collect()
}

/// Starts a receiver of syslog. Returns its address, and the numbers of the records that have arrived whole.
fn syslog() -> (SocketAddr, Arc<Mutex<Vec<u64>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let address = listener.local_addr().expect("an address");
    let received = Arc::<Mutex<Vec<u64>>>::default();
    let kept = received.clone();
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let kept = kept.clone();
            std::thread::spawn(move || {
                let mut reader = BufReader::new(client);
                while let Some(number) = syslog_number(&mut reader) {
                    kept.lock().expect("no panic").push(number);
                }
            });
        }
    });
    (address, received)
}

/// Reads a message, which its length precedes, and returns the number of its record. `None` if it does not arrive whole.
fn syslog_number(reader: &mut impl BufRead) -> Option<u64> {
    let mut length = Vec::new();
    reader.read_until(b' ', &mut length).ok()?;
    let length: usize = text(&length).trim().parse().ok()?;
    let mut message = vec![0; length];
    reader.read_exact(&mut message).ok()?;
    let message = text(&message);
    let (_, number) = message.split_once("seq=\"").expect("a number");
    Some(number.split_once('"').expect("its end").0.parse().expect("a number"))
}

/// Checks that these are the numbers of all records, with repetitions.
fn complete(mut numbers: Vec<u64>, what: &str) {
    numbers.sort_unstable();
    numbers.dedup();
    let end = *numbers.last().expect("records");
    assert_eq!(numbers, (1..=end).collect::<Vec<_>>(), "{what}");
}

#[test]
fn exporter_of_any_kind_that_is_killed_at_any_time_loses_no_record() {
    for kind in ["webhook", "file", "syslog", "otlp"] {
        let (data, log) = data();
        let (secret, target) = (data.path().join("secret"), data.path().join("out"));
        std::fs::write(&secret, "0123456789abcdef").expect("written");
        let (receiver, (of_syslog, messages)) = (Receiver::start(), syslog());
        let to = match kind {
            "webhook" => format!("webhook+http://{}", receiver.address),
            "file" => format!("file:{}", target.display()),
            "syslog" => format!("syslog+tcp://{of_syslog}"),
            _ => format!("otlp+http://{}", receiver.address),
        };
        let export = |more: &[&str]| {
            let mut command = command(data.path(), &["export", "--to", &to]);
            if kind == "webhook" {
                command.arg("--secret-file").arg(&secret);
            }
            command.args(more);
            command
        };
        let mut delays = Vec::new();
        for round in 0..8 {
            let mut child = export(&["--follow"]).stderr(Stdio::null()).spawn().expect("hutch");
            let delay = rand::random::<u64>() % 400;
            delays.push(delay);
            let end = Instant::now() + Duration::from_millis(delay);
            let mut count = 0;
            // Records come until it is killed.
            while count < 20 || Instant::now() < end {
                record(&log, &connection(SystemTime::now(), &format!("h{round}-{count}.example")));
                std::thread::sleep(Duration::from_millis(1));
                count += 1;
            }
            child.kill().expect("killed");
            assert!(!child.wait().expect("ended").success(), "{kind}: it was killed");
        }
        log.close();
        let report = succeeded(kind, &export(&[]).output().expect("hutch"));
        let numbers = match kind {
            "file" => numbers_in(&std::fs::read(&target).expect("the target")),
            "syslog" => messages.lock().expect("no panic").clone(),
            _ => numbers_in(&receiver.received.lock().expect("no panic")),
        };
        let end = numbers.iter().max().expect("records");
        let what = format!("{kind}, killed after {delays:?} ms: {report}");
        assert!(report.contains(&format!("sent up to record {end}")), "{what}");
        complete(numbers, &what);
    }
}

#[test]
fn file_on_a_full_disk_gets_every_record_once_there_is_room() {
    hutch_testkit::require!(root);
    let (data, log) = data();
    let folder = data.path().join("out");
    std::fs::create_dir(&folder).expect("a folder");
    let disk = SmallDisk::at(folder.clone());
    let target = folder.join("log.jsonl");
    let to = format!("file:{}", target.display());
    let export = || audit(data.path(), &["export", "--to", &to]);
    let write = |name: &str| {
        let host = |number: u32| format!("{name}-{number}.example");
        (0..200).for_each(|number| record(&log, &connection(SystemTime::now(), &host(number))));
    };
    let content = || std::fs::read_to_string(&target).unwrap_or_default();
    write("before");
    until("a record", || {
        succeeded("export", &export());
        content().contains("before-")
    });
    disk.fill();
    // More than the last page of the file has room for.
    write("full");
    let mut error = String::new();
    until("a failure", || {
        let output = export();
        error = text(&output.stderr);
        !output.status.success()
    });
    assert!(error.contains("log.jsonl") && !content().contains("full-199.example"), "{error}");
    disk.empty();
    write("after");
    log.close();
    succeeded("export", &export());
    let content = content();
    assert!(content.contains("after-199.example"));
    // Nothing was left of what found no room.
    let whole = content.lines().all(|line| serde_json::from_str::<Value>(line).is_ok());
    assert!(whole, "{content}");
    complete(numbers_in(content.as_bytes()), "all records");
}

#[test]
fn exporter_whose_cursor_finds_no_room_sends_again_and_loses_no_record() {
    hutch_testkit::require!(root);
    let (data, log) = data();
    let (cursors, target) = (data.path().join("audit/cursors"), data.path().join("out"));
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", "size=8k,mode=700", "none"]).arg(&cursors);
    succeeded("mount", &mount.output().expect("mount"));
    let to = format!("file:{}", target.display());
    let export = || audit(data.path(), &["export", "--to", &to]);
    record(&log, &connection(SystemTime::now(), "first.example"));
    let count = || std::fs::read_to_string(&target).map_or(0, |text| text.lines().count());
    until("a record", || {
        succeeded("export", &export());
        count() > 0
    });
    record(&log, &connection(SystemTime::now(), "second.example"));
    log.close();
    let _ = std::fs::write(cursors.join("fill"), [0; 16 << 10]);
    let sent = count();
    for _ in 0..2 {
        let failed = export();
        let error = text(&failed.stderr);
        assert!(failed.status.code() == Some(1) && error.contains("cursors/default"), "{error}");
    }
    assert!(count() > sent, "the receiver has the records");
    std::fs::remove_file(cursors.join("fill")).expect("removed");
    succeeded("export", &export());
    let content = std::fs::read_to_string(&target).expect("the target");
    let number = |line: &str| serde_json::from_str::<Value>(line).expect("JSON")["seq"].as_u64();
    let mut numbers: Vec<u64> = content.lines().filter_map(number).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let end = *numbers.last().expect("records");
    assert_eq!(numbers, (1..=end).collect::<Vec<_>>());
    assert!(content.contains("second.example"));
    succeeded("umount", &Command::new("umount").arg(&cursors).output().expect("umount"));
}

/// Starts a collector of logs over gRPC, with TLS if it has a certificate. Returns its port.
fn collector(folder: &Path, files: &[&Path]) -> (Peer, u16) {
    let generated = folder.join("generated");
    std::fs::create_dir(&generated).expect("a folder");
    let mut python = Command::new("python3");
    python
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/hutch/fixtures/otlp.py"))
        .arg(&generated)
        .args(files);
    python.env("PYTHONPATH", hutch_testkit::python_package("grpc"));
    with_port(python, &folder.join("collector"))
}

#[test]
fn otlp_over_grpc_reaches_a_collector_and_survives_its_refusals() {
    hutch_testkit::require!(grpcio);
    let (data, log) = data();
    for number in 0..20 {
        record(&log, &used(SystemTime::now(), &format!("name-{number}"), Decision::Denied));
    }
    record(&log, &connection(SystemTime::now(), "refused.example"));
    record(&log, &connection(SystemTime::now(), "passed.example"));
    log.close();
    let (peer, port) = collector(data.path(), &[]);
    let headers = data.path().join("headers");
    std::fs::write(&headers, "authorization: Bearer abc\n").expect("written");
    let to = format!("otlp+grpc://127.0.0.1:{port}");
    let words = ["export", "--to", &to, "--header-file", headers.to_str().expect("a path")];
    let report = succeeded("export", &audit(data.path(), &words));

    let printed = peer.printed();
    let lines = printed.lines().filter(|line| line.starts_with('{'));
    let records: Vec<Value> = lines.map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let all = succeeded("export", &audit(data.path(), &["export"]));
    let mut numbers: Vec<u64> = Vec::new();
    for record in &records {
        let (attributes, body) = (&record["attributes"], record["body"].as_str().expect("a body"));
        let event: Value = serde_json::from_str(body).expect("the event");
        assert_eq!(record["headers"]["authorization"], "Bearer abc");
        assert_eq!(
            (&record["resource"]["service.name"], &record["scope"]),
            (&"hutch".into(), &"hutch.audit".into())
        );
        let time = event["time"].as_u64().expect("a time") * 1_000_000;
        assert_eq!((&record["time"], &record["observed"]), (&time.into(), &time.into()));
        let kind = event["metadata"]["event_code"].as_str().expect("a kind");
        assert_eq!(record["name"], format!("hutch.audit.{kind}"));
        let severity = if kind == "credential" { json!([13, "WARN"]) } else { json!([9, "INFO"]) };
        assert_eq!(record["severity"], severity);
        assert_eq!(attributes["hutch.sandbox"] == "team/box", kind != "log", "{record}");
        let (prev, hash) = (&attributes["hutch.audit.prev"], &attributes["hutch.audit.hash"]);
        let line = format!(
            r#"{{"seq":{},"prev":{prev},"hash":{hash},"event":{body}}}"#,
            attributes["hutch.audit.seq"]
        );
        assert!(all.lines().any(|found| found == line), "{line}");
        numbers.push(attributes["hutch.audit.seq"].as_u64().expect("a number"));
    }
    numbers.sort_unstable();
    numbers.dedup();
    let end = *numbers.last().expect("records");
    assert!(report.contains(&format!("sent up to record {end}")), "{report}");
    assert!(report.contains("the receiver has refused 2 records"), "{report}");
    // All but the one that the collector refuses, and the one that it rejects in a batch, which is not sent again.
    assert_eq!(numbers.len() as u64, end - 2);
    assert!(!numbers.contains(&1), "{numbers:?}");
    assert!(printed.contains("passed.example") && !printed.contains("refused.example"), "{printed}");
}

#[test]
fn otlp_over_grpc_with_tls_checks_the_collector() {
    hutch_testkit::require!(grpcio, openssl);
    let (data, log) = data();
    record(&log, &connection(SystemTime::now(), "first.example"));
    log.close();
    let path = |name: &str| data.path().join(name);
    authority(&path("public"), &["localhost"]);
    authority(&path("other"), &["localhost"]);
    let (peer, port) = collector(data.path(), &[&path("public/cert.pem"), &path("public/key.pem")]);
    let to = format!("otlp+grpcs://localhost:{port}");
    let export = |authority: &str| {
        let authority = path(authority);
        audit(data.path(), &["export", "--to", &to, "--ca-file", authority.to_str().expect("a path")])
    };
    let refused = export("other/ca.pem");
    assert_eq!(refused.status.code(), Some(1), "{}", text(&refused.stderr));
    assert!(!peer.printed().contains('{'), "{}", peer.printed());
    succeeded("export", &export("public/ca.pem"));
    assert!(peer.printed().contains("first.example"), "{}", peer.printed());
}
