use std::time::{Duration, UNIX_EPOCH};

use proptest::prelude::*;
use serde_json::Value;

use super::*;

const BOX: Sandbox<'static> = Sandbox { namespace: "team", name: "box", uid: Some("u-1") };

fn now() -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(1_700_000_000_123)
}

/// Events of all kinds, with texts of which the test decides.
fn events(text: &str) -> Vec<Event> {
    let groups = [text.to_owned(), "b".to_owned()];
    let principal = Principal { name: text, uid: Some("p-1"), groups: &groups };
    let rule = Rule { level: Some(text), rule: Some(text) };
    let verdict = Verdict { decision: Decision::Denied, rule, reason: Some(text), success: Some(false) };
    let arguments = [text.to_owned(), text.to_owned()];
    let unsent = [(text.to_owned(), 2)];
    let mut events = vec![
        Event::connection(
            now(),
            &Connection {
                sandbox: BOX,
                activity: ConnectionActivity::Refuse,
                host: text,
                address: Some([1, 2, 3, 4].into()),
                port: Some(443),
                traffic: Some((u64::MAX >> 1, 2)),
                count: Some(2),
                verdict,
            },
        ),
        Event::unidentified(now(), &Unidentified { source: [10, 0, 0, 7].into(), verdict }),
        Event::lookup(now(), &Lookup { sandbox: BOX, name: text, kind: Some("A"), code: 3, verdict }),
        Event::file(
            now(),
            &FileAccess {
                sandbox: BOX,
                principal,
                activity: FileActivity::Open,
                path: text,
                is_folder: true,
                size: Some(7),
                verdict,
            },
        ),
        Event::exec(
            now(),
            &Exec { sandbox: BOX, container: Some("c"), principal, uid: "x", arguments: &arguments, verdict },
        ),
        Event::exit(
            now(),
            &Exit {
                sandbox: BOX,
                container: None,
                principal,
                uid: "x",
                arguments: &arguments,
                code: Some(-1),
                failure: Some(text),
            },
        ),
        Event::lifecycle(
            now(),
            &Lifecycle {
                sandbox: BOX,
                container: "c",
                uid: "x",
                change: Change::Ended,
                planned: false,
                code: None,
                reason: Some(text),
            },
        ),
        Event::credential(now(), &CredentialUse { sandbox: BOX, credential: text, host: text, verdict }),
        Event::approval(now(), &Approval { sandbox: BOX, principal, request: text, verdict }),
        Event::finding(
            now(),
            &Finding {
                door: Some(text),
                count: Some(2),
                sandbox: BOX,
                rule: text,
                title: text,
                place: text,
                digest: Some([1; 8]),
                severity: Severity::Critical,
                verdict,
            },
        ),
    ];
    for method in ["CONNECT", "GET", "PATCH", "get", text] {
        let calls = vec![text.to_owned(); 20];
        let request = Request {
            sandbox: BOX,
            method,
            host: text,
            port: None,
            path: text,
            calls: &calls,
            status: Some(200),
            verdict,
        };
        events.push(Event::request(now(), &request));
        let routed = Routed {
            principal,
            source: Some([1, 2, 3, 4].into()),
            sandbox: Some(BOX),
            port: Some(8888),
            method,
            path: text,
            user_agent: Some(text),
            status: Some(200),
            count: Some(2),
            verdict,
        };
        events.push(Event::routed(now(), &routed));
        events.push(Event::routed(now(), &Routed { source: None, sandbox: None, port: None, ..routed }));
    }
    for (verb, resource, name) in [
        ("create", "pods/exec", text),
        ("list", "pods", ""),
        ("patch", "pods", text),
        ("impersonate", "users", text),
        ("get", "", ""),
    ] {
        let call = ApiCall {
            principal,
            impersonator: Some(text),
            verb,
            group: text,
            resource,
            namespace: text,
            name,
            path: Some(text),
            method: Some("POST"),
            user_agent: Some(text),
            source: None,
            uid: Some(text),
            status: Some(403),
            count: None,
            sandbox: Some(BOX),
            claim: Some(Claim { namespace: text, name: text }),
            annotations: &[],
            verdict,
        };
        events.push(Event::api(now(), &call));
        let minimal =
            ApiCall { source: Some([1, 2, 3, 4].into()), path: None, uid: None, sandbox: None, ..call };
        events.push(Event::api(now(), &minimal));
    }
    for what in [
        LogEvent::Opened,
        LogEvent::Closed,
        LogEvent::Torn { segment: text, bytes: 7 },
        LogEvent::Damaged { segment: text },
        LogEvent::Missing { first: 1, last: 2 },
        LogEvent::Lost { records: 3 },
        LogEvent::Removed { first: 1, last: 2, why: Removal::HardBound, unsent: &unsent },
        LogEvent::Head { statement: "hutch-audit-head-v1 1", signature: "ab" },
    ] {
        events.push(Event::log(now(), &what));
    }
    events
}

