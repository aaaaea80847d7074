//! `/execute` of the real program: words, exit codes, limits, timeouts, and clients that disconnect.

use std::io::{BufReader, Write};

use hutch_testkit::wait::until;
use serde_json::json;

use crate::served::{alive, read_answer, serve, serve_with};

#[test]
fn a_command_runs_without_a_shell_in_the_base_folder() {
    let served = serve();
    let expected = json!({"stdout": "a  b $HOME *|\n", "stderr": "", "exit_code": 0, "timed_out": false});
    assert_eq!(served.execute("echo 'a  b' $HOME '*|'"), expected);
    assert_eq!(
        served.execute("pwd")["stdout"],
        format!("{}\n", served.app().canonicalize().unwrap().display())
    );
    let both = served.execute("sh -c 'echo out; echo err >&2; exit 3'");
    assert_eq!(both, json!({"stdout": "out\n", "stderr": "err\n", "exit_code": 3, "timed_out": false}));
    assert_eq!(served.execute("sh -c 'kill -9 $$'")["exit_code"], -9);
    assert_eq!(served.execute("cat")["exit_code"], 0, "standard input is empty");
    assert_eq!(served.execute("printf 'a\\r\\nb\\rc'")["stdout"], "a\nb\nc");
}

#[test]
fn unstartable_commands_fail_with_pythons_text() {
    let served = serve();
    for (command, text) in [
        ("no-such-program x", "[Errno 2] No such file or directory: 'no-such-program'"),
        ("./no/such", "[Errno 2] No such file or directory: './no/such'"),
        ("/etc/passwd", "[Errno 13] Permission denied: '/etc/passwd'"),
        ("/", "[Errno 13] Permission denied: '/'"),
        ("''", "[Errno 13] Permission denied: ''"),
        ("", "list index out of range"),
        ("echo 'x", "No closing quotation"),
        ("echo x\\", "No escaped character"),
        ("echo \0", "embedded null byte"),
        ("printf '\\377'", "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
    ] {
        let failed = served.execute(command);
        let expected = format!("Failed to execute command: {text}");
        assert_eq!(
            failed,
            json!({"stdout": "", "stderr": expected, "exit_code": 1, "timed_out": false}),
            "{command}"
        );
    }
    std::fs::remove_dir(served.app()).unwrap();
    let gone = served.execute("true");
    assert_eq!(gone["exit_code"], 1, "{gone}");
    assert!(gone["stderr"].as_str().unwrap().contains("[Errno 2] No such file or directory: '"), "{gone}");
}

#[test]
fn the_time_limit_ends_the_whole_group() {
    let served = serve_with(&[("SANDBOX_EXEC_TIMEOUT_SECONDS", "1")]);
    let ended = served.execute("sh -c 'sleep 61.25 & sleep 61.25'");
    let text = "Failed to execute command: Command '['sh', '-c', 'sleep 61.25 & sleep 61.25']' timed out after 1 seconds";
    assert_eq!(ended, json!({"stdout": "", "stderr": text, "exit_code": 1, "timed_out": true}));
    until("the sleepers are gone", || !alive("sleep 61.25"));
    let longer = served.execute_with(&json!({"command": "sleep 1.5", "timeout_seconds": 20}));
    assert_eq!(longer["exit_code"], 0, "{longer}");
    let shorter = served.execute_with(&json!({"command": "sleep 9", "timeout_seconds": 0.25}));
    assert_eq!(
        shorter["stderr"],
        "Failed to execute command: Command '['sleep', '9']' timed out after 0.25 seconds"
    );
    assert_eq!(shorter["timed_out"], true);
}

#[test]
fn output_is_bounded_and_truncation_is_marked() {
    let served = serve();
    let limit = hutch_sandboxd::process::OUTPUT_LIMIT;
    let many = served.execute("sh -c 'yes | head -c 9000000; echo end >&2'");
    let stdout = many["stdout"].as_str().unwrap();
    assert!(stdout.starts_with("y\ny\n"));
    let mark = format!("[output truncated: {} more bytes were not kept]\n", 9_000_000 - limit);
    assert!(stdout.ends_with(&mark), "{:?}", &stdout[stdout.len() - 80..]);
    assert_eq!((&many["stderr"], &many["exit_code"]), (&json!("end\n"), &json!(0)));
    let exact = served.execute(&format!("sh -c 'yes | head -c {limit}'"));
    assert_eq!(exact["stdout"].as_str().unwrap().len(), limit);
}

#[test]
fn a_command_whose_client_went_away_is_ended() {
    let served = serve();
    let body = r#"{"command":"sh -c 'sleep 62.5 & sleep 62.5'"}"#;
    let mut stream = served.connect();
    let head = "POST /execute HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: ";
    write!(stream, "{head}{}\r\n\r\n{body}", body.len()).unwrap();
    until("the command runs", || alive("sleep 62.5"));
    drop(stream);
    until("the command is gone", || !alive("sleep 62.5"));
    assert_eq!(served.execute("echo on")["stdout"], "on\n");
}

#[test]
fn a_shutdown_ends_running_commands() {
    let mut served = serve();
    let mut stream = served.connect();
    let body = r#"{"command":"sleep 63.75"}"#;
    let head = "POST /execute HTTP/1.1\r\nhost: x\r\ncontent-length: ";
    write!(stream, "{head}{}\r\n\r\n{body}", body.len()).unwrap();
    until("the command runs", || alive("sleep 63.75"));
    assert_eq!(served.stop().code(), Some(0));
    until("the command is gone", || !alive("sleep 63.75"));
}

#[test]
fn concurrent_and_pipelined_commands_succeed() {
    let served = serve();
    // Each waits for all others, so none ends when one runs after the other.
    let wait = "echo > begun-$0; until [ $(ls begun-* | wc -l) = 32 ]; do sleep 0.05; done; echo $0";
    std::thread::scope(|scope| {
        for number in 0..32 {
            let served = &served;
            scope.spawn(move || {
                let done = served.execute(&format!("sh -c '{wait}' {number}"));
                assert_eq!(done["stdout"], format!("{number}\n"));
            });
        }
    });
    let mut stream = BufReader::new(served.connect());
    let body = r#"{"command":"true"}"#;
    for _ in 0..300 {
        write!(
            stream.get_mut(),
            "POST /execute HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        assert_eq!(read_answer(&mut stream).json()["exit_code"], 0);
    }
}

#[test]
fn invalid_execute_requests_are_unprocessable() {
    let served = serve();
    let detail = |kind: &str, body: &str| {
        let answer = served.post("/execute", kind, body.as_bytes());
        assert_eq!(answer.status, 422, "{body}");
        answer.json()["detail"].clone()
    };
    let json = "application/json";
    assert_eq!(
        detail(json, r#"{"x":1}"#),
        json!([{"type": "missing", "loc": ["body", "command"], "msg": "Field required", "input": {"x": 1}}])
    );
    assert_eq!(
        detail(json, r#"{"command":5}"#),
        json!([{"type": "string_type", "loc": ["body", "command"], "msg": "Input should be a valid string", "input": 5}])
    );
    assert_eq!(
        detail(json, ""),
        json!([{"type": "missing", "loc": ["body"], "msg": "Field required", "input": null}])
    );
    let broken = detail(json, "{\"command\": }");
    assert_eq!((&broken[0]["type"], &broken[0]["loc"]), (&json!("json_invalid"), &json!(["body", 12])));
    assert_eq!(detail("text/plain", "x")[0]["type"], "model_attributes_type");
    let seconds = detail(json, r#"{"command":"a","timeout_seconds":-1}"#);
    assert_eq!((&seconds[0]["type"], &seconds[0]["ctx"]), (&json!("greater_than"), &json!({"gt": 0.0})));
    let large = served.post("/execute", json, &vec![b' '; hutch_sandboxd::legacy::JSON_LIMIT + 1]);
    assert_eq!(large.status, 413);
}
