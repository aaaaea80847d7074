//! A front that is no longer ours: what it sends over the channel of the kubelet contract, and what its API server says.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::middleware::{self, Next};
use futures::StreamExt;
use hutch_apiserver::{ApiServer, Identity};
use hutch_kubelet::{ExecRequest, Kubelet};
use hutch_privsep::{Channel, RemoteKubelet};
use k8s_openapi::api::core::v1::{ConfigMap, Event, Pod};
use kube::Api;
use kube::api::{DeleteParams, ListParams};
use serde_json::{Value, json};

use crate::machine::{Machine, id};

/// Values of a hostile front, in place of a name.
fn hostile(planted: &Path) -> Vec<String> {
    let file = planted.join("file").display().to_string();
    vec![
        file.clone(),
        format!("../../../../../../../..{file}"),
        "..".into(),
        ".".into(),
        "/".into(),
        String::new(),
        "a/../../b".into(),
        "a\0b".into(),
        "a\nb".into(),
        "a".repeat(300),
        "-".into(),
    ]
}

/// Parts of every request, in the form of the wire: the Pod and the action.
fn requests(uid: &str, value: &str) -> Vec<Value> {
    let exec = |container: &str, program: &str| json!({"container": container, "command": [program], "stdin": true, "stdout": true, "stderr": true, "tty": false});
    let logs = |container: &str| {
        json!({"container": container, "follow": false, "tail_lines": null, "since_seconds": null, "timestamps": false,
               "limit_bytes": null, "previous": false})
    };
    let mut previous = logs(value);
    previous["previous"] = true.into();
    let mut terminal = exec(value, "true");
    terminal["tty"] = true.into();
    let wanted = [
        json!({"Exec": exec(value, "true")}),
        json!({"Exec": terminal}),
        json!({"Attach": exec(value, "true")}),
        json!({"Logs": logs(value)}),
        json!({"Logs": previous}),
    ];
    let pods = [("default", "p", uid), (value, "p", uid), ("default", value, uid)];
    let mut all = Vec::new();
    for (namespace, name, uid) in pods {
        let pod = json!({"namespace": namespace, "name": name, "uid": uid});
        all.extend(wanted.iter().map(|what| json!({"pod": pod, "what": what})));
    }
    // A Pod that does not run here.
    let pod = json!({"namespace": "default", "name": "p", "uid": value});
    for what in [
        json!({"Exec": exec("main", "true")}),
        json!({"Connect": 1}),
        json!("Hold"),
        json!({"Logs": logs("main")}),
    ] {
        all.push(json!({"pod": pod, "what": what}));
    }
    all
}

