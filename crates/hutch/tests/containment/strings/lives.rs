//! Runs what the server accepted: each object lives until its Pod has an end or a reason, and is deleted.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use futures::{StreamExt, stream};
use http::Method;
use serde_json::{Value, json};

use super::api::{Api, CONCURRENT};
use super::cases::{CLAIM, CONFIG_MAP, Case, POD, SANDBOX, SANDBOX_CLAIM, SECRET, TEMPLATE, WARM_POOL};
use super::skeleton::Kind;
use crate::harness::WAIT_LIMIT;

/// Interval at which the objects of a batch are listed.
const PAUSE: Duration = Duration::from_secs(1);
/// Waiting reasons of a container that has yet to be tried.
const UNTRIED: [&str; 2] = ["ContainerCreating", "PodInitializing"];
/// Reasons of a condition behind which something is still to come.
const PASSING: [&str; 5] =
    ["DependenciesNotReady", "SandboxNotReady", "SandboxCreatePending", "AdoptionConflict", "Pending"];

/// An accepted object.
pub(super) struct Accepted<'a> {
    pub(super) case: &'a Case,
    pub(super) object: Value,
}

/// The objects that run: the accepted ones, or those that use them.
struct Running<'a> {
    case: &'a Case,
    kind: Kind,
    name: String,
    uid: String,
}

/// Results of accepted objects.
#[derive(Default)]
pub(super) struct Lives {
    /// Numbers of objects by their end.
    pub(super) ends: BTreeMap<String, usize>,
    pub(super) problems: Vec<String>,
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// Starts Pods and pools that use the accepted objects. Returns the objects whose end is awaited.
async fn start<'a>(api: &Api, accepted: &[Accepted<'a>]) -> Vec<Running<'a>> {
    let users = accepted.iter().map(async |Accepted { case, object }| {
        let (kind, made) = match user(case.kind, text(object, "/metadata/name")) {
            Some((kind, user)) => (kind, api.make(&kind, &user).await),
            None => (case.kind, object.clone()),
        };
        let (name, uid) = (text(&made, "/metadata/name").into(), text(&made, "/metadata/uid").into());
        Running { case, kind, name, uid }
    });
    stream::iter(users).buffered(CONCURRENT).collect().await
}

/// Returns an object that makes the node use one that is no Pod and becomes none by itself.
fn user(kind: Kind, name: &str) -> Option<(Kind, Value)> {
    let pod = match kind {
        CLAIM => carrier(json!({"persistentVolumeClaim": {"claimName": name}}), None),
        CONFIG_MAP => {
            carrier(json!({"configMap": {"name": name}}), Some(json!({"configMapRef": {"name": name}})))
        }
        SECRET => {
            carrier(json!({"secret": {"secretName": name}}), Some(json!({"secretRef": {"name": name}})))
        }
        TEMPLATE => {
            let mut pool = WARM_POOL.object("");
            pool["metadata"] = json!({"generateName": "user-"});
            pool["spec"] = json!({"replicas": 1, "sandboxTemplateRef": {"name": name}});
            return Some((WARM_POOL, pool));
        }
        _ => return None,
    };
    Some((POD, pod))
}

/// A Pod that mounts a volume and takes variables from where it says.
fn carrier(mut volume: Value, env: Option<Value>) -> Value {
    volume["name"] = "v".into();
    let script = "ls -lR /v; cat /v/*; env; echo x > /v/written; echo x >> /v/link; sleep 600";
    let mut container = json!({"name": "c", "image": "hutch/host", "command": ["sh", "-c", script],
        "volumeMounts": [{"name": "v", "mountPath": "/v"}]});
    if let Some(env) = env {
        container["envFrom"] = json!([env]);
    }
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "user-"},
        "spec": {"restartPolicy": "Never", "containers": [container], "volumes": [volume]}})
}

