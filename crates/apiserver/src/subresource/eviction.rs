//! Eviction of Pods: a deletion that PodDisruptionBudgets allow.
//!
//! The controllers count the healthy Pods of a budget and write how many may be disrupted. Each eviction takes one of these,
//! in one write of the budget's status, before the Pod is deleted.

use axum::response::Response;
use bytes::Bytes;
use http::StatusCode;
use hutch_store::{Error, Page};
use serde_json::{Value, json};

use super::pod::success;
use crate::call::Call;
use crate::failure::Failure;
use crate::kinds::Kind;
use crate::ownership::Ownership;
use crate::selector::LabelSelector;
use crate::verbs::delete::{self, Options};
use crate::verbs::modify::{Part, modify};
use crate::{body, meta};

/// Collection of the budgets.
const BUDGETS: &str = "poddisruptionbudgets.policy";
/// Maximum tries after conflicts.
const TRIES: usize = 16;
/// Maximum Pods of a budget that are being evicted and that the controllers have not counted yet.
const DISRUPTED: usize = 2000;
/// Seconds after which a client tries again while a budget is counted.
const RETRY_AFTER: u64 = 10;

/// Evicts the Pod that the call names.
pub(crate) async fn evict(call: &Call, bytes: &Bytes, media_type: &str) -> Result<Response, Failure> {
    let eviction = if bytes.is_empty() { Value::Null } else { body::decode(bytes, media_type)?.value };
    let named = meta::text(&eviction, "name");
    if !named.is_empty() && named != call.name {
        return Err(Failure::bad_request("name in URL does not match name in Eviction object"));
    }
    let options = eviction.get("deleteOptions").map(Value::to_string).unwrap_or_default();
    let options = Options::of(call, &options.into(), "application/json")?;
    for _ in 0..TRIES {
        if let Some(outcome) = attempt(call, &options, &pod(call)?).await {
            return outcome.map(|()| success(StatusCode::CREATED));
        }
    }
    Err(Failure::modified(call.kind(), &call.name))
}

/// Evicts the Pod as it was read. `None` if it has changed meanwhile, so that another decision is due.
async fn attempt(call: &Call, options: &Options, pod: &Value) -> Option<Result<(), Failure>> {
    // Before a budget pays for it.
    if let Err(failure) = delete::preconditions(call, &call.name, pod, options) {
        return Some(Err(failure));
    }
    // Another Pod of that name is not the one that was read.
    let options = options.only(meta::text(pod, "uid"));
    let phase = pod["status"]["phase"].as_str().unwrap_or_default();
    let is_over = matches!(phase, "Succeeded" | "Failed") || meta::is_terminating(pod);
    if !is_over && phase != "Pending" {
        return Some(evict_running(call, &options, pod).await);
    }
    let pinned = if is_over { options.clone() } else { pinned(&options, pod) };
    match remove(call, &pinned).await {
        Err(failure) if failure.is("Conflict") && !options.names_revision() => None,
        other => Some(other),
    }
}

fn pod(call: &Call) -> Result<Value, Failure> {
    let entry = call.store.latest(&call.resource.collection, &call.key(&call.name));
    entry.map(|entry| entry.value.value()).ok_or_else(|| Failure::not_found(call.kind(), &call.name))
}

fn at(options: &Options, pod: &Value) -> Options {
    options.at(meta::text(pod, "resourceVersion"))
}

/// The options for the Pod as it was read, unless the client names a revision.
fn pinned(options: &Options, pod: &Value) -> Options {
    if options.names_revision() { options.clone() } else { at(options, pod) }
}

async fn evict_running(call: &Call, options: &Options, pod: &Value) -> Result<(), Failure> {
    let budgets = budgets_of(call, pod);
    let Some((key, name, budget)) = budgets.first() else { return remove(call, options).await };
    if budgets.len() > 1 {
        let why = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
        return Err(Failure::unexplained(why));
    }
    if !is_ready(pod) && takes_nothing(budget) {
        return match remove(call, &pinned(options, pod)).await {
            // It may have become ready.
            Err(failure) if failure.is("Conflict") && !options.names_revision() => Err(uncounted(name)),
            other => other,
        };
    }
    take_one(call, key, name, options.dry_run).await?;
    remove(call, options).await
}

