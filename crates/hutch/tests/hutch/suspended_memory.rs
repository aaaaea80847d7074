//! Sandboxes that are suspended with their memory: the same processes run on after a resume.

use hutch_testkit::wait::until;
use serde_json::{Value, json};

use crate::harness::{Up, succeeded, text};
use crate::kept::{self, answer, images, resume, set, snapshots, start, suspend};

fn sandbox(up: &Up, name: &str) {
    kept::run(up, &kept::object(name));
}

#[test]
fn processes_run_on_after_a_suspend_that_keeps_memory() {
    hutch_testkit::require!(root, kubectl, runsc);
    let up = start();
    sandbox(&up, "s");
    assert_eq!(answer(&up, "s"), "0");
    for round in 0..3_u32 {
        up.ok_args(&[
            "exec",
            "s",
            "--",
            "sh",
            "-c",
            &format!("echo {round} > /tmp/round; ln -sf /tmp/round /l"),
        ]);
        suspend(&up, "s");
        assert!(up.ok("get pods -o name").is_empty());
        let [snapshot] = &snapshots(&up)[..] else { panic!("one snapshot") };
        assert_eq!(snapshot["status"]["conditions"][0]["reason"], "Completed", "{snapshot:#}");
        assert_eq!(images(&up).len(), 1);
        resume(&up, "s");
        // The same process, its open file, its volume, and what another process has written.
        assert_eq!(answer(&up, "s"), (round + 1).to_string());
        let read = up.ok("exec s -- cat /tmp/log /scratch/last /l");
        let log: String = (0..=round + 1).map(|number| number.to_string()).collect();
        assert_eq!(read, format!("{log}{}{round}\n", round + 1));
        until("the snapshot is used up", || snapshots(&up).is_empty() && images(&up).is_empty());
        let events = up.ok("get events -o json");
        assert!(!events.contains("RestoreFailed"), "{events}");
    }
    // A further suspend that keeps files ends the processes.
    up.ok("annotate sandbox s hutch.dev/suspend-keeps=files --overwrite");
    suspend(&up, "s");
    assert!(snapshots(&up).is_empty());
    resume(&up, "s");
    assert_eq!(answer(&up, "s"), "0");
    up.ok("delete sandbox s");
}

#[test]
fn request_wakes_an_idle_sandbox_from_its_memory() {
    hutch_testkit::require!(root, kubectl, runsc);
    let up = start();
    sandbox(&up, "s");
    assert_eq!(answer(&up, "s"), "0");
    up.ok("annotate sandbox s hutch.dev/suspend-after=1s hutch.dev/wake-on-connect=true");
    for expected in ["1", "2"] {
        up.ok("wait --for=condition=Suspended sandbox/s --timeout=120s");
        let requests: Vec<_> = std::thread::scope(|scope| {
            let all: Vec<_> = (0..8).map(|_| scope.spawn(|| answer(&up, "s"))).collect();
            all.into_iter().map(|one| one.join().expect("an answer")).collect()
        });
        // One restore for all of them; none is lost, and none finds new processes.
        let mut numbers: Vec<u32> = requests.iter().map(|body| body.parse().expect("a number")).collect();
        numbers.sort_unstable();
        let first = expected.parse::<u32>().expect("a number") * 8 - 7;
        assert_eq!(numbers, (first..first + 8).collect::<Vec<_>>());
    }
}

#[test]
fn request_that_arrives_while_memory_is_written_is_answered_by_the_same_process() {
    hutch_testkit::require!(root, kubectl, runsc);
    let up = start();
    sandbox(&up, "s");
    up.ok("annotate sandbox s hutch.dev/suspend-after=1s hutch.dev/wake-on-connect=true");
    for number in 0..5_u32 {
        // At other moments of the suspend each time: its begin, when its snapshot appears, and later ones.
        std::thread::sleep(std::time::Duration::from_millis(u64::from(number) * 60));
        assert_eq!(answer(&up, "s"), number.to_string());
        let mode = "get sandbox s -o jsonpath={.spec.operatingMode}";
        up.eventually(mode, |mode| mode == "Suspended");
        if number % 2 == 1 {
            until("a snapshot", || !snapshots(&up).is_empty());
        }
    }
    assert_eq!(answer(&up, "s"), "5");
}

#[test]
fn suspended_memory_outlives_the_death_of_the_node() {
    hutch_testkit::require!(root, kubectl, runsc);
    let mut up = start();
    sandbox(&up, "s");
    assert_eq!(answer(&up, "s"), "0");
    suspend(&up, "s");
    up.kill();
    up.restart();
    assert_eq!(images(&up).len(), 1);
    resume(&up, "s");
    assert_eq!(answer(&up, "s"), "1");
}

