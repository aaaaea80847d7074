//! People, who make, change and delete things in any order.

use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use kube::Client;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::collector::send;
use crate::dice::Dice;
use crate::stage::Stage;

pub(crate) const EXTENSIONS: &str = "/apis/extensions.agents.x-k8s.io/v1beta1";
pub(crate) const AGENTS: &str = "/apis/agents.x-k8s.io/v1beta1";
/// Namespace in which things happen.
pub(crate) const HERE: &str = "default";
/// Namespace that is deleted.
pub(crate) const DOOMED: &str = "doomed";
const POOLS: u64 = 3;
const TEMPLATES: u64 = 2;
const CLAIMS: u64 = 12;
const SANDBOXES: u64 = 5;

pub(crate) struct User {
    pub(crate) client: Client,
    pub(crate) stage: Arc<Stage>,
    pub(crate) dice: Dice,
}

impl User {
    /// Creates the initial objects, including foreign ones under conflicting names.
    pub(crate) async fn set_up(&self) {
        for n in 0..TEMPLATES {
            self.template(HERE, &format!("t{n}")).await;
        }
        for n in 0..POOLS {
            self.pool(HERE, &format!("p{n}")).await;
        }
        self.template(DOOMED, "t0").await;
        self.pool(DOOMED, "p0").await;
        for n in 0..3 {
            self.claim(DOOMED, &format!("c{n}")).await;
        }
        self.sandbox(DOOMED, "s0").await;
        for (path, mut object) in strangers() {
            let (folder, name) = path.rsplit_once('/').unwrap();
            object["metadata"]["name"] = name.into();
            send(&self.client, "POST", folder, object).await.expect("a stranger's object is made");
        }
    }

    pub(crate) async fn act(&self, length: Duration) {
        let end = self.stage.elapsed() + length;
        let doom = self.stage.elapsed() + self.dice.ms(1_000..length.as_millis() as u64);
        let mut doomed = false;
        while self.stage.elapsed() < end {
            let rush = self.dice.chance(500);
            sleep(self.dice.ms(if rush { 1..100 } else { 100..3000 })).await;
            if !doomed && self.stage.elapsed() > doom {
                doomed = true;
                self.doom().await;
            }
            self.step().await;
        }
        if !doomed {
            self.doom().await;
        }
    }

    pub(crate) async fn doom(&self) {
        send(&self.client, "DELETE", &format!("/api/v1/namespaces/{DOOMED}"), Value::Null).await;
    }

    /// One claim.
    pub(crate) async fn claim_one(&self) {
        self.claim(HERE, "c0").await;
    }

    async fn step(&self) {
        let pool = || format!("{EXTENSIONS}/namespaces/{HERE}/sandboxwarmpools/p{}", self.dice.below(POOLS));
        let template = format!("t{}", self.dice.below(TEMPLATES));
        let claim = format!("c{}", self.dice.below(CLAIMS));
        match self.dice.below(100) {
            0..28 => self.claim(HERE, &claim).await,
            28..44 => self.delete(&format!("{EXTENSIONS}/namespaces/{HERE}/sandboxclaims/{claim}")).await,
            44..51 => self.sandbox(HERE, &format!("s{}", self.dice.below(SANDBOXES))).await,
            51..57 => self.on_any(AGENTS, "sandboxes", |path| self.boxed_delete(path)).await,
            57..66 => {
                let mode = if self.dice.chance(400) { "Suspended" } else { "Running" };
                let patch = json!({"spec": {"operatingMode": mode}});
                self.on_any(AGENTS, "sandboxes", |path| self.boxed_patch(path, patch)).await;
            }
            66..76 => self.patch(&pool(), json!({"spec": {"replicas": self.dice.below(6)}})).await,
            76..79 => self.delete(&pool()).await,
            79..82 => self.pool(HERE, &format!("p{}", self.dice.below(POOLS))).await,
            82..86 => {
                let path = format!("{EXTENSIONS}/namespaces/{HERE}/sandboxtemplates/{template}");
                self.patch(&path, json!({"spec": {"podTemplate": self.pod_template()}})).await;
            }
            86..88 => {
                self.delete(&format!("{EXTENSIONS}/namespaces/{HERE}/sandboxtemplates/{template}")).await;
            }
            88..92 => self.template(HERE, &template).await,
            92..98 => self.on_any("/api/v1", "pods", |path| self.boxed_delete(path)).await,
            _ => {
                let strategy = if self.dice.chance(500) { "Recreate" } else { "OnReplenish" };
                self.patch(&pool(), json!({"spec": {"updateStrategy": {"type": strategy}}})).await;
            }
        }
    }

    fn pod_template(&self) -> Value {
        let image = format!("hutch/host:{}", self.dice.below(3));
        json!({"spec": {"containers": [{"name": "c", "image": image}]}})
    }

    async fn template(&self, namespace: &str, name: &str) {
        let mut spec = json!({"podTemplate": self.pod_template(), "envVarsInjectionPolicy": "Overrides"});
        if self.dice.chance(300) {
            spec["service"] = true.into();
        }
        self.create(EXTENSIONS, namespace, ("SandboxTemplate", "sandboxtemplates"), name, spec).await;
    }