/// Descriptors of this process, by what they are.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[tokio::test(flavor = "multi_thread")]
async fn request_with_a_foreign_name_opens_nothing() {
    hutch_testkit::require!(root);
    let dir = tempfile::tempdir().unwrap();
    let planted = tempfile::tempdir().unwrap();
    std::fs::write(planted.path().join("file"), "planted").unwrap();
    let machine = Machine::start(dir.path()).await;
    machine.run("p", "exec sleep 1000", json!({})).await;
    let pod = machine.phase("p", "Running").await;
    let uid = id(&pod).uid;
    let (front, root) = hutch_privsep::pair().unwrap();
    let served = tokio::spawn(hutch_privsep::serve(root, machine.process()));
    let front = Channel::new(front).unwrap();
    let before = descriptors();
    let file = std::fs::File::open(planted.path().join("file")).unwrap();
    let mut number = 0_u64;
    for value in hostile(planted.path()) {
        for mut request in requests(&uid, &value) {
            number += 1;
            request["number"] = number.into();
            // Descriptors come with each: the node takes none.
            front
                .send(&json!({"Request": request}), &[file.as_fd(), front_end(&file).as_fd()])
                .await
                .unwrap();
            let answer = front.receive().await.unwrap().expect("an answer");
            let decoded: Value = answer.decode().unwrap();
            assert_eq!(decoded["number"], number, "{request}");
            assert!(decoded["result"]["Err"].is_object(), "{request}: {decoded}");
            assert!(answer.descriptors.is_empty(), "{request}");
        }
    }
    // Ports that nothing listens on, and 0.
    for port in [0, 1, 65535] {
        let pod = json!({"namespace": "default", "name": "p", "uid": uid});
        let request = json!({"number": 0, "pod": pod, "what": {"Connect": port}});
        front.send(&json!({"Request": request}), &[]).await.unwrap();
        let answer: Value = front.receive().await.unwrap().expect("an answer").decode().unwrap();
        assert!(answer["result"]["Err"].is_object(), "{port}: {answer}");
    }
    drop(file);
    assert!(number > 150, "{number}");
    // Those of the last requests are closed by tasks of their own.
    for _ in 0..6000 {
        if descriptors() <= before + 1 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(descriptors() <= before + 1, "{before} descriptors before, {} after", descriptors());
    assert_eq!(std::fs::read_to_string(planted.path().join("file")).unwrap(), "planted");
    // Reports about connections that were never opened.
    for number in [0, 1, u64::MAX] {
        front.send(&json!({"Active": number}), &[]).await.unwrap();
        front.send(&json!({"Closed": number}), &[]).await.unwrap();
    }
    // Bytes that are no request end the channel, and nothing else.
    front.send(&json!({"number": 1, "pod": {}, "what": "Everything"}), &[]).await.unwrap();
    assert!(served.await.unwrap().is_err());
    assert_eq!(machine.exec(&pod, &["echo", "still here"]).await.1, "still here\n");
    machine.stop().await;
}

fn front_end(file: &std::fs::File) -> OwnedFd {
    file.as_fd().try_clone_to_owned().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn front_that_closes_its_descriptors_ends_what_it_started() {
    hutch_testkit::require!(root);
    let dir = tempfile::tempdir().unwrap();
    let machine = Machine::start(dir.path()).await;
    machine.run("p", "exec sleep 1000", json!({})).await;
    let pod = machine.phase("p", "Running").await;
    let (front, root) = hutch_privsep::pair().unwrap();
    let served = tokio::spawn(hutch_privsep::serve(root, machine.process()));
    let front = RemoteKubelet::new(front, []).unwrap();
    let request =
        ExecRequest { command: vec!["sleep".into(), "777".into()], stdout: true, ..ExecRequest::default() };
    let session = front.exec(&id(&pod), request).await.unwrap();
    let count =
        async || machine.exec(&pod, &["sh", "-c", "pgrep -fx 'sleep 777' | wc -l"]).await.1.trim().to_owned();
    for _ in 0..500 {
        if count().await == "1" {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(count().await, "1");
    drop((session, front));
    served.await.unwrap().unwrap();
    for _ in 0..500 {
        if count().await == "0" {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(count().await, "0");
    machine.stop().await;
}

/// Texts that the front's API server sends in place of the true ones, by the text that they replace.
type Lies = Arc<Mutex<BTreeMap<String, String>>>;

/// Replaces texts in all answers. A watch is changed event by event.
async fn lie(lies: Lies, request: Request, next: Next) -> axum::response::Response {
    let (head, body) = next.run(request).await.into_parts();
    let replaced = body.into_data_stream().map(move |piece| {
        piece.map(|piece| {
            let mut text = String::from_utf8_lossy(&piece).into_owned();
            for (truth, lie) in &*lies.lock().unwrap() {
                let lie = serde_json::to_string(lie).unwrap();
                text = text.replace(truth, lie.trim_matches('"'));
            }
            Bytes::from(text)
        })
    });
    let mut response = axum::response::Response::from_parts(head, Body::from_stream(replaced));
    response.headers_mut().remove(http::header::CONTENT_LENGTH);
    response
}

/// A Pod in which each name that the node makes something of can be replaced.
fn pod(number: usize) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": format!("lie-{number}")}, "spec": {
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "truth-container", "image": "hutch/host", "command": ["sh", "-c",
            "for m in /d /k; do echo x > $m/written; cat $m/*; done; sleep 1000"],
            "volumeMounts": [{"name": "truth-volume", "mountPath": "/d"},
                             {"name": "truth-keys", "mountPath": "/k", "subPath": "truth-sub"}],
            "envFrom": [{"configMapRef": {"name": "truth-map"}}]}],
        "volumes": [{"name": "truth-volume", "emptyDir": {}},
            {"name": "truth-keys", "configMap": {"name": "truth-map", "items": [{"key": "truth-key", "path": "truth-path"}]}}],
    }})
}

