//! The gRPC port for clients without gRPC: Connect and gRPC-Web, over HTTP/1.1 and HTTP/2, through curl.

use hutch_testkit::require;
use hutch_testkit::wait::until;
use serde_json::{Value, json};

use crate::curl::curl;
use crate::served::{Answer, Served, alive, serve};

const SERVICE: &str = "/process.v1.ProcessService";

impl Served {
    fn call(&self, method: &str, kind: &str, more: &[&str], body: &[u8]) -> Answer {
        let kind = format!("Content-Type: {kind}");
        let arguments = [&["-H", &kind, "-H", "TE: trailers", "--data-binary", "@-"], more].concat();
        curl(self.grpc, &format!("{SERVICE}/{method}"), &arguments, body)
    }

    fn connect_json(&self, method: &str, request: &Value) -> Answer {
        self.call(method, "application/json", &[], request.to_string().as_bytes())
    }
}

fn frame(flags: u8, message: &[u8]) -> Vec<u8> {
    [&[flags][..], &u32::try_from(message.len()).unwrap().to_be_bytes(), message].concat()
}

fn frames(mut bytes: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut all = Vec::new();
    while let Some((head, rest)) = bytes.split_at_checked(5) {
        let length = u32::from_be_bytes(head[1..].try_into().unwrap()) as usize;
        all.push((head[0], rest[..length].to_vec()));
        bytes = &rest[length..];
    }
    assert!(bytes.is_empty(), "{bytes:?}");
    all
}

/// `ExecuteRequest{config{command: [...]}}`, encoded by hand.
fn execute_request(words: &[&str]) -> Vec<u8> {
    let command: Vec<u8> =
        words.iter().flat_map(|word| [&[0x0a, word.len() as u8][..], word.as_bytes()].concat()).collect();
    [&[0x0a, command.len() as u8][..], &command].concat()
}

/// `ExecuteResponse{stdout: "hi\n"}`, encoded by hand.
const SAID_HI: &[u8] = b"\x12\x03hi\n";

#[test]
fn connect_with_one_message() {
    require!(curl);
    let served = serve();
    let run = |words: &[&str]| served.connect_json("Execute", &json!({"config": {"command": words}}));
    let done = run(&["sh", "-c", "echo hi; exit 3"]);
    assert_eq!((done.status, done.header("content-type")), (200, Some("application/json")));
    assert_eq!(done.json(), json!({"exitCode": 3, "stdout": "aGkK", "stderr": ""}));
    let done = served.call("Execute", "application/proto", &[], &execute_request(&["echo", "hi"]));
    assert_eq!((done.status, done.body.as_slice()), (200, SAID_HI));
    for (request, status, code) in [
        (json!({}), 400, "invalid_argument"),
        (json!({"config": {"command": ["no-such-program"]}}), 404, "not_found"),
        (json!({"config": {"command": ["true"], "cwd": "../.."}}), 403, "permission_denied"),
        (json!({"config": 5}), 400, "invalid_argument"),
    ] {
        let failed = served.connect_json("Execute", &request);
        assert_eq!((failed.status, failed.json()["code"].as_str()), (status, Some(code)), "{request}");
        assert!(!failed.json()["message"].as_str().unwrap().is_empty());
    }
    let late = served.call(
        "Execute",
        "application/json",
        &["-H", "Connect-Timeout-Ms: 200"],
        br#"{"config":{"command":["sh","-c","sleep 82.5; true"]}}"#,
    );
    assert_eq!((late.status, late.json()["code"].as_str()), (504, Some("deadline_exceeded")));
    until("the command is gone", || !alive("sleep 82.5"));
    assert_eq!(served.connect_json("Nothing", &json!({})).status, 501);
    let listed = served.connect_json("List", &json!({}));
    assert_eq!(listed.json(), json!({"processes": []}));
    assert_eq!(served.call("Execute", "text/plain", &[], b"").status, 415);
    assert_eq!(
        served.call("Start", "application/json", &[], b"{}").status,
        415,
        "a stream is no single message"
    );
    let large =
        served.call("Execute", "application/json", &[], &vec![b' '; hutch_sandboxd::rpc::MESSAGE_LIMIT + 1]);
    assert_eq!((large.status, large.json()["code"].as_str()), (429, Some("resource_exhausted")));
}

