//! Rules that hold once everything has come to rest.

use std::collections::BTreeMap;

use hutch_api::{Sandbox, SandboxClaim, SandboxTemplate, SandboxWarmPool};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::ListParams;
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::Value;

use crate::collector::{list, send};
use crate::user::{DOOMED, is_strangers, strangers};

/// Everything in the namespace where things happen.
struct Rest {
    sandboxes: Vec<Sandbox>,
    claims: Vec<SandboxClaim>,
    pools: Vec<SandboxWarmPool>,
    templates: Vec<SandboxTemplate>,
    pods: Vec<Pod>,
    wrong: Vec<String>,
}

async fn all<K>(client: &Client) -> Vec<K>
where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned,
{
    Api::<K>::default_namespaced(client.clone()).list(&ListParams::default()).await.expect("a list").items
}

/// Returns the violated rules.
pub(crate) async fn violations(client: &Client) -> Vec<String> {
    let mut rest = Rest {
        sandboxes: all(client).await,
        claims: all(client).await,
        pools: all(client).await,
        templates: all(client).await,
        pods: all(client).await,
        wrong: Vec::new(),
    };
    for (path, _) in strangers() {
        let there = send(client, "GET", &path, Value::Null).await;
        if !there.as_ref().is_some_and(|object| is_strangers(object) && is_untouched(object)) {
            rest.wrong.push(format!("{path} is foreign and was touched: {there:?}"));
        }
    }
    rest.pools();
    rest.claims();
    rest.sandboxes();
    if send(client, "GET", &format!("/api/v1/namespaces/{DOOMED}"), Value::Null).await.is_some() {
        let left: Vec<_> =
            list(client).await.into_iter().filter(|found| found.path.contains(DOOMED)).collect();
        let left: Vec<_> = left.iter().map(|found| &found.path).collect();
        rest.wrong.push(format!("the namespace that was deleted is still there, with {left:?}"));
    }
    rest.wrong
}

fn is_untouched(object: &Value) -> bool {
    let owners = object["metadata"]["ownerReferences"].as_array();
    object["metadata"]["deletionTimestamp"].is_null()
        && owners.is_some_and(|owners| owners.len() == 1 && owners[0]["kind"] == "ConfigMap")
}

fn ready(conditions: Option<&Vec<Condition>>) -> Option<&Condition> {
    conditions?.iter().find(|condition| condition.type_ == "Ready")
}

fn sandbox_ready(sandbox: &Sandbox) -> Option<&Condition> {
    ready(sandbox.status.as_ref()?.conditions.as_ref())
}

fn controls(owner: &impl ResourceExt, object: &impl ResourceExt) -> bool {
    object
        .owner_references()
        .iter()
        .any(|it| it.controller == Some(true) && Some(&it.uid) == owner.uid().as_ref())
}

impl Rest {
    fn pools(&mut self) {
        for pool in &self.pools {
            let name = pool.name_any();
            let members: Vec<_> = self.sandboxes.iter().filter(|sandbox| controls(pool, *sandbox)).collect();
            let wanted = usize::try_from(pool.spec.replicas.unwrap_or(1)).unwrap_or(0);
            let template = &pool.spec.sandbox_template_ref.name;
            let has_template = self.templates.iter().any(|known| known.name_any() == *template);
            if members.len() > wanted || has_template && members.len() != wanted {
                self.wrong.push(format!("pool {name} has {} members of {wanted}", members.len()));
            }
            let good =
                members.iter().filter(|it| sandbox_ready(it).is_some_and(|it| it.status == "True")).count();
            // A count of none is left out.
            let count = |told: Option<i32>| usize::try_from(told.unwrap_or(0)).unwrap_or(usize::MAX);
            let told =
                pool.status.as_ref().map(|status| (count(status.replicas), count(status.ready_replicas)));
            if told != Some((members.len(), good)) {
                let members = members.len();
                self.wrong.push(format!("pool {name} says {told:?} of {members} members, {good} Ready"));
            }
        }
    }

    fn claims(&mut self) {
        let by_name: BTreeMap<_, _> = self.pools.iter().map(|pool| (pool.name_any(), pool)).collect();
        for claim in &self.claims {
            let name = claim.name_any();
            let told = ready(claim.status.as_ref().and_then(|status| status.conditions.as_ref()));
            let says = told.map(|told| (told.status.as_str(), told.reason.as_str()));
            if says.is_some_and(|(_, reason)| reason == "ClaimExpired") && claim.spec.lifecycle.is_some() {
                continue;
            }
            let owned: Vec<_> = self.sandboxes.iter().filter(|sandbox| controls(claim, *sandbox)).collect();
            match owned.as_slice() {
                [sandbox] => {
                    let wanted = sandbox_ready(sandbox).map(|ready| ready.status.as_str());
                    // Metadata for its Pod needs the template for as long as the claim requests it.
                    let lost = says.is_some_and(|(_, reason)| reason.ends_with("NotFound"));
                    let wishes = claim.spec.additional_pod_metadata.is_some();
                    if says.map(|(status, _)| status) != wanted && !(lost && wishes) {
                        self.wrong.push(format!("claim {name} says {says:?}, its Sandbox {wanted:?}"));
                    }
                }
                [] => {
                    let pool = by_name.get(&claim.spec.warm_pool_ref.name);
                    let template = pool.map(|pool| &pool.spec.sandbox_template_ref.name);
                    let met = self.templates.iter().any(|known| Some(&known.name_any()) == template);
                    let blocked = self.sandboxes.iter().any(|sandbox| sandbox.name_any() == name);
                    if met && !blocked {
                        self.wrong.push(format!("claim {name} has no Sandbox and says {told:?}"));
                    }
                }
                several => self.wrong.push(format!("claim {name} has {} Sandboxes", several.len())),
            }
        }
    }

    fn sandboxes(&mut self) {
        for sandbox in &self.sandboxes {
            let name = sandbox.name_any();
            let pods: Vec<_> = self.pods.iter().filter(|pod| controls(sandbox, *pod)).collect();
            let told = sandbox_ready(sandbox);
            let says = told.map(|told| (told.status.as_str(), told.reason.as_str()));
            let suspended = sandbox.spec.operating_mode == Some(hutch_api::OperatingMode::Suspended);
            let ended = says.is_some_and(|(_, reason)| reason == "SandboxExpired");
            let phase = |pod: &&Pod| pod.status.as_ref().and_then(|status| status.phase.clone());
            // s1 has a stranger's Pod in the way, s2 a stranger's Service.
            let blocked = name == "s1" || name == "s2" && sandbox.spec.service != Some(false);
            let right = match (pods.as_slice(), says) {
                ([], Some((status, _))) => (suspended || ended || blocked) && status == "False",
                ([pod], Some((status, _))) if !suspended && !ended => {
                    (status == "True") == (phase(pod).as_deref() == Some("Running") && !blocked)
                }
                _ => false,
            };
            if !right {
                let phases: Vec<_> = pods.iter().map(phase).collect();
                self.wrong.push(format!("Sandbox {name} says {told:?}, its Pods {phases:?}"));
            }
        }
        for pod in self.pods.iter().filter(|pod| !pod.labels().contains_key("stranger")) {
            if !self.sandboxes.iter().any(|sandbox| controls(sandbox, pod)) {
                self.wrong.push(format!("Pod {} belongs to no Sandbox", pod.name_any()));
            }
        }
    }
}
