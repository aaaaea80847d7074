//! Denials beside a rule that allows everything, and after the condition of a rule has ended.

use std::time::Duration;

use super::*;
use crate::sandbox::RECHECK;

const FLOOR: &str = r#"{"name": "all", AT},
    {"name": "tools", AT, "mcp": [{"tools": ["delete_*"], "decision": "Deny"}]}"#;

/// Regression: a body that could not be read in one way passed the rule that denies calls.
#[tokio::test]
async fn body_in_which_a_server_may_find_a_denied_call_is_refused() {
    let site = Site::new(FLOOR).await;
    let call = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"delete_x"}}"#;
    for body in [
        call.to_owned(),
        call.replace(r#""id""#, r#""method":"ping","id""#),
        call.replace(r#""method""#, r#""Method""#),
        call.replace(r#""jsonrpc":"2.0","#, ""),
        call.replace(r#""2.0""#, r#""1.0""#),
        format!("\u{feff}{call}"),
        format!("{call}\n{call}"),
        format!("[{}]", vec![call; 101].join(",")),
        call.chars().flat_map(|letter| [letter, '\0']).collect(),
    ] {
        let answer = site.post("/mcp", &body).await;
        assert!(answer.starts_with("HTTP/1.1 403"), "{body}: {answer}");
    }
    for body in [
        "",
        "a=b",
        r#"{"method":"card","amount":1}"#,
        "{\"a\":1}\n{\"b\":2}\n",
        &call.replace("delete", "search"),
    ] {
        let answer = site.post("/mcp", body).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{body}: {answer}");
    }
}

const WHILE_TRUSTED: &str = r#"{"name": "get", AT, "http": [{"methods": ["GET"], "paths": ["/free"]}]},
    {"name": "ws", AT, "http": [{"paths": ["/simple/**"], "websocket": true}, {"paths": ["/simple/slow"]}],
        "when": "session.denials == 0 && request.method != 'PUT'"}"#;

/// Regression: only requests that came later were refused, and another rule for the host kept everything open.
#[tokio::test]
async fn websocket_ends_when_the_condition_of_its_rule_no_longer_holds() {
    let site = Site::new(WHILE_TRUSTED).await;
    let mut stream = site.connect("http/1.1").await;
    stream.write_all(UPGRADE.replace("PORT", &site.port.to_string()).as_bytes()).await.unwrap();
    let mut head = vec![0; 512];
    let count = stream.read(&mut head).await.unwrap();
    assert!(head[..count].starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&head));
    // Longer than between two evaluations of the condition.
    tokio::time::sleep(RECHECK * 3 / 2).await;
    stream.write_all(b"frame").await.unwrap();
    let mut echoed = [0; 5];
    stream.read_exact(&mut echoed).await.unwrap();
    assert!(site.get("/other").await.starts_with("HTTP/1.1 403"));
    let end = tokio::time::timeout(Duration::from_secs(20), stream.read(&mut head)).await.unwrap();
    assert!(matches!(end, Ok(0) | Err(_)), "{end:?}");
    assert!(site.get("/free").await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn answer_ends_when_the_condition_of_its_rule_no_longer_holds() {
    let site = Site::new(WHILE_TRUSTED).await;
    let mut stream = site.connect("http/1.1").await;
    // The server sends the beginning of an answer, and no end.
    let request = format!("GET /simple/slow HTTP/1.1\r\nHost: localhost:{}\r\nX-Early: 1\r\n\r\n", site.port);
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = vec![0; 4096];
    assert!(stream.read(&mut answer).await.unwrap() > 0);
    while let Ok(read) = tokio::time::timeout(RECHECK * 3 / 2, stream.read(&mut answer)).await {
        assert!(read.unwrap() > 0, "the condition holds");
    }
    assert!(site.get("/other").await.starts_with("HTTP/1.1 403"));
    let end = async { while matches!(stream.read(&mut answer).await, Ok(1..)) {} };
    tokio::time::timeout(Duration::from_secs(20), end).await.expect("it ends");
}

#[tokio::test]
async fn request_that_is_still_sent_ends_when_the_condition_of_its_rule_no_longer_holds() {
    let site = Site::new(WHILE_TRUSTED).await;
    let mut stream = site.connect("http/1.1").await;
    let head = "Transfer-Encoding: chunked";
    let request = format!("POST /simple/slow HTTP/1.1\r\nHost: localhost:{}\r\n{head}\r\n\r\n", site.port);
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = vec![0; 4096];
    let mut send = async |time: Duration| {
        let end = tokio::time::Instant::now() + time;
        while tokio::time::Instant::now() < end {
            let _ = stream.write_all(b"3\r\nabc\r\n").await;
            let read = tokio::time::timeout(Duration::from_millis(100), stream.read(&mut answer)).await;
            if let Ok(read) = read {
                return Some(String::from_utf8_lossy(&answer[..read.unwrap_or_default()]).into_owned());
            }
        }
        None
    };
    assert_eq!(send(RECHECK * 3 / 2).await, None, "the condition holds");
    assert!(site.get("/other").await.starts_with("HTTP/1.1 403"));
    let answer = send(Duration::from_secs(20)).await.expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
}