/// Names, types and numbers of the published schema.
struct Schema(Value);

impl Schema {
    fn read() -> Schema {
        let text = include_str!("../../fixtures/ocsf-1.8.0.json");
        Schema(serde_json::from_str(text).unwrap())
    }

    /// Returns what an event has wrong.
    fn faults(&self, event: &Value) -> Vec<String> {
        let mut faults = Vec::new();
        let class = event["class_uid"].as_u64().unwrap();
        self.object(&self.0["classes"][class.to_string()], event, "", &mut faults);
        if event["type_uid"].as_u64() != Some(class * 100 + event["activity_id"].as_u64().unwrap()) {
            faults.push("type_uid".to_owned());
        }
        if event["metadata"]["version"] != self.0["version"] {
            faults.push("metadata.version".to_owned());
        }
        faults
    }

    fn object(&self, definition: &Value, value: &Value, at: &str, faults: &mut Vec<String>) {
        let Some(attributes) = definition["attributes"].as_object() else {
            faults.push(format!("{at}: no definition"));
            return;
        };
        for (name, attribute) in attributes {
            if attribute["required"] == true && value.get(name).is_none() {
                faults.push(format!("{at}.{name} is missing"));
            }
        }
        let one = definition["at_least_one"].as_array().unwrap();
        if !one.is_empty() && !one.iter().any(|name| value.get(name.as_str().unwrap()).is_some()) {
            faults.push(format!("{at}: none of {one:?}"));
        }
        for (name, value) in value.as_object().unwrap() {
            let at = format!("{at}.{name}");
            match attributes.get(name) {
                None => faults.push(format!("{at} is unknown")),
                Some(attribute) if attribute["array"] == true => match value.as_array() {
                    Some(values) => {
                        values.iter().for_each(|value| self.attribute(attribute, value, &at, faults))
                    }
                    None => faults.push(format!("{at} is not an array")),
                },
                Some(attribute) => self.attribute(attribute, value, &at, faults),
            }
        }
    }

    fn attribute(&self, attribute: &Value, value: &Value, at: &str, faults: &mut Vec<String>) {
        let kind = attribute["type"].as_str().unwrap();
        let fits = match kind {
            "integer_t" => value.as_i64().is_some_and(|number| i32::try_from(number).is_ok()),
            "long_t" | "timestamp_t" => value.as_i64().is_some(),
            "port_t" => value.as_u64().is_some_and(|port| port <= 65535),
            "boolean_t" => value.is_boolean(),
            "json_t" => true,
            "ip_t" => value.as_str().is_some_and(|ip| ip.parse::<std::net::IpAddr>().is_ok()),
            "object" => value.is_object(),
            text if text.ends_with("_t") => value.is_string(),
            object => {
                match value.is_object() {
                    true => self.object(&self.0["objects"][object], value, at, faults),
                    false => faults.push(format!("{at} is not an object")),
                }
                true
            }
        };
        if !fits {
            faults.push(format!("{at}: {value} is not a {kind}"));
        }
        let numbers = attribute["enum"].as_array();
        if numbers.is_some_and(|numbers| !numbers.contains(value)) {
            faults.push(format!("{at}: {value} is not one of the schema"));
        }
    }
}

#[test]
fn events_of_all_kinds_are_valid_by_the_published_schema() {
    let schema = Schema::read();
    let mut kinds = std::collections::BTreeSet::new();
    for event in events("a.example") {
        let value: Value = serde_json::from_slice(event.record().as_bytes()).unwrap();
        assert_eq!(schema.faults(&value), [""; 0], "{value:#}");
        kinds.insert(value["metadata"]["event_code"].as_str().unwrap().to_owned());
    }
    assert_eq!(kinds.len(), Kind::ALL.len(), "{kinds:?}");
}