/// The state of the namespace.
struct Seen {
    pods: Vec<Value>,
    sandboxes: Vec<Value>,
    claims: Vec<Value>,
    /// Messages of warnings by the uid of the object.
    warnings: BTreeMap<String, String>,
}

impl Seen {
    async fn now(api: &Api, kinds: &BTreeSet<Kind>) -> Seen {
        let events = Kind { name: "Event", plural: "events", ..POD };
        let all = api.list(&events).await;
        let warnings = all.iter().filter(|event| event["type"] == "Warning");
        let warnings = warnings
            .map(|event| (text(event, "/involvedObject/uid").to_owned(), text(event, "/message").to_owned()));
        let derived = kinds.iter().any(|kind| *kind != POD);
        Seen {
            warnings: warnings.collect(),
            pods: api.list(&POD).await,
            sandboxes: if derived { api.list(&SANDBOX).await } else { Vec::new() },
            claims: if derived { api.list(&SANDBOX_CLAIM).await } else { Vec::new() },
        }
    }

    /// The end of what was started, if it has one.
    fn end(&self, of: &Running<'_>) -> Option<String> {
        let uid = of.uid.as_str();
        match of.kind {
            POD => match self.pods.iter().find(|pod| text(pod, "/metadata/uid") == uid) {
                Some(pod) => self.end_of_pod(pod),
                // The garbage collector deletes what names an owner that is not there.
                None => {
                    of.case.place.names().any(|name| name == "ownerReferences").then(|| "collected".into())
                }
            },
            SANDBOX => self.end_of_sandbox(uid),
            SANDBOX_CLAIM => match self.claims.iter().find(|claim| text(claim, "/metadata/uid") == uid) {
                Some(claim) => condition(claim).or_else(|| self.end_of_owned(uid)),
                None => Some("collected".into()),
            },
            _ => self.end_of_owned(uid),
        }
    }

    fn end_of_owned(&self, owner: &str) -> Option<String> {
        let sandbox = self.sandboxes.iter().find(|sandbox| owned(sandbox, owner))?;
        self.end_of_sandbox(text(sandbox, "/metadata/uid"))
    }

    fn end_of_sandbox(&self, uid: &str) -> Option<String> {
        let sandbox = self.sandboxes.iter().find(|sandbox| text(sandbox, "/metadata/uid") == uid);
        let Some(sandbox) = sandbox else { return Some("collected".into()) };
        let pod = self.pods.iter().find(|pod| owned(pod, uid));
        pod.and_then(|pod| self.end_of_pod(pod)).or_else(|| condition(sandbox))
    }

    fn end_of_pod(&self, pod: &Value) -> Option<String> {
        let node = text(pod, "/spec/nodeName");
        if node != "hutch" {
            return Some("for another node".into());
        }
        let phase = text(pod, "/status/phase");
        if matches!(phase, "Running" | "Succeeded" | "Failed") {
            return Some(phase.into());
        }
        let lists = ["/status/initContainerStatuses", "/status/containerStatuses"];
        let containers = lists.iter().filter_map(|list| pod.pointer(list)?.as_array()).flatten();
        let mut reasons = containers.map(|container| text(container, "/state/waiting/reason"));
        let tried = reasons.find(|reason| !reason.is_empty() && !UNTRIED.contains(reason));
        if let Some(reason) = tried {
            return Some(reason.into());
        }
        self.warnings.contains_key(text(pod, "/metadata/uid")).then(|| "Pending with an event".into())
    }
}

fn owned(object: &Value, owner: &str) -> bool {
    let owners = object["metadata"]["ownerReferences"].as_array().into_iter().flatten();
    owners.into_iter().any(|reference| reference["uid"] == owner)
}