const TRUTHS: [&str; 7] =
    ["truth-container", "truth-volume", "truth-keys", "truth-sub", "truth-map", "truth-key\"", "truth-path"];

#[tokio::test(flavor = "multi_thread")]
async fn api_server_that_lies_harms_nothing_of_the_host() {
    hutch_testkit::require!(root);
    let dir = tempfile::tempdir().unwrap();
    let planted = tempfile::tempdir().unwrap();
    std::fs::create_dir(planted.path().join("file")).unwrap();
    std::fs::write(planted.path().join("file/inner"), "planted").unwrap();
    let config = hutch_apiserver::Config {
        data: None,
        default_node: Some("hutch".into()),
        address: "127.0.0.1:0".into(),
        ..hutch_apiserver::Config::default()
    };
    let server = ApiServer::open(config).await.unwrap();
    let lies = Lies::default();
    let layer = {
        let lies = lies.clone();
        middleware::from_fn(move |request: Request, next: Next| lie(lies.clone(), request, next))
    };
    let app: Router = server.router_as(Identity::admin()).layer(layer);
    let node_client = hutch_serve::memory::client(app, "default");
    let machine = Machine::start_with_client(server, node_client, dir.path(), |_| {}).await;
    let _: ConfigMap = machine
        .create(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "truth-map"},
                       "data": {"truth-key": "content"}}))
        .await;
    let before = looks(planted.path());
    let mut number = 0;
    for value in hostile(planted.path()) {
        for truth in TRUTHS {
            number += 1;
            let uid_lies = number % 10 == 0;
            let created: Pod = {
                lies.lock().unwrap().clear();
                let text = truth.trim_end_matches('"');
                lies.lock().unwrap().insert(text.to_owned(), value.clone());
                machine.create(pod(number)).await
            };
            if uid_lies {
                lies.lock().unwrap().insert(id(&created).uid, value.clone());
            }
            tokio::time::sleep(Duration::from_millis(60)).await;
            let name = created.metadata.name.unwrap();
            let parameters = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
            machine.pods().delete(&name, &parameters).await.unwrap();
        }
    }
    lies.lock().unwrap().clear();
    assert!(number > 70, "{number}");
    assert_eq!(looks(planted.path()), before);
    // The node has read them, and refused each kind by name.
    let events: Api<Event> = Api::default_namespaced(machine.client.clone());
    let events = events.list(&ListParams::default()).await.unwrap().items;
    let refused: Vec<String> = events.into_iter().filter_map(|event| event.message).collect();
    for what in
        ["spec.containers.name", "spec.volumes.name", "is not a path within", "must lie within", "not found"]
    {
        assert!(refused.iter().any(|message| message.contains(what)), "{what}: {refused:#?}");
    }
    // The node still runs Pods whose objects are true.
    machine.run("honest", "exec sleep 1000", json!({})).await;
    machine.phase("honest", "Running").await;
    machine.stop().await;
    assert_eq!(looks(planted.path()), before);
}

/// Names, contents and modes below a folder.
fn looks(folder: &Path) -> Vec<String> {
    use std::os::unix::fs::MetadataExt;
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let facts = entry.metadata().unwrap();
        let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
        found.push(format!(
            "{} {:o} {} {} {text}",
            entry.path().display(),
            facts.mode(),
            facts.uid(),
            facts.mtime_nsec()
        ));
        if facts.is_dir() {
            found.extend(looks(&entry.path()));
        }
    }
    found.sort();
    found
}