#[test]
fn connect_with_a_stream() {
    require!(curl);
    let served = serve();
    let request = json!({"config": {"command": ["sh", "-c", "echo out; echo err >&2; exit 4"]}});
    for version in ["--http1.1", "--http2-prior-knowledge"] {
        let body = frame(0, request.to_string().as_bytes());
        let done = served.call("Start", "application/connect+json", &[version], &body);
        let events: Vec<(u8, Value)> = frames(&done.body)
            .into_iter()
            .map(|(flags, text)| (flags, serde_json::from_slice(&text).unwrap()))
            .collect();
        let (last, events) = events.split_last().unwrap();
        assert_eq!(last, &(2, json!({})));
        assert!(events[0].1["init"]["processId"].is_number(), "{events:?}");
        assert!(
            events.contains(&(0, json!({"stdout": "b3V0Cg=="})))
                && events.contains(&(0, json!({"stderr": "ZXJyCg=="})))
        );
        assert_eq!(events.last().unwrap().1, json!({"exit": {"exitCode": 4, "signal": 0}}));
    }
    let failed = served.call("Start", "application/connect+json", &[], &frame(0, b"{}"));
    assert_eq!(failed.status, 200, "the end frame contains the failure");
    let failed = frames(&failed.body);
    assert_eq!((failed.len(), failed[0].0), (1, 2));
    assert_eq!(serde_json::from_slice::<Value>(&failed[0].1).unwrap()["error"]["code"], "invalid_argument");
}

#[test]
fn grpc_web_works_in_binary_and_text() {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    require!(curl);
    let served = serve();
    let request = frame(0, &execute_request(&["echo", "hi"]));
    let done = served.call("Execute", "application/grpc-web+proto", &[], &request);
    assert_eq!((done.status, done.header("content-type")), (200, Some("application/grpc-web+proto")));
    assert_eq!(frames(&done.body), [(0, SAID_HI.to_vec()), (0x80, b"grpc-status: 0\r\n".to_vec())]);
    let done = served.call("Execute", "application/grpc-web-text", &[], STANDARD.encode(&request).as_bytes());
    // Each frame is encoded separately.
    let expected: String =
        [frame(0, SAID_HI), frame(0x80, b"grpc-status: 0\r\n")].iter().map(|f| STANDARD.encode(f)).collect();
    assert_eq!(done.text(), expected);
    let failed = served.call("Execute", "application/grpc-web", &[], &frame(0, b""));
    assert_eq!(
        (failed.header("grpc-status"), failed.header("grpc-message")),
        (Some("3"), Some("command is required"))
    );
}

#[test]
fn grpc_itself() {
    require!(curl);
    let served = serve();
    let request = frame(0, &execute_request(&["echo", "hi"]));
    let http2 = ["--http2-prior-knowledge"];
    let done = served.call("Execute", "application/grpc", &http2, &request);
    assert_eq!((done.status, done.header("content-type")), (200, Some("application/grpc")));
    assert_eq!(frames(&done.body), [(0, SAID_HI.to_vec())]);
    for (body, status) in [
        (frame(0, b""), "3"),
        (frame(1, b""), "12"),
        (frame(0, b"\xff"), "3"),
        (request[..7].to_vec(), "3"),
        (Vec::new(), "3"),
        ([0, 0xff, 0, 0, 0].to_vec(), "8"),
        ([request.clone(), request.clone()].concat(), "3"),
    ] {
        let failed = served.call("Execute", "application/grpc", &http2, &body);
        assert_eq!((failed.status, failed.header("grpc-status")), (200, Some(status)), "{body:?}");
    }
    // Refused by their headers alone. curl 7.88 waits for long when a response overtakes its upload, so it
    // uploads nothing here.
    let compressed =
        served.call("Execute", "application/grpc", &[http2[0], "-H", "grpc-encoding: gzip"], b"");
    assert_eq!(compressed.header("grpc-status"), Some("12"));
    let timed = served.call("Execute", "application/grpc", &[http2[0], "-H", "grpc-timeout: soon"], b"");
    assert_eq!(timed.header("grpc-status"), Some("3"));
}