/// The reason of the condition `Ready`, when it stays.
fn condition(object: &Value) -> Option<String> {
    let conditions = object["status"]["conditions"].as_array()?;
    let ready = conditions.iter().find(|condition| condition["type"] == "Ready")?;
    let (reason, message) = (text(ready, "/reason"), text(ready, "/message"));
    let stays = ready["status"] == "True" || !PASSING.contains(&reason) || message.contains("Error seen");
    stays.then(|| format!("{} {}: {reason}", text(object, "/kind"), text(ready, "/status")))
}

impl Lives {
    pub(super) fn add(&mut self, other: Lives) {
        for (end, count) in other.ends {
            *self.ends.entry(end).or_default() += count;
        }
        self.problems.extend(other.problems);
    }

    /// Runs the objects of a batch to their end and deletes them.
    pub(super) async fn run(&mut self, api: &Api, accepted: &[Accepted<'_>]) {
        let mut waiting = start(api, accepted).await;
        let kinds: BTreeSet<Kind> = waiting.iter().map(|running| running.kind).collect();
        let mut deleted: BTreeMap<Kind, Vec<String>> = BTreeMap::new();
        let started = Instant::now();
        while !waiting.is_empty() {
            let seen = Seen::now(api, &kinds).await;
            let late = started.elapsed() > WAIT_LIMIT;
            let mut left = Vec::new();
            for running in waiting {
                match seen.end(&running) {
                    Some(end) => *self.ends.entry(end).or_default() += 1,
                    None if late => self.problems.push(describe(&running, &seen)),
                    None => {
                        left.push(running);
                        continue;
                    }
                }
                deleted.entry(running.kind).or_default().push(running.name);
            }
            waiting = left;
            tokio::time::sleep(PAUSE).await;
        }
        for (kind, names) in &deleted {
            api.delete(kind, names).await;
        }
        if let Some(Accepted { case, .. }) =
            accepted.first().filter(|it| !deleted.contains_key(&it.case.kind))
        {
            let names = accepted.iter().map(|it| text(&it.object, "/metadata/name").to_owned());
            api.delete(&case.kind, &names.collect::<Vec<_>>()).await;
        }
        self.gone(api, accepted).await;
    }

    /// Waits until the objects of a batch and their Pods are gone.
    async fn gone(&mut self, api: &Api, accepted: &[Accepted<'_>]) {
        let uids: BTreeSet<&str> = accepted.iter().map(|it| text(&it.object, "/metadata/uid")).collect();
        let kinds: BTreeSet<Kind> = accepted.iter().map(|it| it.case.kind).chain([POD]).collect();
        let started = Instant::now();
        loop {
            let mut left = Vec::new();
            for kind in &kinds {
                for object in api.list(kind).await {
                    let user = text(&object, "/metadata/generateName") == "user-";
                    let uid = text(&object, "/metadata/uid");
                    if user || uids.iter().any(|known| *known == uid || owned(&object, known)) {
                        left.push(format!("{} {}", kind.name, object["metadata"]));
                    }
                }
            }
            if left.is_empty() {
                break;
            }
            if started.elapsed() > WAIT_LIMIT {
                self.problems.extend(left.into_iter().map(|object| format!("is not deleted: {object}")));
                break;
            }
            tokio::time::sleep(PAUSE).await;
        }
        let events = api.path(&Kind { name: "Event", plural: "events", ..POD });
        let (code, answer) = api.send(Method::DELETE, &events, None).await.expect("an answer");
        assert_eq!(code, 200, "{answer}");
    }
}

fn describe(running: &Running<'_>, seen: &Seen) -> String {
    let Running { case, name, uid, .. } = running;
    let objects = seen.pods.iter().chain(&seen.sandboxes).chain(&seen.claims);
    let objects = objects.filter(|object| text(object, "/metadata/uid") == uid || owned(object, uid));
    let states: Vec<String> =
        objects.map(|object| format!("{} {}", object["metadata"]["name"], object["status"])).collect();
    format!(
        "{} {} ({}): {name} has no end: {states:?} {:?}",
        case.kind.name,
        case.place,
        case.value,
        seen.warnings.get(uid)
    )
}