    async fn pool(&self, namespace: &str, name: &str) {
        let template = format!("t{}", if namespace == HERE { self.dice.below(TEMPLATES) } else { 0 });
        let spec = json!({"replicas": self.dice.below(5), "sandboxTemplateRef": {"name": template}});
        self.create(EXTENSIONS, namespace, ("SandboxWarmPool", "sandboxwarmpools"), name, spec).await;
    }

    async fn claim(&self, namespace: &str, name: &str) {
        let pool = if self.dice.chance(30) { "none".into() } else { format!("p{}", self.dice.below(POOLS)) };
        let mut spec = json!({"warmPoolRef": {"name": pool}});
        if self.dice.chance(150) {
            spec["env"] = json!([{"name": "A", "value": "b"}]);
        }
        if self.dice.chance(200) {
            let policy = self.dice.pick(&["Retain", "Delete", "DeleteForeground"]).unwrap();
            spec["lifecycle"] = json!({"shutdownTime": self.soon(), "shutdownPolicy": policy});
        }
        if self.dice.chance(100) {
            spec["additionalPodMetadata"] = json!({"annotations": {"sandbox.users.io/a": "b"}});
        }
        self.create(EXTENSIONS, namespace, ("SandboxClaim", "sandboxclaims"), name, spec).await;
    }

    async fn sandbox(&self, namespace: &str, name: &str) {
        let mut spec = json!({"podTemplate": self.pod_template()});
        if self.dice.chance(500) {
            spec["service"] = self.dice.chance(700).into();
        }
        if self.dice.chance(300) {
            let request =
                json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
            spec["volumeClaimTemplates"] = json!([{"metadata": {"name": "data"}, "spec": request}]);
        }
        if self.dice.chance(200) {
            let policy = self.dice.pick(&["Retain", "Delete"]).unwrap();
            (spec["shutdownTime"], spec["shutdownPolicy"]) = (self.soon().into(), json!(policy));
        }
        self.create(AGENTS, namespace, ("Sandbox", "sandboxes"), name, spec).await;
    }

    fn soon(&self) -> String {
        let wait = SignedDuration::try_from(self.dice.ms(1_000..60_000)).unwrap();
        (self.stage.now() + wait).strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
    }

    pub(crate) async fn create(
        &self,
        group: &str,
        namespace: &str,
        kind: (&str, &str),
        name: &str,
        spec: Value,
    ) {
        let version = group.trim_start_matches("/apis/");
        let object = json!({"apiVersion": version, "kind": kind.0, "metadata": {"name": name}, "spec": spec});
        send(&self.client, "POST", &format!("{group}/namespaces/{namespace}/{}", kind.1), object).await;
    }

    async fn on_any<F: Future<Output = ()>>(&self, group: &str, plural: &str, act: impl FnOnce(String) -> F) {
        let folder = format!("{group}/namespaces/{HERE}/{plural}");
        let list = send(&self.client, "GET", &folder, Value::Null).await.unwrap_or_default();
        let items = list["items"].as_array().cloned().unwrap_or_default();
        // What is a stranger's stays.
        let ours: Vec<_> = items.iter().filter(|item| !is_strangers(item)).collect();
        if let Some(name) = self.dice.pick(&ours).and_then(|item| item["metadata"]["name"].as_str()) {
            act(format!("{folder}/{name}")).await;
        }
    }

    async fn boxed_delete(&self, path: String) {
        self.delete(&path).await;
    }

    async fn boxed_patch(&self, path: String, patch: Value) {
        self.patch(&path, patch).await;
    }

    pub(crate) async fn delete(&self, path: &str) {
        let policy = if self.dice.chance(100) { "Foreground" } else { "Background" };
        send(&self.client, "DELETE", path, json!({"propagationPolicy": policy})).await;
    }

    pub(crate) async fn patch(&self, path: &str, patch: Value) {
        send(&self.client, "PATCH", path, patch).await;
    }
}

/// Foreign objects under names that the controllers would use. They must be unchanged in the end.
pub(crate) fn strangers() -> Vec<(String, Value)> {
    let owner =
        json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "x", "controller": true}]);
    let metadata = json!({"ownerReferences": owner, "labels": {"stranger": "true"}});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata,
        "spec": {"containers": [{"name": "c", "image": "hutch/host"}]}});
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata,
        "spec": {"ports": [{"port": 80}]}});
    let sandbox = json!({"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": metadata,
        "spec": {"podTemplate": {"spec": {"containers": [{"name": "c", "image": "hutch/host"}]}}}});
    let mut pooled = sandbox.clone();
    let hash = hutch_api::name_hash("p0");
    pooled["metadata"]["labels"]["agents.x-k8s.io/warm-pool-sandbox"] = hash.into();
    vec![
        (format!("/api/v1/namespaces/{HERE}/pods/s1"), pod),
        (format!("/api/v1/namespaces/{HERE}/services/s2"), service),
        (format!("{AGENTS}/namespaces/{HERE}/sandboxes/c1"), sandbox),
        (format!("{AGENTS}/namespaces/{HERE}/sandboxes/p0-stranger"), pooled),
    ]
}

pub(crate) fn is_strangers(object: &Value) -> bool {
    object["metadata"]["labels"]["stranger"] == "true"
}
