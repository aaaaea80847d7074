//! `hutch allow`: opens one host for one Sandbox.
//!
//! All policies that apply must allow a connection. So the rule goes into the one policy of the Sandbox only if no other
//! policy decides: a second one would close what the first one opens.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, anyhow, bail, ensure};
use hutch_api::Sandbox;
use hutch_egress::{Denial, OWN_POLICY};
use hutch_policy::{
    Authority, Decision, EgressRule, Forbidden, Host, Level, Mode, Moment, Opinion, PolicyObject, Verdict,
    decide, may_dial, opens,
};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{DynamicObject, PostParams};
use kube::{Api, Resource, ResourceExt};
use serde_json::{Value, json};

use super::attached::{Attached, described, resource};
use crate::cli::AllowArguments;
use crate::client::finish;

/// Opens the host, or says which policy must change.
pub(crate) fn main(arguments: &AllowArguments) -> ExitCode {
    finish("allow", 1, allow(arguments))
}

async fn allow(arguments: &AllowArguments) -> anyhow::Result<u8> {
    ensure!(
        !crate::allow::is_own(&arguments.host),
        "{} stays closed: inside, it is the sandbox itself; nothing was written",
        arguments.host
    );
    let mut attached = Attached::read(&arguments.place, &arguments.sandbox.name).await?;
    if let Some(service) = super::peer::service_named(&attached, &arguments.host).await {
        bail!(
            "{} stays closed: {service:?} is a Service of this server, which only a rule with `sandboxes` opens; nothing \
             was written",
            arguments.host
        );
    }
    let now = Timestamp::now();
    let expires = arguments.lasts.map(|lasts| end(now, lasts)).transpose()?;
    let mut rule = crate::allow::rule(&arguments.host).map_err(anyhow::Error::msg)?;
    rule.expires = expires;
    let (sandbox, name) =
        (attached.sandbox.name_any(), format!("{OWN_POLICY}{}", attached.sandbox.name_any()));
    let levels = attached.applying()?.levels;
    attached.check_enforceable()?;
    let is_own = |level: &Level| level.authority == Authority::Namespace && level.name == name;
    let (own, mut others): (Vec<_>, Vec<_>) = levels.into_iter().partition(|level| is_own(level));
    let mut note = "";
    let network = others.iter().find(|level| level.is_network_policy()).cloned();
    if let Some(network) = network.filter(|_| rule.cidrs.is_empty()) {
        let is_open = network.egress.as_ref().is_some_and(|egress| !egress.rules.is_empty());
        others.retain(|level| !level.is_network_policy());
        // Beside others it decides only about the addresses to which a name leads.
        ensure!(
            opens(&own) || opens(&others) || !is_open,
            "only the networkPolicy of its template opens addresses for this Sandbox, and a policy for {} would close them: \
             write a SandboxPolicy that allows both; nothing was written",
            arguments.host
        );
        note = "\nthe networkPolicy of its template must allow the addresses of the host too";
    }
    let facts = attached.facts();
    let moment = Moment { facts: &facts, seconds: now.as_second(), ..Moment::default() };
    match other_policies(&others, &arguments.host, &moment)? {
        Others::Decide(policy) if own.is_empty() => {
            println!("sandbox {sandbox} may connect to {} already, by policy {policy}{note}", arguments.host);
            return Ok(0);
        }
        _ => {}
    }
    check_address(&rule, &others, &moment)?;
    let (client, namespace) = (attached.client.clone(), &attached.subject.namespace);
    let policies: Api<DynamicObject> = Api::namespaced_with(client, namespace, &resource("SandboxPolicy"));
    let stored = policies.get_opt(&name).await.map_err(described(format!("SandboxPolicy {name}")))?;
    let is_new = stored.is_none();
    let Change { policy, ended, longer } = match stored {
        Some(stored) => changed(stored, &attached.sandbox, rule, now)?,
        None => Change::of(object(&name, &attached.sandbox, vec![rule])?),
    };
    check_opens(&attached.applying_with(policy.clone())?.levels, &arguments.host, &moment)?;
    let written = match is_new {
        true => policies.create(&PostParams::default(), &policy).await,
        false => policies.replace(&name, &PostParams::default(), &policy).await,
    };
    written.map_err(described(format!("SandboxPolicy {name}")))?;
    if !ended.is_empty() {
        println!("removed what had ended: {} (SandboxPolicy {name})", ended.join(", "));
    }
    let until = expires.map(|time| format!(" until {time}")).unwrap_or_default();
    println!("sandbox {sandbox} may connect to {}{until} (SandboxPolicy {name}){note}", arguments.host);
    longer.iter().for_each(|line| println!("{line}"));
    Ok(0)
}

