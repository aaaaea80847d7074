//! `hutch policy test`: cases that are kept beside a policy.

use std::collections::BTreeMap;
use std::num::NonZeroU16;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, anyhow, bail, ensure};
use hutch_policy::{
    Authority, Call, Decision, Destination, Facts, Identity, Kind, Level, Moment, Policies, PolicyObject,
    StoredPolicy, Subject, applying, check_given, names_sandboxes,
};
use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use super::explain::verdict;
use super::import::{in_one_line, read_file};
use super::judge::{Details, Judgment, judge};
use super::peer;
use crate::cli::PolicyTestArguments;
use crate::question::Question;

/// Kind of a document with cases.
const KIND: &str = "PolicyTest";
/// Namespace of policies for tests that name no sandbox.
const NAMESPACE: &str = "default";

/// Cases for policies.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PolicyTest {
    #[serde(rename = "apiVersion")]
    _api_version: ApiVersion,
    #[serde(rename = "kind")]
    _kind: Value,
    #[serde(default, rename = "metadata")]
    _metadata: Value,
    /// The sandbox. Without it, all policies apply.
    sandbox: Option<TestSandbox>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
enum ApiVersion {
    #[serde(rename = "policy.hutch.dev/v1alpha1")]
    V1alpha1,
}

/// Sandbox that connects.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct TestSandbox {
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
struct Case {
    name: String,
    url: Option<String>,
    host: Option<String>,
    sandbox: Option<OtherSandbox>,
    method: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    /// JSON-RPC in the body.
    mcp: Option<McpCall>,
    expect: Decision,
    /// Rule that decides.
    rule: Option<String>,
}

/// Another Sandbox, and its port.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct OtherSandbox {
    #[serde(default)]
    name: String,
    /// Without it, that of the Sandbox that connects.
    namespace: Option<String>,
    #[serde(default)]
    namespace_labels: BTreeMap<String, String>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    port: NonZeroU16,
}

/// A call of MCP.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct McpCall {
    method: Option<String>,
    tool: Option<String>,
    #[serde(default)]
    args: Value,
}

/// Method of a request that names none.
const GET: &str = "GET";

