//! Documents of `hutch policy test`: policies, and cases for them.

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod hostile;

use std::collections::BTreeMap;
use std::num::NonZeroU16;
use std::sync::Arc;

use anyhow::{Context, ensure};
use hutch_policy::{
    Authority, Call, Decision, Facts, Identity, Kind, Level, Policies, PolicyObject, StoredPolicy, Subject,
    applying, check_given,
};
use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::policy::import::{in_one_line, object};

/// Kind of a document with cases.
pub(super) const KIND: &str = "PolicyTest";
/// Namespace of policies for tests that name no sandbox.
const NAMESPACE: &str = "default";

/// Cases for policies.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct PolicyTest {
    #[serde(rename = "apiVersion")]
    _api_version: ApiVersion,
    #[serde(rename = "kind")]
    _kind: Value,
    #[serde(default, rename = "metadata")]
    _metadata: Value,
    /// The sandbox. Without it, all policies apply.
    pub(super) sandbox: Option<TestSandbox>,
    pub(super) cases: Vec<Case>,
}

#[derive(Deserialize)]
enum ApiVersion {
    #[serde(rename = "policy.hutch.dev/v1alpha1")]
    V1alpha1,
}

/// Sandbox that connects.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct TestSandbox {
    name: String,
    namespace: Option<String>,
    namespace_labels: BTreeMap<String, String>,
    labels: BTreeMap<String, String>,
    template: Option<String>,
    task: BTreeMap<String, String>,
    user: Option<String>,
}

/// A destination or a request, and what is expected.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Case {
    pub(super) name: String,
    pub(super) url: Option<String>,
    pub(super) host: Option<String>,
    pub(super) sandbox: Option<OtherSandbox>,
    pub(super) method: Option<String>,
    #[serde(default)]
    pub(super) headers: BTreeMap<String, String>,
    /// JSON-RPC in the body.
    pub(super) mcp: Option<McpCall>,
    pub(super) expect: Decision,
    /// Rule that decides.
    pub(super) rule: Option<String>,
}

/// Another Sandbox, and its port.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct OtherSandbox {
    #[serde(default)]
    pub(super) name: String,
    /// Without it, that of the Sandbox that connects.
    pub(super) namespace: Option<String>,
    #[serde(default)]
    pub(super) namespace_labels: BTreeMap<String, String>,
    #[serde(default)]
    pub(super) labels: BTreeMap<String, String>,
    pub(super) port: NonZeroU16,
}

/// A call of MCP.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct McpCall {
    method: Option<String>,
    tool: Option<String>,
    #[serde(default)]
    args: Value,
}

/// Documents of all files.
#[derive(Default)]
pub(super) struct Documents {
    pub(super) policies: Vec<PolicyObject>,
    pub(super) tests: Vec<PolicyTest>,
}

/// Levels for a test, or why nothing is reachable.
pub(super) type Levels = Result<Vec<Arc<Level>>, String>;

impl Documents {
    /// Adds the documents of a file.
    ///
    /// # Errors
    /// One of them is invalid.
    pub(super) fn add(&mut self, text: &str) -> anyhow::Result<()> {
        let documents: Vec<Value> = serde_saphyr::from_multiple(text).map_err(in_one_line)?;
        for document in documents {
            match document["kind"] == KIND {
                true => self.tests.push(object(document).context(KIND)?),
                false => {
                    check_given(&document)?;
                    let policy: PolicyObject = object(document).context("a policy")?;
                    policy.check_new().with_context(|| format!("policy {:?}", policy.name()))?;
                    let is_known =
                        |known: &PolicyObject| (known.kind, known.name()) == (policy.kind, policy.name());
                    // A server would have one of them alone.
                    ensure!(
                        !self.policies.iter().any(is_known),
                        "metadata.name: two policies of kind {:?} are named {:?}",
                        policy.kind,
                        policy.name()
                    );
                    self.policies.push(policy);
                }
            }
        }
        Ok(())
    }

    /// Returns the levels for a test, or why nothing is reachable. A test with a `sandbox` is for a server, others are for
    /// commands too.
    ///
    /// # Errors
    /// A policy is invalid on a server.
    pub(super) fn levels(&self, test: &PolicyTest, now: Timestamp) -> anyhow::Result<Levels> {
        let (mut cluster, mut namespaced) = (Policies::new(), Policies::new());
        let subject = test.subject();
        for object in &self.policies {
            let name = object.name().to_owned();
            let stored = match &test.sandbox {
                Some(_) => StoredPolicy::new(object.clone()),
                None => StoredPolicy::of_file(object.clone()),
            };
            let stored = stored.with_context(|| format!("policy {name:?}, for a test with `sandbox`"))?;
            match object.kind {
                Kind::ClusterSandboxPolicy => cluster.insert((String::new(), name), stored),
                Kind::SandboxPolicy => namespaced.insert((subject.namespace.clone(), name), stored),
            };
        }
        if test.sandbox.is_some() {
            let found = match applying(&subject, &cluster, &namespaced, None, now) {
                Ok(found) => found.levels,
                Err(error) => return Ok(Err(error.to_string())),
            };
            let named: Vec<&str> = self
                .policies
                .iter()
                .filter(|policy| policy.needs_annotation())
                .map(PolicyObject::name)
                .collect();
            return Ok(match found.is_empty() && !named.is_empty() {
                true => Err(format!(
                    "no policy applies: {} has no `appliesTo`, so an annotation of the Sandbox must name it; without `sandbox`, \
                     it is tested by itself",
                    named.join(", ")
                )),
                false => Ok(found),
            });
        }
        let all = cluster.values().map(|policy| (Authority::Cluster, policy));
        let all = all.chain(namespaced.values().map(|policy| (Authority::Namespace, policy)));
        let levels = all.filter_map(|(authority, policy)| policy.level(authority, now));
        Ok(Ok(levels.collect()))
    }
}

impl PolicyTest {
    pub(super) fn subject(&self) -> Subject {
        let sandbox = self.sandbox.as_ref();
        let namespace = sandbox.and_then(|sandbox| sandbox.namespace.clone());
        let mut subject =
            Subject { namespace: namespace.unwrap_or_else(|| NAMESPACE.to_owned()), ..Subject::default() };
        if let Some(sandbox) = sandbox {
            subject.namespace_labels = sandbox.namespace_labels.clone();
            subject.labels = sandbox.labels.clone();
            subject.template = sandbox.template.clone();
            subject.sandbox = Some(sandbox.name.clone());
        }
        subject
    }

    pub(super) fn facts(&self) -> Facts {
        let Subject { namespace, labels, sandbox, .. } = self.subject();
        let (task, user) =
            self.sandbox.as_ref().map(|about| (about.task.clone(), about.user.clone())).unwrap_or_default();
        Facts { task, user, sandbox: Identity { name: sandbox.unwrap_or_default(), namespace, labels } }
    }
}

impl McpCall {
    pub(super) fn calls(&self) -> anyhow::Result<Vec<Call>> {
        let method = self.method.clone().unwrap_or_else(|| "tools/call".to_owned());
        let parameters = match &self.tool {
            Some(tool) => json!({ "name": tool, "arguments": self.args }),
            None => self.args.clone(),
        };
        let message = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": parameters });
        Call::parse(message.to_string().as_bytes()).context("mcp: it needs `method`, or `tool` with `args`")
    }
}