/// Returns the time at which a rule ends, in whole seconds.
fn end(now: Timestamp, lasts: std::time::Duration) -> anyhow::Result<Timestamp> {
    let end = SignedDuration::try_from(lasts).ok().and_then(|lasts| now.checked_add(lasts).ok());
    let end = end.with_context(|| format!("--for {lasts:?}: too long"))?;
    Ok(Timestamp::from_second(end.as_second())?)
}

/// Opinion of the other policies about a host.
enum Others {
    /// None of them decides.
    Abstain,
    /// This one opens the network of the Sandbox, and all of them allow the host.
    Decide(String),
}

/// Asks the policies as the proxy does.
fn other_policies(others: &[Arc<Level>], host: &str, moment: &Moment<'_>) -> anyhow::Result<Others> {
    let destination = crate::allow::example(host).map_err(anyhow::Error::msg)?;
    let verdict = decide(others, &destination, moment);
    if let Some(why) = denial(&verdict) {
        bail!("{host} stays closed: {why}; that policy must change, and nothing was written");
    }
    if verdict.conflict {
        bail!(
            "{host} stays closed: its policies disagree whether TLS ends at the proxy; nothing was written"
        );
    }
    let mut opening = verdict.opinions.iter().filter(is_enforced);
    let opening = opening.find(|opinion| opinion.level.authority != Authority::Claim);
    Ok(opening.map_or(Others::Abstain, |opinion| Others::Decide(opinion.level.name.clone())))
}

fn is_enforced(opinion: &&Opinion<'_>) -> bool {
    opinion.level.mode == Mode::Enforce
}

/// Returns the first refusal that counts.
fn denial(verdict: &Verdict<'_>) -> Option<Denial> {
    let mut enforced = verdict.opinions.iter().filter(is_enforced);
    enforced.find(|opinion| opinion.decision == Decision::Deny).map(Denial::of)
}

/// Refuses an address that the rule would not open.
fn check_address(rule: &EgressRule, others: &[Arc<Level>], moment: &Moment<'_>) -> anyhow::Result<()> {
    let Ok(destination) = crate::allow::example(&rule.name) else { return Ok(()) };
    let Host::Address(address) = destination.host else { return Ok(()) };
    match may_dial(others, &destination, address, &[], moment) {
        Ok(()) => Ok(()),
        Err(never @ (Forbidden::Metadata | Forbidden::NoHost)) => {
            bail!("{address} stays closed: {never}; nothing was written")
        }
        Err(closed) => bail!(
            "{address} stays closed: {closed}; a policy with `private` can open it, and nothing was written"
        ),
    }
}

/// Refuses to write a policy with which the host would stay closed: its own mode, its other rules or other policies decide.
fn check_opens(levels: &[Arc<Level>], host: &str, moment: &Moment<'_>) -> anyhow::Result<()> {
    let destination = crate::allow::example(host).map_err(anyhow::Error::msg)?;
    let verdict = decide(levels, &destination, moment);
    if verdict.decision != Decision::Allow {
        let why = denial(&verdict).map(|denial| denial.to_string());
        let why = why.unwrap_or_else(|| "no policy would allow it".to_owned());
        bail!("{host} stays closed with the new rule: {why}; nothing was written");
    }
    let Host::Address(address) = destination.host else { return Ok(()) };
    may_dial(levels, &destination, address, &[], moment)
        .map_err(|closed| anyhow!("{address} stays closed with the new rule: {closed}; nothing was written"))
}

/// Returns the time at which all rules have ended, if all end.
fn last_end(rules: &[EgressRule]) -> Option<Timestamp> {
    rules.iter().map(|rule| rule.expires).collect::<Option<Vec<_>>>()?.into_iter().max()
}

