mod faults;
mod hostile;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::net::TcpListener;

use super::*;
use crate::event::{Connection, ConnectionActivity, Decision, Event, Sandbox, Verdict};
use crate::{Log, Options};

const SECRET: &[u8] = b"0123456789abcdef";

async fn log(count: usize) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let log = Log::open(folder.path(), Options { segment: 20_000, ..Options::default() }).unwrap();
    for index in 0..count {
        let connection = Connection {
            sandbox: Sandbox { namespace: "team", name: "box", uid: None },
            activity: ConnectionActivity::Open,
            host: &format!("h{index}.example"),
            address: None,
            port: None,
            traffic: None,
            count: None,
            verdict: Verdict::of(Decision::Denied),
        };
        log.record(Event::connection(SystemTime::now(), &connection).record()).await.unwrap();
    }
    log.close();
    folder
}

fn last(folder: &Path) -> u64 {
    crate::verify(folder, None, None).unwrap().last
}

/// Exports all of a log. The exporter is made anew after each batch that was sent or has failed, as after restarts.
async fn export(folder: &Path, destination: &str, options: &ExportOptions, restarts: usize) -> u64 {
    let destination = destination.parse().unwrap();
    for _ in 0..restarts {
        let mut exporter = Exporter::new(folder, "siem", &destination, options, false).unwrap();
        exporter.limit = 7;
        if exporter.step().await.unwrap() == Step::Idle {
            return exporter.sent();
        }
    }
    let mut exporter = Exporter::new(folder, "siem", &destination, options, false).unwrap();
    exporter.run(watch::channel(false).1).await.unwrap();
    exporter.sent()
}

/// Requests to a receiver: headers and body.
type Requests = Arc<Mutex<Vec<(hyper::HeaderMap, Bytes)>>>;
/// Decides about a request, by its number and its body: the status and the body of the answer.
type Answers = Arc<dyn Fn(usize, &[u8]) -> (u16, &'static str) + Send + Sync>;

async fn receiver(answers: Answers) -> (SocketAddr, Requests) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let requests = Requests::default();
    let seen = requests.clone();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let (seen, answers) = (seen.clone(), answers.clone());
            let service = service_fn(move |request: Request<Incoming>| {
                let (seen, answers) = (seen.clone(), answers.clone());
                async move {
                    let (head, body) = request.into_parts();
                    let body = body.collect().await?.to_bytes();
                    let number = seen.lock().unwrap().len();
                    let (status, answer) = answers(number, &body);
                    let mut response = Response::builder().status(status);
                    if status == 429 {
                        response = response.header("retry-after", "1");
                    }
                    let accepted = if status == 200 { body } else { Bytes::new() };
                    seen.lock().unwrap().push((head.headers, accepted));
                    Ok::<_, hyper::Error>(response.body(Full::new(Bytes::from(answer))).unwrap())
                }
            });
            tokio::spawn(
                hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service),
            );
        }
    });
    (address, requests)
}

/// Numbers of the records in lines.
fn numbers(lines: &[u8]) -> Vec<u64> {
    lines.split(|byte| *byte == b'\n').filter_map(crate::parse).map(|line| line.seq).collect()
}

/// Checks that all records have arrived in order; repeats of the last ones are permitted.
fn complete(mut numbers: Vec<u64>, last: u64) {
    let count = numbers.len();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers, (1..=last).collect::<Vec<_>>(), "{count} received");
}

#[tokio::test]
async fn file_receives_every_line_over_restarts() {
    let folder = log(100).await;
    let target = folder.path().join("out.jsonl");
    let destination = format!("file:{}", target.display());
    let sent = export(folder.path(), &destination, &ExportOptions::default(), 5).await;
    assert_eq!(sent, last(folder.path()));
    let content = std::fs::read(&target).unwrap();
    assert_eq!(numbers(&content), (1..=sent).collect::<Vec<_>>());
    // The lines are those of the log.
    let mut reader = Reader::new(folder.path(), 1);
    let lines = std::iter::from_fn(|| reader.read().unwrap()).flat_map(|entry| [entry.line, b"\n".to_vec()]);
    assert_eq!(lines.flatten().collect::<Vec<u8>>(), content);
}

