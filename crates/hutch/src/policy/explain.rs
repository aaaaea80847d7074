//! `hutch policy explain`.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::ensure;
use hutch_policy::{Authority, Decision, Destination, Level, Mode, Moment};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use serde_json::json;

use super::attached::Attached;
use super::judge::{Details, Judgment, Row, judge};
use super::peer::{self, Search};
use crate::cli::{PolicyExplainArguments, PolicyOutput};
use crate::client::finish;

/// Prints what the policies of a Sandbox decide. Exit status 1 if they deny; 2 if they cannot be read.
pub(super) fn main(arguments: &PolicyExplainArguments) -> ExitCode {
    finish("policy explain", 2, explain(arguments))
}

async fn explain(arguments: &PolicyExplainArguments) -> anyhow::Result<u8> {
    let (question, method) = (&arguments.question, arguments.method.as_deref());
    ensure!(question.web.is_some() || method.is_none(), "--method: has an effect with a URL only");
    let attached = Attached::read(&arguments.place, &arguments.sandbox.name).await?;
    let facts = attached.facts();
    let moment = Moment { facts: &facts, seconds: Timestamp::now().as_second(), ..Moment::default() };
    let details = Details { method, ..Details::default() };
    let judgment = match attached.applying() {
        Ok(found) => {
            let judgment = judge(&found.levels, question, &details, &moment);
            let judgment = or_peer(judgment, &attached, &found.levels, &arguments.question.destination).await;
            match attached.not_enforceable() {
                Some(why) => judgment
                    .but_denied(format!("the Sandbox reports that its policies are not enforceable: {why}")),
                None => judgment,
            }
        }
        Err(error) => Judgment::denied(error.to_string()),
    };
    let destination = arguments.question.destination.to_string();
    match arguments.output {
        PolicyOutput::Json => {
            let mut object = serde_json::to_value(&judgment)?;
            object["sandbox"] = json!(attached.sandbox.name_any());
            object["namespace"] = json!(attached.subject.namespace);
            object["destination"] = json!(destination);
            println!("{object}");
        }
        PolicyOutput::Table => print!("{}", table(&judgment, &destination)),
    }
    Ok(u8::from(judgment.decision == Decision::Deny))
}

/// Returns what the rules about other Sandboxes decide, where the name is that of a Service that they open, or nothing else
/// allows it.
async fn or_peer(
    judgment: Judgment,
    attached: &Attached,
    levels: &[Arc<Level>],
    destination: &Destination,
) -> Judgment {
    match peer::find(attached, levels, destination).await {
        Ok(Search::Found(found)) if found.is_open || judgment.decision == Decision::Deny => found.judgment,
        Ok(Search::NoService(hint)) if judgment.decision == Decision::Deny => {
            Judgment { hint: Some(hint), ..judgment }
        }
        Ok(_) => judgment,
        Err(error) => {
            eprintln!("hutch: policy explain: rules with `sandboxes` were not evaluated: {error:#}");
            judgment
        }
    }
}

/// Returns one line for each policy, and the verdict.
fn table(judgment: &Judgment, destination: &str) -> String {
    let mut lines = vec![["AUTHORITY", "POLICY", "MODE", "RULE", "DECISION"].map(str::to_owned)];
    lines.extend(judgment.policies.iter().map(cells));
    let mut widths = [0; 5];
    for line in &lines {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for line in lines.iter().filter(|_| !judgment.policies.is_empty()) {
        let cells = line.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text.push_str(&format!("{destination}: {}\n", verdict(judgment)));
    text
}

fn cells(row: &Row) -> [String; 5] {
    let authority = match row.authority {
        Authority::Cluster => "Cluster",
        Authority::Namespace => "Namespace",
        Authority::Template => "Template",
        Authority::Claim => "Claim",
        Authority::Invocation => "Invocation",
    };
    let (mode, counts) = match row.mode {
        Mode::Enforce => ("Enforce", true),
        Mode::Observe => ("Observe", false),
    };
    let decision = match row.decision {
        None => "abstains",
        Some(Decision::Allow) => "Allow",
        Some(Decision::Deny) if counts => "Deny",
        Some(Decision::Deny) => "Deny, which only observes",
    };
    let rule = row.rule.as_deref().unwrap_or("-");
    [authority, &row.policy, mode, rule, decision].map(str::to_owned)
}

/// Returns the decision with its reason.
pub(super) fn verdict(judgment: &Judgment) -> String {
    if let Some(reached) = &judgment.reaches {
        return format!("Allow: {reached}, with any protocol");
    }
    let hint = judgment.hint.iter().map(|hint| format!("; {hint}")).collect::<String>();
    if judgment.decision == Decision::Allow {
        let tls =
            if judgment.ends_tls { "; TLS ends at the proxy" } else { "; TLS does not end at the proxy" };
        return format!("Allow{tls}{hint}");
    }
    let reason = match (&judgment.reason, judgment.decisive()) {
        (Some(reason), _) => format!("Deny: {reason}"),
        (None, Some(Row { policy, rule, condition, .. })) => {
            let condition = condition.iter().map(|condition| format!(": {condition}")).collect::<String>();
            match rule {
                Some(rule) => format!("Deny: rule {rule:?} of policy {policy:?}{condition}"),
                None => format!("Deny: no rule of policy {policy:?} allows it{condition}"),
            }
        }
        (None, None) => "Deny".to_owned(),
    };
    reason + &hint
}

#[cfg(test)]
mod tests {
    use hutch_policy::Facts;

    use super::*;

    #[test]
    fn condition_that_does_not_hold_is_named() {
        let rules = json!({"rules": [{"name": "web", "hosts": ["a.example"], "when": "task.risk <= 2"}]});
        let level =
            Level::new(Authority::Cluster, "floor", Some(serde_json::from_value(rules).expect("rules")));
        let levels = [Arc::new(level)];
        let shown = |risk: Option<&str>| {
            let task = risk.map(|risk| ("risk".to_owned(), risk.to_owned())).into_iter().collect();
            let facts = Facts { task, ..Facts::default() };
            let moment = Moment { facts: &facts, ..Moment::default() };
            verdict(&judge(&levels, &"a.example".parse().expect("a question"), &Details::default(), &moment))
        };
        let denied =
            r#"Deny: no rule of policy "floor" allows it: the condition "task.risk <= 2" of rule "web" "#;
        assert_eq!(shown(Some("3")), format!("{denied}is false"));
        assert_eq!(shown(None), format!("{denied}has no value: task.risk is missing"));
        assert!(shown(Some("2")).starts_with("Allow"));
    }
}