/// Returns the policy of a Sandbox alone, which is deleted with it.
fn object(name: &str, sandbox: &Sandbox, rules: Vec<EgressRule>) -> anyhow::Result<DynamicObject> {
    let mut object = DynamicObject::new(name, &resource("SandboxPolicy"));
    object.metadata.owner_references = Some(Vec::from_iter(sandbox.owner_ref(&())));
    let mut spec = json!({
        "appliesTo": { "sandboxes": [sandbox.name_any()] },
        "mode": "Enforce",
        "egress": { "rules": serde_json::to_value(&rules)? },
    });
    if let Some(expires) = last_end(&rules) {
        spec["expires"] = serde_json::to_value(expires)?;
    }
    object.data = json!({ "spec": spec });
    Ok(object)
}

/// A stored policy with a further rule.
struct Change {
    policy: DynamicObject,
    /// Names of rules that have ended, which it no longer has.
    ended: Vec<String>,
    /// Lines about rules that would have opened the host for longer, or do.
    longer: Vec<String>,
}

impl Change {
    /// Returns a policy as it is.
    fn of(policy: DynamicObject) -> Change {
        Change { policy, ended: Vec::new(), longer: Vec::new() }
    }
}

/// Returns lines about rules that open what this one opens for a longer time: `same` took its place, `others` stay.
fn longer(rule: &EgressRule, same: &[EgressRule], others: &[EgressRule]) -> Vec<String> {
    let Some(end) = rule.expires else { return Vec::new() };
    let lasts = |old: &&EgressRule| old.expires.is_none_or(|other| other > end);
    let until =
        |old: &EgressRule| old.expires.map_or("without an end".to_owned(), |end| format!("until {end}"));
    let before = same.iter().filter(lasts).map(|old| format!("before, it was open {}", until(old)));
    let destination = crate::allow::example(&rule.name).ok();
    let opens = |old: &&EgressRule| {
        let covers = destination.as_ref().is_some_and(|destination| old.matches(destination));
        covers && old.decision == Decision::Allow
    };
    let still = others.iter().filter(lasts).filter(opens);
    let still = still.map(|old| format!("rule {:?} of the same policy opens it {}", old.name, until(old)));
    before.chain(still).collect()
}