#[test]
fn schema_test_finds_faults() {
    let schema = Schema::read();
    let event: Value = serde_json::from_slice(events("a")[0].record().as_bytes()).unwrap();
    let changed = |path: &[&str], value: Value| {
        let mut event = event.clone();
        let (last, path) = path.split_last().unwrap();
        path.iter().fold(&mut event, |value, name| &mut value[*name])[*last] = value;
        schema.faults(&event).len()
    };
    assert_eq!(changed(&["time"], 5.into()), 0);
    for (path, value) in [
        (&["time"][..], "now".into()),
        (&["activity_id"], 8.into()),
        (&["severity_id"], 7.into()),
        (&["unknown"], 1.into()),
        (&["metadata", "version"], "1.7.0".into()),
        (&["dst_endpoint", "ip"], "x".into()),
        (&["dst_endpoint", "port"], 70_000.into()),
        (&["policy"], serde_json::json!({})),
        (&["metadata", "tags"], "x".into()),
    ] {
        assert!(changed(path, value) > 0, "{path:?}");
    }
}

#[test]
fn untrusted_text_is_one_short_line_and_stays_valid() {
    let schema = Schema::read();
    for text in [
        "\u{1b}[2J\n\"\\\u{202e}\0".repeat(20_000),
        "\"".repeat(100_000),
        "\u{10ffff}".repeat(50_000),
        String::new(),
    ] {
        for event in events(&text) {
            let record = event.record();
            assert!(record.as_bytes().len() <= EVENT_MAX, "{}", record.as_bytes().len());
            assert!(!record.as_bytes().iter().any(|byte| *byte < b' '));
            let value: Value = serde_json::from_slice(record.as_bytes()).unwrap();
            assert_eq!(schema.faults(&value), [""; 0], "{value:#}");
            assert_eq!(Record::from_bytes(record.as_bytes().to_vec()).unwrap(), record);
        }
    }
}

#[test]
fn decisions_have_the_numbers_of_the_profile() {
    let ids = |decision| {
        let verdict = Verdict { success: Some(true), ..Verdict::of(decision) };
        let used = CredentialUse { sandbox: BOX, credential: "c", host: "h", verdict };
        let event = Event::credential(now(), &used).record();
        let value: Value = serde_json::from_slice(event.as_bytes()).unwrap();
        (value["action_id"].as_u64().unwrap(), value["disposition_id"].as_u64().unwrap())
    };
    assert_eq!(ids(Decision::Allowed), (1, 1));
    assert_eq!(ids(Decision::Denied), (2, 2));
    assert_eq!(ids(Decision::Observed), (3, 17));
    assert_eq!(ids(Decision::Modified), (4, 11));
    assert_eq!(ids(Decision::Held), (2, 14));
    assert_eq!(ids(Decision::Approved), (1, 8));
    assert_eq!(ids(Decision::Alerted), (3, 19));
    assert_eq!(ids(Decision::Reset), (2, 21));
}

#[test]
fn secrets_of_commands_paths_and_findings_are_not_recorded() {
    let principal = Principal { name: "me", ..Principal::default() };
    let arguments =
        ["env", "API_KEY=hunter2", "curl", "-H", "Authorization: Bearer hunter2"].map(str::to_owned);
    let verdict = Verdict::of(Decision::Allowed);
    let exec = Exec { sandbox: BOX, container: None, principal, uid: "x", arguments: &arguments, verdict };
    let request = Request {
        sandbox: BOX,
        method: "GET",
        host: "a.example",
        port: None,
        path: "/a?token=hunter2",
        calls: &[],
        status: None,
        verdict,
    };
    for event in [Event::exec(now(), &exec), Event::request(now(), &request)] {
        let record = event.record();
        assert!(!String::from_utf8_lossy(record.as_bytes()).contains("hunter2"), "{event:?}");
    }
}

#[test]
fn bytes_of_another_process_must_be_one_event() {
    let event = |text: &str| Record::from_bytes(text.as_bytes().to_vec());
    assert!(event(r#"{"class_uid":1,"time":2,"metadata":{}}"#).is_ok());
    for wrong in [
        "",
        "{}",
        "[1]",
        "{\"class_uid\":1,\"time\":2,\n\"metadata\":{}}",
        r#"{"class_uid":1,"time":2,"metadata":{}}x"#,
        r#"{"class_uid":1,"time":2,"metadata":{}},{}"#,
        r#"{"class_uid":"1","time":2,"metadata":{}}"#,
    ] {
        assert!(event(wrong).is_err(), "{wrong}");
    }
    let long = format!(r#"{{"class_uid":1,"time":2,"metadata":{{}},"x":"{}"}}"#, "x".repeat(EVENT_MAX));
    assert!(event(&long).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn any_text_makes_valid_events(text in "\\PC{0,40}|.{0,2000}") {
        let schema = Schema::read();
        for event in events(&text) {
            let value: Value = serde_json::from_slice(event.record().as_bytes()).unwrap();
            prop_assert_eq!(schema.faults(&value), [""; 0]);
        }
    }
}