/// Decides the cases. Exit status 1 if one fails, 2 if a file is invalid.
pub(super) fn main(arguments: &PolicyTestArguments) -> ExitCode {
    let mut documents = Documents::default();
    for file in &arguments.files {
        if let Err(error) = documents.read(file) {
            eprintln!("hutch policy test: {}: {error:#}", file.display());
            return ExitCode::from(2);
        }
    }
    match documents.run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("hutch policy test: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Documents of all files.
#[derive(Default)]
struct Documents {
    policies: Vec<PolicyObject>,
    tests: Vec<PolicyTest>,
}

impl Documents {
    fn read(&mut self, file: &Path) -> anyhow::Result<()> {
        let documents: Vec<Value> = serde_saphyr::from_multiple(&read_file(file)?).map_err(in_one_line)?;
        for document in documents {
            match document["kind"] == KIND {
                true => self.tests.push(serde_json::from_value(document).context(KIND)?),
                false => {
                    check_given(&document)?;
                    let policy: PolicyObject = serde_json::from_value(document).context("a policy")?;
                    policy.check_new().with_context(|| format!("policy {:?}", policy.name()))?;
                    self.policies.push(policy);
                }
            }
        }
        Ok(())
    }

    /// Prints each case and a count. Returns true if all pass.
    fn run(&self) -> anyhow::Result<bool> {
        ensure!(!self.policies.is_empty(), "the files contain no policy");
        let number: usize = self.tests.iter().map(|test| test.cases.len()).sum();
        ensure!(number > 0, "the files contain no cases: add a document of kind {KIND}");
        let mut failed = 0;
        for test in &self.tests {
            let (facts, subject) = (test.facts(), test.subject());
            let levels = self.levels(test, Timestamp::now());
            for case in &test.cases {
                let named = || format!("case {:?}", case.name);
                let judgment = match &levels {
                    Ok(levels) => case.judge(levels, &subject, &facts).with_context(named)?,
                    Err(error) => Judgment::denied(error.clone()),
                };
                let peers = levels.as_ref().is_ok_and(|levels| names_sandboxes(levels));
                match case.mistake(&judgment, peers) {
                    None => println!("ok      {}", case.name),
                    Some(mistake) => {
                        failed += 1;
                        println!("FAILED  {}: {mistake}", case.name);
                    }
                }
            }
        }
        println!("{} of {number} cases passed", number - failed);
        Ok(failed == 0)
    }

    /// Returns the levels for a test, or why nothing is reachable.
    fn levels(&self, test: &PolicyTest, now: Timestamp) -> Result<Vec<Arc<Level>>, String> {
        let (mut cluster, mut namespaced) = (Policies::new(), Policies::new());
        let subject = test.subject();
        for object in &self.policies {
            let stored = StoredPolicy::new(object.clone()).map_err(|error| error.to_string())?;
            let name = object.name().to_owned();
            match object.kind {
                Kind::ClusterSandboxPolicy => cluster.insert((String::new(), name), stored),
                Kind::SandboxPolicy => namespaced.insert((subject.namespace.clone(), name), stored),
            };
        }
        if test.sandbox.is_some() {
            let found =
                applying(&subject, &cluster, &namespaced, None, now).map_err(|error| error.to_string())?;
            return Ok(found.levels);
        }
        let all = cluster.values().map(|policy| (Authority::Cluster, policy));
        let all = all.chain(namespaced.values().map(|policy| (Authority::Namespace, policy)));
        Ok(all
            .filter_map(|(authority, policy)| policy.level(authority, now))
            .map(|(level, _)| level)
            .collect())
    }
}

impl PolicyTest {
    fn subject(&self) -> Subject {
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

    fn facts(&self) -> Facts {
        let Subject { namespace, labels, sandbox, .. } = self.subject();
        let (task, user) =
            self.sandbox.as_ref().map(|about| (about.task.clone(), about.user.clone())).unwrap_or_default();
        Facts { task, user, sandbox: Identity { name: sandbox.unwrap_or_default(), namespace, labels } }
    }
}

impl Case {
    fn judge(&self, levels: &[Arc<Level>], from: &Subject, facts: &Facts) -> anyhow::Result<Judgment> {
        let question: Question = match (&self.url, &self.host, &self.sandbox) {
            (Some(url), None, None) => url.parse().map_err(|error| anyhow!("url: {error}"))?,
            (None, Some(host), None) => {
                let destination = host.parse::<Destination>().map_err(|error| anyhow!("host: {error}"))?;
                destination.to_string().parse().map_err(|error| anyhow!("host: {error}"))?
            }
            (None, None, Some(sandbox)) => return self.judge_peer(levels, from, sandbox),
            _ => bail!("it needs `url`, `host` or `sandbox`, and one of them only"),
        };
        let calls = self.mcp.as_ref().map(McpCall::calls).transpose()?;
        let headers = self.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let method = self.method.as_deref().unwrap_or(GET);
        let details = Details { method, headers, calls: calls.as_deref() };
        let moment = Moment { facts, seconds: Timestamp::now().as_second(), ..Moment::default() };
        Ok(judge(levels, &question, &details, &moment))
    }

    fn judge_peer(
        &self,
        levels: &[Arc<Level>],
        from: &Subject,
        sandbox: &OtherSandbox,
    ) -> anyhow::Result<Judgment> {
        ensure!(
            self.method.is_none() && self.headers.is_empty() && self.mcp.is_none(),
            "`method`, `headers` and `mcp` have no effect with `sandbox`: what is sent to it is not read"
        );
        let own = sandbox.namespace.as_ref().is_none_or(|namespace| *namespace == from.namespace);
        let mut to = Subject {
            namespace: sandbox.namespace.clone().unwrap_or_else(|| from.namespace.clone()),
            namespace_labels: sandbox.namespace_labels.clone(),
            sandbox: Some(sandbox.name.clone()),
            labels: sandbox.labels.clone(),
            ..Subject::default()
        };
        if own && to.namespace_labels.is_empty() {
            to.namespace_labels = from.namespace_labels.clone();
        }
        Ok(peer::judge(levels, &from.namespace, &to, sandbox.port, true))
    }

    /// Returns what differs from the expectation. `peers`: rules about other Sandboxes apply.
    fn mistake(&self, judgment: &Judgment, peers: bool) -> Option<String> {
        if judgment.decision != self.expect {
            let hint = match judgment.decision == Decision::Deny && self.sandbox.is_none() && peers {
                true => "; rules with `sandboxes` decide cases with `sandbox` only",
                false => "",
            };
            return Some(format!("expected {:?}: {}{hint}", self.expect, verdict(judgment)));
        }
        let expected = self.rule.as_ref()?;
        let found = judgment.decisive().and_then(|row| row.rule.as_ref());
        let found = found.map_or("no rule", String::as_str);
        (found != expected).then(|| format!("expected rule {expected:?}: {found:?} decides"))
    }
}

impl McpCall {
    fn calls(&self) -> anyhow::Result<Vec<Call>> {
        let method = self.method.clone().unwrap_or_else(|| "tools/call".to_owned());
        let parameters = match &self.tool {
            Some(tool) => json!({ "name": tool, "arguments": self.args }),
            None => self.args.clone(),
        };
        let message = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": parameters });
        Call::parse(message.to_string().as_bytes()).context("mcp: it needs `method`, or `tool` with `args`")
    }
}