/// Returns the stored policy with the rule, and without those that have ended or open the same.
fn changed(
    stored: DynamicObject,
    sandbox: &Sandbox,
    rule: EgressRule,
    now: Timestamp,
) -> anyhow::Result<Change> {
    let name = stored.name_any();
    let policy: PolicyObject = serde_json::to_value(&stored).and_then(serde_json::from_value)?;
    let alone = policy.applies_to().is_some_and(|applies| {
        applies.sandboxes == [sandbox.name_any()]
            && applies.selector.is_none()
            && applies.templates.is_empty()
    });
    ensure!(alone, "SandboxPolicy {name} does not apply to this Sandbox alone; rename it");
    let owners = stored.metadata.owner_references.iter().flatten();
    // An earlier Sandbox of the same name had it, and the rules were for that one.
    let is_of_another =
        owners.clone().any(|owner| owner.kind == "Sandbox" && Some(&owner.uid) != sandbox.uid().as_ref());
    let over = |time: Option<Timestamp>| time.is_some_and(|time| time <= now);
    let ended = |old: &EgressRule| is_of_another || over(policy.expires()) || over(old.expires);
    // However the host is written, such as with the default port.
    let opens_same = |old: &EgressRule| {
        let named = EgressRule { name: rule.name.clone(), expires: rule.expires, ..old.clone() };
        old.name == rule.name || named == rule
    };
    let (gone, rules): (Vec<_>, Vec<_>) = policy.rules().iter().cloned().partition(ended);
    let (same, mut rules): (Vec<_>, Vec<_>) = rules.into_iter().partition(opens_same);
    let longer = longer(&rule, &same, &rules);
    let gone = gone.into_iter().filter(|old| !opens_same(old)).map(|old| old.name).collect();
    rules.push(rule);
    let mut new = object(&name, sandbox, rules)?;
    if let Value::Object(spec) = &stored.data["spec"] {
        // Other fields are those of the user.
        for (field, value) in
            spec.iter().filter(|(field, _)| !["egress", "expires"].contains(&field.as_str()))
        {
            new.data["spec"][field] = value.clone();
        }
        if let Value::Object(egress) = &spec.get("egress").cloned().unwrap_or_default() {
            for (field, value) in egress.iter().filter(|(field, _)| *field != "rules") {
                new.data["spec"]["egress"][field] = value.clone();
            }
        }
    }
    new.metadata = kube::core::ObjectMeta {
        owner_references: new.metadata.owner_references,
        managed_fields: None,
        ..stored.metadata
    };
    Ok(Change { policy: new, ended: gone, longer })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time")
    }

    fn sandbox() -> Sandbox {
        let mut sandbox = Sandbox::new(
            "a",
            serde_json::from_value(json!({"podTemplate": {"spec": {"containers": []}}})).expect("a spec"),
        );
        sandbox.metadata.uid = Some("u".into());
        sandbox
    }

    fn rule(host: &str, expires: Option<i64>) -> EgressRule {
        EgressRule { expires: expires.map(at), ..crate::allow::rule(host).expect("a rule") }
    }

    fn names(object: &DynamicObject) -> Vec<String> {
        let rules = object.data["spec"]["egress"]["rules"].as_array().expect("rules");
        rules.iter().map(|rule| rule["name"].as_str().expect("a name").to_owned()).collect()
    }

    /// Regression: conditions saw no facts, so that a policy which allows a host seemed to close it.
    #[test]
    fn condition_of_another_policy_sees_the_facts_of_the_sandbox() {
        let rules = json!({"rules": [
            {"name": "web", "hosts": ["x.example"], "when": "task.risk <= 2"},
            {"name": "db", "cidrs": ["10.1.2.3"], "private": ["10.1.2.3"], "when": "task.risk <= 2"},
        ]});
        let floor =
            Level::new(Authority::Cluster, "floor", Some(serde_json::from_value(rules).expect("rules")));
        let floor = [Arc::new(floor)];
        for (risk, allows) in [("1", true), ("3", false)] {
            let mut sandbox = sandbox();
            sandbox.annotations_mut().insert("attr.policy.hutch.dev/risk".to_owned(), risk.to_owned());
            let facts = hutch_attach::SandboxFacts::of(&sandbox).facts("a", "team");
            let moment = Moment { facts: &facts, ..Moment::default() };
            match other_policies(&floor, "x.example", &moment) {
                Ok(Others::Decide(policy)) => assert!(allows && policy == "floor"),
                Ok(Others::Abstain) => panic!("risk {risk}: it decides"),
                Err(error) => assert!(!allows && error.to_string().contains("stays closed"), "{error}"),
            }
            let rule = crate::allow::rule("10.1.2.3").expect("a rule");
            assert_eq!(check_address(&rule, &floor, &moment).is_ok(), allows, "risk {risk}");
        }
    }

    #[test]
    fn address_that_no_policy_opens_is_refused_with_that_alone() {
        let refused = |address: &str| {
            let rule = crate::allow::rule(address).expect("a rule");
            check_address(&rule, &[], &Moment::default()).expect_err("refused").to_string()
        };
        let metadata = refused("169.254.169.254");
        assert!(metadata.ends_with("which no rule opens; nothing was written"), "{metadata}");
        assert!(refused("10.1.2.3").contains("a policy with `private` can open it"));
    }

    #[test]
    fn rule_with_which_the_host_stays_closed_is_not_written() {
        let level = |rules: &str| {
            let egress = serde_json::from_str(&format!(r#"{{"rules": {rules}}}"#)).expect("rules");
            vec![Arc::new(Level::new(Authority::Namespace, "allow-a", Some(egress)))]
        };
        let opens = |rules: &str, host: &str| check_opens(&level(rules), host, &Moment::default());
        let rule = serde_json::to_string(&rule("x.example", None)).expect("a rule");
        opens(&format!("[{rule}]"), "x.example").expect("it is open");
        let denied = opens(
            &format!(r#"[{rule}, {{"name": "no", "hosts": ["x.example"], "decision": "Deny"}}]"#),
            "x.example",
        );
        let denied = denied.expect_err("closed").to_string();
        assert!(denied.contains("\"no\"") && denied.ends_with("nothing was written"), "{denied}");
        let address = r#"[{"name": "10.0.0.5:5432", "cidrs": ["10.0.0.5/32"], "ports": [5432]}]"#;
        let closed = opens(address, "10.0.0.5:5432").expect_err("closed").to_string();
        assert!(closed.contains("10.0.0.5 stays closed with the new rule"), "{closed}");
        let mut observes = level(&format!("[{rule}]"));
        Arc::get_mut(&mut observes[0]).expect("one").mode = Mode::Observe;
        assert!(check_opens(&observes, "x.example", &Moment::default()).is_err());
    }

    #[test]
    fn rules_of_an_earlier_sandbox_of_the_name_are_not_kept() {
        let first = object("allow-a", &sandbox(), vec![rule("x.example", None)]).expect("an object");
        let mut second = sandbox();
        second.metadata.uid = Some("v".into());
        let changed = changed(first, &second, rule("y.example", None), at(5)).expect("changed");
        assert_eq!(
            (changed.ended, names(&changed.policy)),
            (vec!["x.example".to_owned()], vec!["y.example".to_owned()])
        );
    }

    #[test]
    fn policy_ends_when_all_of_its_rules_have_ended() {
        let first = object("allow-a", &sandbox(), vec![rule("x.example", Some(10))]).expect("an object");
        assert_eq!(first.data["spec"]["expires"], "1970-01-01T00:00:10Z");
        assert_eq!(first.metadata.owner_references.as_ref().map(Vec::len), Some(1));
        let changed = |stored, rule, now| changed(stored, &sandbox(), rule, at(now)).expect("changed");
        let Change { policy: second, ended, .. } = changed(first, rule("y.example", Some(20)), 5);
        assert!(ended.is_empty(), "{ended:?}");
        assert_eq!(second.data["spec"]["expires"], "1970-01-01T00:00:20Z");
        assert_eq!(names(&second), ["x.example", "y.example"]);
        let Change { policy: third, ended, .. } = changed(second, rule("z.example", None), 15);
        assert_eq!(ended, ["x.example"]);
        assert_eq!(third.data["spec"].get("expires"), None);
        assert_eq!(names(&third), ["y.example", "z.example"], "x has ended");
        let Change { policy: again, .. } = changed(third, rule("z.example", Some(99)), 16);
        assert_eq!(names(&again), ["y.example", "z.example"]);
        assert_eq!(again.data["spec"]["expires"], "1970-01-01T00:01:39Z");
    }

    /// `x.example` and `x.example:443` were two rules, and the end of one closed nothing.
    #[test]
    fn rule_that_opens_the_same_is_replaced_and_longer_ones_are_named() {
        let stored = |rules: Vec<EgressRule>| object("allow-a", &sandbox(), rules).expect("an object");
        let changed = |rules, new| {
            let change = changed(stored(rules), &sandbox(), new, at(5)).expect("changed");
            (names(&change.policy).join(" "), change.longer.join("; "))
        };
        let replaced = |old: EgressRule, end| changed(vec![old], rule("x.a.example", end));
        let ends = "before, it was open without an end".to_owned();
        assert_eq!(replaced(rule("X.a.example:443", None), Some(20)), ("x.a.example".to_owned(), ends));
        let ends = "before, it was open until 1970-01-01T00:00:30Z".to_owned();
        assert_eq!(replaced(rule("x.a.example", Some(30)), Some(20)), ("x.a.example".to_owned(), ends));
        assert_eq!(replaced(rule("x.a.example", Some(10)), Some(20)).1, "");
        assert_eq!(replaced(rule("x.a.example", Some(10)), None).1, "");
        let (kept, line) = changed(
            vec![rule("*.a.example", None), rule("x.a.example:80", None)],
            rule("x.a.example", Some(9)),
        );
        assert_eq!(kept, "*.a.example x.a.example:80 x.a.example");
        assert_eq!(line, "rule \"*.a.example\" of the same policy opens it without an end");
        // One that denies, or allows less, is kept.
        let deny = EgressRule { name: "no".into(), decision: Decision::Deny, ..rule("x.a.example", None) };
        let (kept, line) = changed(vec![deny], rule("x.a.example", Some(9)));
        assert_eq!((kept.as_str(), line.as_str()), ("no x.a.example", ""));
        let deny = EgressRule { decision: Decision::Deny, ..rule("*.a.example", None) };
        assert_eq!(changed(vec![deny], rule("x.a.example", Some(9))).1, "");
    }
}