#[test]
fn changed_image_is_refused_and_the_sandbox_does_not_start_without_its_memory() {
    hutch_testkit::require!(root, kubectl, runsc);
    let up = start();
    sandbox(&up, "s");
    assert_eq!(answer(&up, "s"), "0");
    suspend(&up, "s");
    let memory = images(&up)[0].join("memory/main");
    let pages = memory.join("pages.img");
    let whole = std::fs::read(&pages).expect("pages");
    let mut changed = whole.clone();
    let middle = changed.len() / 2;
    changed[middle] ^= 1;
    std::fs::write(&pages, &changed).expect("written");
    set(&up, "s", "Running");
    let told = up.eventually("get events -o json", |events| events.contains("RestoreFailed"));
    assert!(told.contains("pages.img"), "{told}");
    let pod: Value = serde_json::from_str(&up.ok("get pod s -o json")).expect("JSON");
    let state = &pod["status"]["containerStatuses"][0]["state"];
    assert_eq!(state["waiting"]["reason"], "RestoreFailed", "{state:#}");
    // Its image stays, and is restored once it is whole again.
    suspend(&up, "s");
    assert_eq!((snapshots(&up).len(), images(&up).len()), (1, 1));
    std::fs::write(&pages, &whole).expect("written");
    resume(&up, "s");
    assert_eq!(answer(&up, "s"), "1");
}

#[test]
fn native_sandbox_whose_memory_cannot_be_kept_is_not_suspended() {
    hutch_testkit::require!(root, kubectl);
    let up = start();
    let object = json!({
        "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox",
        "metadata": {"name": "n", "annotations": {"hutch.dev/suspend-keeps": "memory"}},
        "spec": {"podTemplate": {"spec": {"containers": [
            {"name": "main", "image": "hutch/host", "command": ["sleep", "infinity"]}]}}},
    });
    let file = up.folder().join("n.json");
    std::fs::write(&file, object.to_string()).expect("written");
    up.ok(&format!("apply -f {}", file.display()));
    up.ok("wait --for=condition=Ready sandbox/n --timeout=60s");
    up.ok("exec n -- touch /tmp/mark");
    set(&up, "n", "Suspended");
    let path = "jsonpath={.status.conditions[?(@.type==\"Ready\")].message}";
    let said =
        up.eventually(&format!("get sandbox n -o {path}"), |said| said.contains("memory cannot be kept"));
    assert!(said.contains("runtimeClassName: gvisor"), "{said}");
    // The command ends with the reason, and does not wait.
    let command = std::process::Command::new(crate::harness::binary())
        .args(["suspend", "n", "--memory"])
        .env("KUBECONFIG", up.kubeconfig())
        .output()
        .expect("hutch suspend");
    let said = text(&command.stderr);
    assert_eq!(command.status.code(), Some(1), "{said}");
    assert!(said.contains("memory cannot be kept") && said.contains("hutch.dev/suspend-keeps"), "{said}");
    // It runs as before, and is suspended once its memory is given up.
    set(&up, "n", "Running");
    up.ok("wait --for=condition=Ready sandbox/n --timeout=60s");
    up.ok("exec n -- test -e /tmp/mark");
    let refused = up.kubectl("annotate sandbox n hutch.dev/suspend-keeps=everything --overwrite");
    assert!(text(&refused.stderr).contains("hutch.dev/suspend-keeps"), "{}", text(&refused.stderr));
    succeeded("annotate", &up.kubectl("annotate sandbox n hutch.dev/suspend-keeps=files --overwrite"));
    suspend(&up, "n");
}

#[test]
fn memory_that_cannot_be_restored_is_given_up_in_the_documented_ways() {
    hutch_testkit::require!(root, kubectl, runsc);
    let up = start();
    for (name, keep_files) in [("files", true), ("deleted", false)] {
        sandbox(&up, name);
        assert_eq!(answer(&up, name), "0");
        suspend(&up, name);
        let uid = up.ok(&format!("get sandbox {name} -o jsonpath={{.metadata.uid}}"));
        // What decides whether the memory is found cannot be changed from outside.
        let owned = json!({"metadata": {"ownerReferences": null}}).to_string();
        let snapshot = format!("suspend-{uid}");
        let refused = up.kubectl_args(&["patch", "sandboxsnapshot", &snapshot, "--type=merge", "-p", &owned]);
        assert!(text(&refused.stderr).contains("the server's own"), "{}", text(&refused.stderr));
        std::fs::write(images(&up)[0].join("memory/main/pages.img"), "changed").expect("written");
        set(&up, name, "Running");
        let path = "jsonpath={.status.containerStatuses[0].state.waiting.reason}";
        up.eventually(&format!("get pod {name} -o {path}"), |reason| reason == "RestoreFailed");
        if keep_files {
            up.ok(&format!("annotate sandbox {name} hutch.dev/suspend-keeps=files --overwrite"));
            suspend(&up, name);
            resume(&up, name);
        } else {
            up.ok(&format!("delete sandboxsnapshot {snapshot}"));
            up.eventually(&format!("get pod {name} -o {path}"), str::is_empty);
            up.ok(&format!("wait --for=condition=Ready sandbox/{name} --timeout=120s"));
        }
        assert_eq!(answer(&up, name), "0");
        until("no image is left", || images(&up).is_empty());
    }
}