#[tokio::test]
async fn webhook_is_signed_and_survives_failures() {
    let folder = log(60).await;
    let answers = |number, _: &[u8]| match number {
        1 => (503, ""),
        3 => (429, ""),
        _ => (200, ""),
    };
    let (address, requests) = receiver(Arc::new(answers)).await;
    let options = ExportOptions { secret: Some(SECRET.to_vec()), ..ExportOptions::default() };
    let began = std::time::Instant::now();
    let sent = export(folder.path(), &format!("webhook+http://{address}/in?a=b"), &options, 3).await;
    assert_eq!(sent, last(folder.path()));
    // The pause that the receiver requested.
    assert!(began.elapsed() >= Duration::from_secs(1));
    let requests = requests.lock().unwrap();
    let received = requests.iter().flat_map(|(_, body)| numbers(body)).collect();
    complete(received, sent);
    for (headers, body) in requests.iter().filter(|(_, body)| !body.is_empty()) {
        let time = headers["hutch-timestamp"].to_str().unwrap();
        let signed = [time.as_bytes(), b".", body].concat();
        let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, SECRET);
        let expected = crate::hex::hex(aws_lc_rs::hmac::sign(&key, &signed).as_ref());
        assert_eq!(headers["hutch-signature"], format!("sha256={expected}"));
    }
    let weak = ExportOptions { secret: Some(b"short".to_vec()), ..ExportOptions::default() };
    let destination = "webhook+http://a.example/".parse().unwrap();
    assert!(Exporter::new(folder.path(), "x", &destination, &weak, false).is_err());
}

#[tokio::test]
async fn record_that_the_receiver_refuses_alone_is_skipped_and_counted() {
    let folder = log(10).await;
    let answers = |_, body: &[u8]| match String::from_utf8_lossy(body).contains("h5.example") {
        true => (400, ""),
        false => (200, ""),
    };
    let (address, requests) = receiver(Arc::new(answers)).await;
    let options = ExportOptions { secret: Some(SECRET.to_vec()), ..ExportOptions::default() };
    let sent = export(folder.path(), &format!("webhook+http://{address}"), &options, 0).await;
    assert_eq!(sent, last(folder.path()));
    let cursor = Cursor::read(folder.path(), "siem").unwrap();
    assert_eq!((cursor.seq, cursor.refused), (sent, 1));
    let received = requests.lock().unwrap().iter().flat_map(|(_, body)| numbers(body)).count() as u64;
    assert_eq!(received, sent - 1);
}

