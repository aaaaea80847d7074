//! `hutch policy test`: cases that are kept beside a policy.

pub(crate) mod documents;

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, anyhow, bail, ensure};
use documents::{Case, Documents, KIND, OtherSandbox};
use hutch_policy::{Decision, Destination, Facts, Level, Moment, Subject, names_sandboxes};
use k8s_openapi::jiff::Timestamp;

use super::explain::verdict;
use super::import::read_file;
use super::judge::{Details, Judgment, judge};
use super::peer;
use crate::cli::PolicyTestArguments;
use crate::question::Question;

/// Decides the cases. Exit status 1 if one fails, 2 if a file is invalid.
pub(super) fn main(arguments: &PolicyTestArguments) -> ExitCode {
    let mut documents = Documents::default();
    for file in &arguments.files {
        if let Err(error) = read_file(file).and_then(|text| documents.add(&text)) {
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

impl Documents {
    /// Prints each case and a count. Returns true if all pass.
    fn run(&self) -> anyhow::Result<bool> {
        ensure!(!self.policies.is_empty(), "the files contain no policy");
        let number: usize = self.tests.iter().map(|test| test.cases.len()).sum();
        ensure!(number > 0, "the files contain no cases: add a document of kind {KIND}");
        let now = Timestamp::now();
        let levels =
            self.tests.iter().map(|test| self.levels(test, now)).collect::<anyhow::Result<Vec<_>>>()?;
        let mut failed = 0;
        for (test, levels) in self.tests.iter().zip(&levels) {
            let (facts, subject) = (test.facts(), test.subject());
            for case in &test.cases {
                let named = || format!("case {:?}", case.name);
                let judgment = match levels {
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
        ensure!(
            question.web.is_some() || self.has_no_request(),
            "`method`, `headers` and `mcp` have an effect with `url` only"
        );
        let calls = self.mcp.as_ref().map(documents::McpCall::calls).transpose()?;
        let lower: Vec<String> = self.headers.keys().map(|name| name.to_ascii_lowercase()).collect();
        let values = self.headers.values().map(|value| value.trim_matches([' ', '\t']));
        let headers = lower.iter().map(String::as_str).zip(values).collect();
        let details = Details { method: self.method.as_deref(), headers, calls: calls.as_deref() };
        let moment = Moment { facts, seconds: Timestamp::now().as_second(), ..Moment::default() };
        Ok(judge(levels, &question, &details, &moment))
    }

    /// Returns true if it names nothing that only a request has.
    fn has_no_request(&self) -> bool {
        self.method.is_none() && self.headers.is_empty() && self.mcp.is_none()
    }

    fn judge_peer(
        &self,
        levels: &[Arc<Level>],
        from: &Subject,
        sandbox: &OtherSandbox,
    ) -> anyhow::Result<Judgment> {
        ensure!(
            self.has_no_request(),
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The last one took the place of the first.
    #[test]
    fn two_policies_of_one_name_are_refused() {
        let policy = |kind: &str| {
            format!(
                "{{apiVersion: policy.hutch.dev/v1alpha1, kind: {kind}, metadata: {{name: p}}, spec: {{}}}}\n---\n"
            )
        };
        let mut documents = Documents::default();
        documents.add(&(policy("SandboxPolicy") + &policy("ClusterSandboxPolicy"))).unwrap();
        let error = documents.add(&policy("SandboxPolicy")).unwrap_err().to_string();
        assert_eq!(error, "metadata.name: two policies of kind SandboxPolicy are named \"p\"");
    }

    #[test]
    fn policies_are_those_of_a_server_only_for_a_sandbox() {
        let policy = |spec: &str| {
            format!(
                "apiVersion: policy.hutch.dev/v1alpha1\nkind: SandboxPolicy\nmetadata: {{name: p}}\nspec: {spec}\n---\n"
            )
        };
        let levels = |spec: &str, sandbox: &str| {
            let test = format!(
                "apiVersion: policy.hutch.dev/v1alpha1\nkind: PolicyTest\nmetadata: {{name: t}}\n{sandbox}cases: []\n"
            );
            let mut documents = Documents::default();
            documents.add(&(policy(spec) + &test)).expect("documents");
            documents.levels(&documents.tests[0], Timestamp::UNIX_EPOCH).map_err(|error| format!("{error:#}"))
        };
        let sandbox = "sandbox: {name: a}\n";
        let offers =
            "{appliesTo: {}, credentials: [{name: a, source: {env: A}, hosts: [a.example], env: A}]}";
        assert_eq!(levels(offers, "").expect("for a command").expect("levels").len(), 1);
        let error = levels(offers, sandbox).expect_err("not on a server");
        assert!(error.contains("policy \"p\"") && error.contains("source"), "{error}");
        let named = "{egress: {rules: []}}";
        assert_eq!(levels(named, "").expect("levels").expect("by itself").len(), 1);
        let why = levels(named, sandbox).expect("levels").expect_err("none applies");
        assert!(why.contains("p has no `appliesTo`"), "{why}");
    }

    #[test]
    fn any_cases_are_judged() {
        hutch_testkit::hostile::feed("hutch_tests", |bytes| {
            let mut documents = Documents::default();
            let text = String::from_utf8_lossy(bytes);
            if documents.add(&text).is_err() {
                return;
            }
            for test in &documents.tests {
                let (facts, subject) = (test.facts(), test.subject());
                let Ok(Ok(levels)) = documents.levels(test, Timestamp::UNIX_EPOCH) else { continue };
                for case in &test.cases {
                    if let Ok(judgment) = case.judge(&levels, &subject, &facts) {
                        let _ = case.mistake(&judgment, names_sandboxes(&levels));
                    }
                }
            }
        });
    }
}
