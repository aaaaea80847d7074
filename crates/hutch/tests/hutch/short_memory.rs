//! Idle Sandboxes go to sleep before their time while the machine is short of memory.

use std::path::Path;

use serde_json::{Value, json};

use crate::harness::Up;
use crate::kept::{self, ROUTER, answer};

/// Sets the available memory in a file such as `/proc/meminfo`, which is mounted. The other figures are those of this machine.
fn set_available(file: &Path, mebibytes: u64) {
    let real = std::fs::read_to_string("/proc/meminfo").expect("/proc/meminfo");
    let line = |line: &str| match line.starts_with("MemAvailable:") {
        true => format!("MemAvailable: {} kB\n", mebibytes << 10),
        false => format!("{line}\n"),
    };
    std::fs::write(file, real.lines().map(line).collect::<String>()).expect("written");
}

fn sandbox(up: &Up, name: &str, annotations: Value) {
    let mut object = kept::object(name);
    object["metadata"]["annotations"] = annotations;
    kept::run(up, &object);
}

#[test]
fn idle_sandbox_is_suspended_with_its_memory_and_requests_wake_it() {
    hutch_testkit::require!(root, kubectl, runsc, python);
    let memory = tempfile::NamedTempFile::new().expect("a file");
    set_available(memory.path(), 4096);
    let up = Up::start_with_meminfo(memory.path(), &ROUTER);
    // Its processes would end.
    sandbox(&up, "files", json!({"hutch.dev/suspend-after": "1h"}));
    let keeps = json!({
        "hutch.dev/suspend-after": "1h", "hutch.dev/suspend-keeps": "memory", "hutch.dev/wake-on-connect": "true",
    });
    sandbox(&up, "s", keeps);
    assert_eq!((answer(&up, "files"), answer(&up, "s")), ("0".to_owned(), "0".to_owned()));

    set_available(memory.path(), 50);
    up.ok("wait --for=condition=Suspended sandbox/s --timeout=120s");
    let path = "jsonpath={.status.conditions[?(@.type==\"MemoryPressure\")].status}";
    assert_eq!(up.ok(&format!("get node hutch -o {path}")), "True");
    let events = "get events --field-selector reason=MemoryPressure,involvedObject.kind=Sandbox -o json";
    let events: Value =
        serde_json::from_str(&up.eventually(events, |text| text.contains("MiB"))).expect("JSON");
    let [event] = &events["items"].as_array().expect("a list")[..] else { panic!("{events:#}") };
    assert_eq!(event["involvedObject"]["name"], "s");
    let message = event["message"].as_str().unwrap_or_default();
    assert!(message.contains("50 MiB") && message.contains("suspended with its memory"), "{message}");

    // One restore for all; none is lost, and none finds new processes.
    let requests: Vec<_> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..8).map(|_| scope.spawn(|| answer(&up, "s"))).collect();
        all.into_iter().map(|one| one.join().expect("an answer")).collect()
    });
    let mut numbers: Vec<u32> = requests.iter().map(|body| body.parse().expect("a number")).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (1..9).collect::<Vec<_>>());
    set_available(memory.path(), 4096);
    assert_eq!(answer(&up, "files"), "1");
    up.eventually(&format!("get node hutch -o {path}"), |status| status == "False");
}