#[tokio::test]
async fn otlp_has_the_form_of_the_protocol() {
    let folder = log(10).await;
    let (address, requests) = receiver(Arc::new(|_, _: &[u8]| (200, r#"{"partialSuccess":{}}"#))).await;
    let headers = Some("authorization: Bearer abc".to_owned());
    let options = ExportOptions { headers, ..ExportOptions::default() };
    let sent = export(folder.path(), &format!("otlp+http://{address}"), &options, 2).await;
    assert_eq!(sent, last(folder.path()));
    let mut received = Vec::new();
    for (headers, body) in requests.lock().unwrap().iter() {
        assert_eq!(
            (&headers["content-type"], &headers["authorization"]),
            (&"application/json".parse().unwrap(), &"Bearer abc".parse().unwrap())
        );
        let request: serde_json::Value = serde_json::from_slice(body).unwrap();
        let scope = &request["resourceLogs"][0]["scopeLogs"][0];
        assert_eq!(request["resourceLogs"][0]["resource"]["attributes"][0]["value"]["stringValue"], "hutch");
        for record in scope["logRecords"].as_array().unwrap() {
            let event = record["body"]["stringValue"].as_str().unwrap();
            let attribute = |name: &str| {
                let all = record["attributes"].as_array().unwrap();
                all.iter().find(|attribute| attribute["key"] == name).unwrap()["value"].clone()
            };
            let prev =
                crate::Hash::parse(attribute("hutch.audit.prev")["stringValue"].as_str().unwrap().as_bytes());
            let hash = prev.unwrap().then(event.as_bytes()).to_string();
            assert_eq!(attribute("hutch.audit.hash")["stringValue"], hash);
            let view = crate::View::parse(event.as_bytes());
            assert_eq!(record["timeUnixNano"], format!("{}000000", view.time()));
            let is_connection = view.kind() == Some(crate::Kind::Connection);
            assert_eq!(record["severityNumber"] == 13, is_connection, "{record:#}");
            received.push(attribute("hutch.audit.seq")["intValue"].as_str().unwrap().parse().unwrap());
        }
    }
    complete(received, sent);
}

#[tokio::test]
async fn records_that_a_collector_rejects_are_counted_and_not_sent_again() {
    let folder = log(20).await;
    let answers = |number, _: &[u8]| match number {
        0 => (200, r#"{"partialSuccess":{"rejectedLogRecords":"3","errorMessage":"too old"}}"#),
        _ => (200, "{}"),
    };
    let (address, requests) = receiver(Arc::new(answers)).await;
    let destination = format!("otlp+http://{address}");
    let sent = export(folder.path(), &destination, &ExportOptions::default(), 10).await;
    assert_eq!(sent, last(folder.path()));
    let cursor = Cursor::read(folder.path(), "siem").unwrap();
    assert_eq!((cursor.seq, cursor.refused), (sent, 3));
    assert_eq!(requests.lock().unwrap().len() as u64, sent.div_ceil(7), "each batch once");
}

#[tokio::test]
async fn exporter_that_follows_is_known_before_its_receiver_answers() {
    let folder = log(1).await;
    let new = |place: &str, follow| {
        let destination = Destination::File(folder.path().join(place));
        Exporter::new(folder.path(), "siem", &destination, &ExportOptions::default(), follow).map(drop)
    };
    let follows =
        || crate::cursor::all(folder.path()).unwrap().iter().map(|one| one.follows).collect::<Vec<_>>();
    new("first", false).unwrap();
    assert_eq!(follows(), Vec::<bool>::new());
    new("first", true).unwrap();
    assert_eq!(follows(), [true]);
    // Nothing was sent yet, so another receiver can take its place.
    new("second", false).unwrap();
    assert_eq!(follows(), [true]);
}

/// Reads messages with octet counting up to the end of a connection, or up to a number of them.
async fn messages(mut stream: impl AsyncRead + Unpin, most: usize) -> Vec<String> {
    let mut messages = Vec::new();
    while messages.len() < most {
        let mut length = 0;
        loop {
            match stream.read_u8().await {
                Ok(b' ') => break,
                Ok(digit) => length = length * 10 + usize::from(digit - b'0'),
                Err(_) => return messages,
            }
        }
        let mut message = vec![0; length];
        if stream.read_exact(&mut message).await.is_err() {
            return messages;
        }
        messages.push(String::from_utf8(message).unwrap());
    }
    messages
}

fn syslog_numbers(messages: &[String]) -> Vec<u64> {
    let number = |message: &String| {
        assert!(message.len() <= 8192 && message.starts_with('<') && message.ends_with('}'), "{message}");
        message.split_once("seq=\"").unwrap().1.split_once('"').unwrap().0.parse().unwrap()
    };
    messages.iter().map(number).collect()
}

#[tokio::test]
async fn syslog_over_tcp_survives_a_receiver_that_closes() {
    let folder = log(40).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let end = last(folder.path());
    let receiving = tokio::spawn(async move {
        let mut received = Vec::new();
        // The first two connections are closed in the middle of a batch.
        for most in [3, 10, usize::MAX] {
            let (stream, _) = listener.accept().await.unwrap();
            received.extend(messages(stream, most).await);
        }
        received
    });
    let sent = export(folder.path(), &format!("syslog+tcp://{address}"), &ExportOptions::default(), 0).await;
    assert_eq!(sent, end);
    complete(syslog_numbers(&receiving.await.unwrap()), end);
}

#[tokio::test]
async fn syslog_over_tls_checks_the_receiver() {
    let folder = log(5).await;
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.unwrap().with_no_client_auth();
    let config = config.with_single_cert(vec![made.cert.der().clone()], key).unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let receiving = tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            if let Ok(stream) = acceptor.accept(stream).await {
                return messages(stream, usize::MAX).await;
            }
        }
    });
    let destination: Destination = format!("syslog+tls://localhost:{port}").parse().unwrap();
    // An authority that did not sign the certificate.
    let other = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    for (pem, is_sent) in [(other.cert.pem(), false), (made.cert.pem(), true)] {
        let options = ExportOptions { authorities: Some(pem.into_bytes()), ..ExportOptions::default() };
        let mut exporter = Exporter::new(folder.path(), "siem", &destination, &options, false).unwrap();
        let step = exporter.step().await.unwrap();
        assert_eq!(step == Step::Sent, is_sent, "{step:?}");
    }
    complete(syslog_numbers(&receiving.await.unwrap()), last(folder.path()));
}

#[tokio::test]
async fn cursor_of_another_log_is_refused() {
    let (one, other) = (log(5).await, log(5).await);
    let options = ExportOptions::default();
    let destination = Destination::File(one.path().join("out"));
    export(one.path(), &format!("file:{}", one.path().join("out").display()), &options, 0).await;
    std::fs::copy(crate::cursor::path(one.path(), "siem"), crate::cursor::path(other.path(), "siem"))
        .unwrap();
    let refused = Exporter::new(other.path(), "siem", &destination, &options, false);
    assert!(matches!(refused, Err(Error::OtherLog(..))));
}

#[tokio::test]
async fn second_receiver_does_not_continue_at_the_place_of_the_first() {
    let folder = log(5).await;
    let options = ExportOptions::default();
    let first = Destination::File(folder.path().join("first"));
    let second = Destination::File(folder.path().join("second"));
    let sent =
        export(folder.path(), &format!("file:{}", folder.path().join("first").display()), &options, 0).await;
    let refused = Exporter::new(folder.path(), "siem", &second, &options, false).err().unwrap().to_string();
    assert!(refused.contains("cursors/siem is the place of another receiver"), "{refused}");
    assert_eq!(Exporter::new(folder.path(), "siem", &first, &options, false).unwrap().sent(), sent);
    assert_eq!(Exporter::new(folder.path(), "other", &second, &options, false).unwrap().sent(), 0);
}

#[tokio::test]
async fn export_without_follow_ends_on_a_receiver_that_fails() {
    let folder = log(5).await;
    let options = ExportOptions { secret: Some(SECRET.to_vec()), ..ExportOptions::default() };
    for status in [503, 401, 400] {
        let (address, requests) = receiver(Arc::new(move |_, _: &[u8]| (status, ""))).await;
        let destination = format!("webhook+http://{address}").parse().unwrap();
        let name = format!("r{status}");
        let mut exporter = Exporter::new(folder.path(), &name, &destination, &options, false).unwrap();
        exporter.limit = 1;
        let error = exporter.run(watch::channel(false).1).await.unwrap_err().to_string();
        assert!(error.contains(&status.to_string()), "{error}");
        assert!(requests.lock().unwrap().len() <= 15);
    }
}

#[tokio::test]
async fn exporter_follows_a_log_that_grows_and_stops() {
    let folder = log(1).await;
    let log = Log::open(folder.path(), Options::default()).unwrap();
    let target = folder.path().join("out");
    let destination = Destination::File(target.clone());
    let mut exporter =
        Exporter::new(folder.path(), "siem", &destination, &ExportOptions::default(), true).unwrap();
    let (stop, stopped) = watch::channel(false);
    let exporting = tokio::spawn(async move { exporter.run(stopped).await.map(|()| exporter.sent()) });
    let event = Event::log(SystemTime::now(), &crate::event::LogEvent::Lost { records: 77 });
    log.record_durably(event.record()).await.unwrap();
    let found = || std::fs::read_to_string(&target).is_ok_and(|text| text.contains("77 records"));
    for _ in 0..1000 {
        if found() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(found());
    stop.send(true).unwrap();
    assert!(exporting.await.unwrap().unwrap() > 1);
}