/// Returns key, name and content of the budgets that select the Pod.
fn budgets_of(call: &Call, pod: &Value) -> Vec<(String, String, Value)> {
    let prefix = call.prefix();
    let entries = call.store.list(BUDGETS, Page { prefix: &prefix, ..Page::default() }).entries;
    let all = entries.iter().map(|entry| (entry.name.clone(), entry.value.value()));
    let selecting = all.filter(|(_, budget)| {
        let selector = Some(&budget["spec"]["selector"]).filter(|selector| selector.is_object());
        selector
            .and_then(|selector| LabelSelector::from_object(selector).ok())
            .is_some_and(|s| s.matches(pod))
    });
    selecting.map(|(key, budget)| (key.to_string(), meta::text(&budget, "name").to_owned(), budget)).collect()
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    conditions.into_iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

/// Returns true if the eviction of a Pod that is not ready costs the budget nothing.
fn takes_nothing(budget: &Value) -> bool {
    let count = |field: &str| budget["status"][field].as_i64().unwrap_or(0);
    budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
        || (count("currentHealthy") >= count("desiredHealthy") && count("desiredHealthy") > 0)
}

fn uncounted(name: &str) -> Failure {
    let why = format!("The disruption budget {name} is still being processed by the server.");
    Failure::disrupts(why, RETRY_AFTER)
}

/// Takes one of the disruptions that a budget allows.
async fn take_one(call: &Call, key: &str, name: &str, dry_run: bool) -> Result<(), Failure> {
    let kind = Kind { group: "policy".into(), plural: "poddisruptionbudgets".into(), ..Kind::default() };
    for _ in 0..TRIES {
        // A budget that is deleted meanwhile bounds nothing.
        let Some(entry) = call.store.latest(BUDGETS, key) else { return Ok(()) };
        let mut budget = entry.value.value();
        check(&kind, name, &budget)?;
        if dry_run {
            return Ok(());
        }
        let now = call.core.ambient.now();
        let allowed = budget["status"]["disruptionsAllowed"].as_i64().unwrap_or(0) - 1;
        budget["status"]["disruptionsAllowed"] = allowed.into();
        if !budget["status"]["disruptedPods"].is_object() {
            budget["status"]["disruptedPods"] = json!({});
        }
        budget["status"]["disruptedPods"][&call.name] = meta::seconds(now).into();
        if allowed == 0 {
            exhaust(&mut budget["status"], &meta::seconds(now));
        }
        match call.store.update(BUDGETS, key, entry.revision, budget).await {
            Ok(_) => return Ok(()),
            Err(Error::Conflict { .. }) => {}
            Err(error) => return Err(Failure::of_store(error, &kind, name)),
        }
    }
    Err(uncounted(name))
}

/// Checks that a budget has been counted and allows a disruption.
fn check(kind: &Kind, name: &str, budget: &Value) -> Result<(), Failure> {
    let status = &budget["status"];
    let count = |field: &str| status[field].as_i64().unwrap_or(0);
    if count("observedGeneration") < budget["metadata"]["generation"].as_i64().unwrap_or(0) {
        return Err(uncounted(name));
    }
    if count("disruptionsAllowed") < 0 {
        return Err(Failure::forbidden(kind, name, "pdb disruptions allowed is negative", Vec::new()));
    }
    if status["disruptedPods"].as_object().is_some_and(|pods| pods.len() > DISRUPTED) {
        let why = "DisruptedPods map too big - too many evictions not confirmed by PDB controller";
        return Err(Failure::forbidden(kind, name, why, Vec::new()));
    }
    if count("disruptionsAllowed") > 0 {
        return Ok(());
    }
    let (healthy, desired) = (count("currentHealthy"), count("desiredHealthy"));
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let condition =
        conditions.into_iter().find(|one| one["type"] == "DisruptionAllowed" && one["status"] == "False");
    let text = |field: &str| condition.and_then(|one| one[field].as_str()).unwrap_or_default();
    let (reason, message) = (text("reason"), text("message"));
    let why = if reason == "SyncFailed" && !message.is_empty() {
        format!(
            "The disruption budget {name} does not allow evicting pods currently because it failed sync: {message}"
        )
    } else if healthy <= desired {
        format!("The disruption budget {name} needs {desired} healthy pods and has {healthy} currently")
    } else if message.is_empty() {
        format!("The disruption budget {name} does not allow evicting pods currently")
    } else {
        format!("The disruption budget {name} does not allow evicting pods currently ({reason}): {message}")
    };
    Err(Failure::disrupts(why, 0))
}

/// Sets the condition of a budget of which nothing is left.
fn exhaust(status: &mut Value, now: &str) {
    let condition = json!({
        "type": "DisruptionAllowed", "status": "False", "reason": "InsufficientPods", "message": "",
        "observedGeneration": status["observedGeneration"], "lastTransitionTime": now,
    });
    let mut conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    conditions.retain(|one| one["type"] != "DisruptionAllowed");
    conditions.push(condition);
    status["conditions"] = conditions.into();
}

/// Deletes the Pod, with the condition of an eviction.
async fn remove(call: &Call, options: &Options) -> Result<(), Failure> {
    let mut options = options.clone();
    if !options.dry_run {
        let entry = modify(call, Part::Server, Ownership::Settled, &mut |pod| {
            delete::preconditions(call, &call.name, pod, &options)?;
            Ok(targeted(pod, &meta::seconds(call.core.ambient.now())))
        })
        .await?;
        if options.names_revision() {
            options = at(&options, &entry.value.value());
        }
    }
    delete::remove_admitted(call, &call.name, &options, None).await.map(drop)
}

fn targeted(pod: &Value, now: &str) -> Value {
    let mut next = pod.clone();
    meta::metadata(&mut next).remove("resourceVersion");
    let mut conditions = next["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let is_target = |condition: &Value| condition["type"] == "DisruptionTarget";
    let before = conditions.iter().find(|one| is_target(one) && one["status"] == "True");
    let since = before.map_or_else(|| now.into(), |before| before["lastTransitionTime"].clone());
    conditions.retain(|condition| !is_target(condition));
    conditions.push(json!({
        "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
        "message": "Eviction API: evicting", "lastProbeTime": null, "lastTransitionTime": since,
    }));
    next["status"]["conditions"] = conditions.into();
    next
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accept::Form;
    use crate::call::{Caller, Target};
    use crate::query::Query;
    use crate::{ApiServer, Config};

    /// An eviction of the Pod `p`.
    fn call(server: &ApiServer) -> Call {
        let path = "api/v1/namespaces/default/pods/p/eviction";
        let target = Target::of(path, &server.core().registry.served()).unwrap();
        Call::new(server.core().clone(), Caller::admin(), &target, Query::default(), Form::Json)
    }

    /// Stores the running Pod `p`.
    async fn store_pod(call: &Call, uid: &str) -> Value {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": "p", "namespace": "default", "uid": uid, "labels": { "a": "b" } },
            "spec": { "terminationGracePeriodSeconds": 0, "containers": [] },
            "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] },
        });
        call.store.create(&call.resource.collection, &call.key("p"), pod).await.unwrap();
        super::pod(call).unwrap()
    }

    /// Stores a budget that allows one disruption.
    async fn store_budget(call: &Call) {
        let budget = json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
            "metadata": { "name": "b", "namespace": "default", "generation": 1 },
            "spec": { "minAvailable": 0, "selector": { "matchLabels": { "a": "b" } } },
            "status": { "observedGeneration": 1, "disruptionsAllowed": 1, "currentHealthy": 1, "desiredHealthy": 0 },
        });
        call.store.create(BUDGETS, &call.key("b"), budget).await.unwrap();
    }

    fn allowed(call: &Call) -> i64 {
        let budget = call.store.latest(BUDGETS, &call.key("b")).unwrap().value.value();
        budget["status"]["disruptionsAllowed"].as_i64().unwrap()
    }

    #[tokio::test]
    async fn eviction_with_a_precondition_that_fails_takes_no_disruption() {
        let server = ApiServer::open(Config::default()).await.unwrap();
        let call = call(&server);
        let pod = store_pod(&call, "1").await;
        store_budget(&call).await;
        let evict = async |preconditions: Value| {
            let body = json!({ "deleteOptions": { "preconditions": preconditions } }).to_string();
            super::evict(&call, &body.into(), "application/json").await
        };
        for wrong in [json!({ "uid": "2" }), json!({ "resourceVersion": "1" })] {
            let failure = evict(wrong).await.unwrap_err();
            assert_eq!(failure.reason, "Conflict");
            assert_eq!(allowed(&call), 1);
        }
        evict(json!({ "uid": "1", "resourceVersion": meta::text(&pod, "resourceVersion") })).await.unwrap();
        assert_eq!(allowed(&call), 0);
        assert!(super::pod(&call).is_err());
    }

    #[tokio::test]
    async fn eviction_does_not_delete_a_namesake_of_its_pod() {
        let server = ApiServer::open(Config::default()).await.unwrap();
        let call = call(&server);
        let first = store_pod(&call, "1").await;
        delete::remove(&call, "p", &Options::default()).await.unwrap();
        store_pod(&call, "2").await;
        let failure = attempt(&call, &Options::default(), &first).await.unwrap().unwrap_err();
        assert_eq!(failure.reason, "Conflict");
        let second = super::pod(&call).unwrap();
        assert!(!meta::is_terminating(&second) && second["status"]["conditions"][1].is_null(), "{second}");
    }

    #[test]
    fn refusal_names_the_healthy_pods_that_a_budget_needs() {
        let refused = |status: Value| {
            let budget = json!({ "metadata": { "generation": 1 }, "status": status });
            check(&Kind::default(), "b", &budget).err().map(|failure| {
                let status = failure.status();
                let details = &status["details"];
                (
                    details["causes"][0]["message"].as_str().unwrap_or_default().to_owned(),
                    details["retryAfterSeconds"].clone(),
                )
            })
        };
        let counted = |allowed: i64, healthy: i64, desired: i64| json!({ "observedGeneration": 1, "disruptionsAllowed": allowed, "currentHealthy": healthy, "desiredHealthy": desired });
        assert_eq!(refused(counted(1, 3, 2)), None);
        let why = "The disruption budget b needs 2 healthy pods and has 1 currently";
        assert_eq!(refused(counted(0, 1, 2)), Some((why.to_owned(), Value::Null)));
        let why = "The disruption budget b is still being processed by the server.";
        assert_eq!(refused(json!({})), Some((why.to_owned(), 10.into())));
        let mut failed = counted(0, 0, 0);
        failed["conditions"] = json!([{ "type": "DisruptionAllowed", "status": "False", "reason": "SyncFailed", "message": "m" }]);
        let why = "The disruption budget b does not allow evicting pods currently because it failed sync: m";
        assert_eq!(refused(failed), Some((why.to_owned(), Value::Null)));
    }

    #[test]
    fn pod_that_is_not_ready_costs_nothing_by_policy_or_while_the_budget_holds() {
        let budget = |policy: &str, healthy: i64, desired: i64| json!({ "spec": { "unhealthyPodEvictionPolicy": policy }, "status": { "currentHealthy": healthy, "desiredHealthy": desired } });
        assert!(takes_nothing(&budget("AlwaysAllow", 0, 2)));
        assert!(takes_nothing(&budget("IfHealthyBudget", 2, 2)));
        assert!(!takes_nothing(&budget("IfHealthyBudget", 1, 2)));
        assert!(!takes_nothing(&budget("IfHealthyBudget", 0, 0)));
    }
}
