//! Policies of a server: which of them apply to a sandbox, and the level that each one is.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;

use crate::attach::Subject;
use crate::decide::{Authority, Level, opens};
use crate::files::{FileRule, Restrictions, restrictions};
use crate::network::NetworkLevel;
use crate::object::{InvalidPolicy, PolicyObject};

/// Maximum policies of a sandbox.
pub const LEVELS: usize = 8;
/// Maximum characters of the reason why a policy cannot be read.
const WHY: usize = 300;

/// Namespace of a policy, empty for one of the cluster, and its name.
pub type PolicyKey = (String, String);
/// Policies of a server by their keys.
pub type Policies = BTreeMap<PolicyKey, StoredPolicy>;

/// Policy of a server, and the level that it is for each authority.
#[derive(Debug)]
pub struct StoredPolicy {
    object: Result<PolicyObject, Unreadable>,
    /// Uid of the object and generation of its spec, if known.
    version: Option<(String, i64)>,
    /// Times at which rules end, in order.
    ends: Vec<Timestamp>,
    /// Levels until the next of them. Those of the past are not kept, since each is a copy of the rules.
    step: Mutex<Step>,
}

/// Policy that cannot be read: it closes everything in its reach.
#[derive(Debug, PartialEq)]
struct Unreadable {
    /// The policy with `appliesTo` alone; `None` if it may apply to all sandboxes.
    reach: Option<PolicyObject>,
    why: String,
}

/// Levels of a policy until the next of its rules ends.
#[derive(Debug, Default)]
struct Step {
    ends: Option<Timestamp>,
    /// By the order of [`Authority`]; made on first use, so that sandboxes share a level.
    levels: [Option<Arc<Level>>; 5],
}

impl PartialEq for StoredPolicy {
    fn eq(&self, other: &StoredPolicy) -> bool {
        self.object == other.object
    }
}

impl StoredPolicy {
    /// Returns a policy as it is stored.
    ///
    /// # Errors
    /// The policy is invalid. [`StoredPolicy::unreadable`] then takes its place.
    pub fn new(object: PolicyObject) -> Result<StoredPolicy, InvalidPolicy> {
        let policy = StoredPolicy::of_file(object)?;
        policy.object().map_or(Ok(()), PolicyObject::check_for_server)?;
        Ok(policy)
    }

    /// Returns a policy of a file, which may be for a command alone.
    ///
    /// # Errors
    /// The policy is invalid.
    pub fn of_file(object: PolicyObject) -> Result<StoredPolicy, InvalidPolicy> {
        object.check()?;
        let mut ends: Vec<_> = object.rules().iter().filter_map(|rule| rule.expires).collect();
        ends.sort_unstable();
        ends.dedup();
        Ok(StoredPolicy { object: Ok(object), version: None, ends, step: Mutex::default() })
    }

    /// Returns a policy that cannot be read, for this reason.
    pub fn unreadable(object: &serde_json::Value, why: String) -> StoredPolicy {
        let reach = PolicyObject::reach(object);
        // It may repeat texts of the policy, and becomes a part of conditions.
        let plain = why.chars().map(|c| if c.is_control() { ' ' } else { c });
        let why = plain.take(WHY).collect();
        StoredPolicy {
            object: Err(Unreadable { reach, why }),
            version: None,
            ends: Vec::new(),
            step: Mutex::default(),
        }
    }

    /// Notes the uid of the object, and the generation of its spec.
    pub fn of_version(self, version: Option<(String, i64)>) -> StoredPolicy {
        StoredPolicy { version, ..self }
    }

    /// Returns true if it was read from this version of the spec.
    pub fn is_of_version(&self, version: Option<&(String, i64)>) -> bool {
        version.is_some() && self.version.as_ref() == version
    }

    /// Returns the object; `None` if it cannot be read.
    pub fn object(&self) -> Option<&PolicyObject> {
        self.object.as_ref().ok()
    }

    /// Returns the authority by which the policy applies to a sandbox, with the policy.
    ///
    /// # Errors
    /// The policy applies, or may do so, and cannot be read: the reason.
    fn over(
        &self,
        subject: &Subject,
        namespace: Option<&str>,
    ) -> Result<Option<(Authority, &PolicyObject)>, &str> {
        match &self.object {
            Ok(object) => Ok(object.authority_over(subject, namespace).map(|authority| (authority, object))),
            Err(Unreadable { reach: Some(reach), .. })
                if reach.authority_over(subject, namespace).is_none() =>
            {
                Ok(None)
            }
            Err(unreadable) => Err(&unreadable.why),
        }
    }

    /// Returns true if the policy counts at a time: it can be read, and has not ended.
    fn counts(&self, now: Timestamp) -> bool {
        self.object().is_some_and(|object| object.expires().is_none_or(|expires| now < expires))
    }

    /// Returns the time at which its levels change after this one.
    fn until(&self, now: Timestamp) -> Option<Timestamp> {
        let of_rule = self.ends.iter().find(|ends| now < **ends).copied();
        [of_rule, self.object().and_then(PolicyObject::expires)].into_iter().flatten().min()
    }

    /// Returns the level for an authority; `None` for a policy that has ended or cannot be read.
    pub fn level(&self, authority: Authority, now: Timestamp) -> Option<Arc<Level>> {
        let object = self.object().filter(|_| self.counts(now))?;
        let ends = self.ends.iter().find(|ends| now < **ends).copied();
        let mut step = self.step.lock().unwrap_or_else(PoisonError::into_inner);
        if step.ends != ends {
            *step = Step { ends, ..Step::default() };
        }
        let level = step.levels.get_mut(authority as usize)?;
        Some(level.get_or_insert_with(|| Arc::new(object.level_at(authority, now))).clone())
    }
}

/// Levels that apply to a sandbox.
#[derive(Debug, Clone, Default)]
pub struct Applying {
    /// Levels.
    pub levels: Vec<Arc<Level>>,
    /// Time at which a level ends or changes, if none of the objects does earlier.
    pub until: Option<Timestamp>,
}

/// Reason of the condition of a Sandbox whose policies cannot be enforced: nothing is reachable.
pub const NOT_ENFORCEABLE: &str = "PolicyNotEnforceable";

/// Reason of the condition of a Sandbox of whose policies a part is not enforced, while the rest applies.
pub const PARTLY_ENFORCED: &str = "PartlyEnforced";

/// Reason why nothing is reachable although policies may apply.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotEnforceable {
    /// An annotation names a policy that does not exist.
    #[error("there is no SandboxPolicy {0:?} in the namespace: no egress")]
    NotFound(String),
    /// A policy cannot be read, for a reason.
    #[error("policy {0:?} cannot be read: {1}: no egress")]
    Invalid(String, String),
    /// More apply than may, until a time.
    #[error("{0} policies apply, at most {LEVELS} may: no egress")]
    TooMany(usize, Option<Timestamp>),
}

impl NotEnforceable {
    /// Returns the time at which a policy begins or ends, and fewer may apply.
    pub fn until(&self) -> Option<Timestamp> {
        match self {
            NotEnforceable::TooMany(_, until) => *until,
            NotEnforceable::NotFound(_) | NotEnforceable::Invalid(..) => None,
        }
    }
}

/// Returns the levels that apply to a sandbox at a time, of the policies of the cluster and of all namespaces, and of the
/// `networkPolicy` of its template.
///
/// # Errors
/// Nothing is reachable: the reason.
pub fn applying(
    subject: &Subject,
    cluster: &Policies,
    namespaced: &Policies,
    network: Option<&NetworkLevel>,
    now: Timestamp,
) -> Result<Applying, NotEnforceable> {
    let key = |name: &String| (subject.namespace.clone(), name.clone());
    let mut named = subject.by_template.iter().chain(&subject.by_claim);
    if let Some(name) = named.find(|name| !namespaced.contains_key(&key(name))) {
        return Err(NotEnforceable::NotFound(name.clone()));
    }
    let mut found = Vec::new();
    for ((namespace, name), policy) in cluster.iter().chain(of_namespace(namespaced, &subject.namespace)) {
        let namespace = (!namespace.is_empty()).then_some(namespace.as_str());
        let applies = policy.over(subject, namespace);
        let applies = applies.map_err(|why| NotEnforceable::Invalid(name.clone(), why.to_owned()))?;
        found.extend(applies.filter(|_| policy.counts(now)).map(|(authority, _)| (policy, authority)));
    }
    let until = found.iter().filter_map(|(policy, _)| policy.until(now)).min();
    let count = found.len() + usize::from(network.is_some());
    if count > LEVELS {
        // Without their levels, which take memory.
        return Err(NotEnforceable::TooMany(count, until));
    }
    let levels = found.into_iter().filter_map(|(policy, authority)| policy.level(authority, now));
    let mut found = Applying { levels: levels.collect(), until };
    if let Some(network) = network {
        let level = if opens(&found.levels) { &network.beside } else { &network.alone };
        found.levels.push(level.clone());
    }
    Ok(found)
}

/// Rules for files of a policy that applies to a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyFiles {
    /// Name of the policy.
    pub policy: String,
    /// The rest of the policy applies also where the rules are not enforced.
    pub reports: bool,
    /// Rules, in the order of the policy.
    pub rules: Vec<FileRule>,
}

impl PolicyFiles {
    /// Combines the rules of all policies, and those of the policies that do not only report what is not enforced.
    pub fn combined(all: &[PolicyFiles]) -> (Restrictions, Restrictions) {
        let of = |counts: &dyn Fn(&PolicyFiles) -> bool| {
            let policies = all.iter().filter(|policy| counts(policy));
            restrictions(&policies.map(|policy| policy.rules.as_slice()).collect::<Vec<_>>())
        };
        (of(&|_| true), of(&|policy| !policy.reports))
    }
}

/// Returns the rules for files that apply to a sandbox at a time, of all policies that can be read: also where [`applying`]
/// is an error.
///
/// # Errors
/// More policies with such rules apply than may: their number.
pub fn file_rules(
    subject: &Subject,
    cluster: &Policies,
    namespaced: &Policies,
    now: Timestamp,
) -> Result<Vec<PolicyFiles>, usize> {
    let rules = |(name, object): (&str, &PolicyObject)| PolicyFiles {
        policy: name.to_owned(),
        reports: object.reports_unsupported(),
        rules: object.files().to_vec(),
    };
    let having =
        || readable(subject, cluster, namespaced, now).filter(|(_, object)| !object.files().is_empty());
    match having().count() {
        count if count > LEVELS => Err(count),
        _ => Ok(having().map(rules).collect()),
    }
}

/// Returns the policies that apply to a sandbox at a time, with their names, of all that can be read.
fn readable<'a>(
    subject: &'a Subject,
    cluster: &'a Policies,
    namespaced: &'a Policies,
    now: Timestamp,
) -> impl Iterator<Item = (&'a str, &'a PolicyObject)> {
    let policies = cluster.iter().chain(of_namespace(namespaced, &subject.namespace));
    policies.filter_map(move |((namespace, name), policy)| {
        let namespace = (!namespace.is_empty()).then_some(namespace.as_str());
        let (_, object) = policy.over(subject, namespace).ok()??;
        let ended = object.expires().is_some_and(|expires| expires <= now);
        (!ended).then_some((name.as_str(), object))
    })
}

/// Field of a policy that `hutch up` alone enforces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldOfServer {
    /// Name of the policy, and the path of the field.
    pub name: String,
    /// The rest of the policy applies also where the field is not enforced.
    pub reports: bool,
}

/// Returns the fields that `hutch up` alone enforces of the policies that apply to a sandbox at a time, of all that can be read.
pub fn fields_of_server(
    subject: &Subject,
    cluster: &Policies,
    namespaced: &Policies,
    now: Timestamp,
) -> Vec<FieldOfServer> {
    let fields = |(name, object): (&str, &PolicyObject)| {
        let reports = object.reports_unsupported();
        let named = |field| FieldOfServer { name: format!("policy {name:?}: {field}"), reports };
        object.fields_of_server().into_iter().map(named).collect::<Vec<_>>()
    };
    readable(subject, cluster, namespaced, now).flat_map(fields).collect()
}

/// Returns the levels with a scanner that apply to a sandbox at a time, of all policies that can be read, as [`file_rules`] does.
pub fn scanning(
    subject: &Subject,
    cluster: &Policies,
    namespaced: &Policies,
    now: Timestamp,
) -> Vec<Arc<Level>> {
    let level = |((namespace, _), policy): (&PolicyKey, &StoredPolicy)| {
        policy.object().filter(|object| object.scanner().is_some())?;
        let namespace = (!namespace.is_empty()).then_some(namespace.as_str());
        let (authority, _) = policy.over(subject, namespace).ok()??;
        policy.level(authority, now)
    };
    cluster.iter().chain(of_namespace(namespaced, &subject.namespace)).filter_map(level).collect()
}

/// Returns the policies of a namespace.
fn of_namespace<'a>(
    all: &'a Policies,
    namespace: &str,
) -> impl Iterator<Item = (&'a PolicyKey, &'a StoredPolicy)> {
    let first = (namespace.to_owned(), String::new());
    let namespace = namespace.to_owned();
    all.range(first..).take_while(move |((other, _), _)| *other == namespace)
}

impl NotEnforceable {
    /// Returns the reason of the condition of a Sandbox.
    pub fn reason(&self) -> &'static str {
        match self {
            NotEnforceable::NotFound(_) => "PolicyNotFound",
            NotEnforceable::Invalid(..) => "InvalidPolicy",
            NotEnforceable::TooMany(..) => "TooManyPolicies",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attach::policy_names;
    use crate::decide::decide;
    use crate::destination::Decision;
    use crate::expression::Moment;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn policies(specs: &[(&str, &str)]) -> Policies {
        let all = specs.iter().map(|(name, spec)| {
            let text = format!(
                r#"{{"apiVersion": "policy.hutch.dev/v1alpha1", "kind": "SandboxPolicy", "metadata": {{"name": "{name}"}}, "spec": {spec}}}"#
            );
            let policy = StoredPolicy::new(serde_json::from_str(&text).unwrap()).unwrap();
            (("team".to_owned(), (*name).to_owned()), policy)
        });
        all.collect()
    }

    fn subject() -> Subject {
        Subject { namespace: "team".into(), sandbox: Some("a".into()), ..Subject::default() }
    }

    #[test]
    fn policy_and_rule_end_at_their_time() {
        let all = policies(&[
            ("p", r#"{"appliesTo": {}, "expires": "1970-01-01T00:01:00Z", "egress": {"rules": []}}"#),
            (
                "q",
                r#"{"appliesTo": {}, "egress": {"rules": [
                    {"name": "a", "any": true}, {"name": "b", "any": true, "expires": "1970-01-01T00:00:30Z"}]}}"#,
            ),
        ]);
        let of = |second| applying(&subject(), &Policies::new(), &all, None, at(second)).unwrap();
        let rules = |found: &Applying| -> Vec<usize> {
            found.levels.iter().map(|level| level.egress.as_ref().unwrap().rules.len()).collect()
        };
        for (second, expected, until) in [
            (0, vec![0, 2], Some(at(30))),
            (29, vec![0, 2], Some(at(30))),
            (30, vec![0, 1], Some(at(60))),
            (60, vec![1], None),
        ] {
            let found = of(second);
            assert_eq!((rules(&found), found.until), (expected, until), "{second}");
        }
        assert!(Arc::ptr_eq(&of(0).levels[1], &of(29).levels[1]), "sandboxes share a level");
    }

    #[test]
    fn rules_for_files_are_those_of_each_policy_that_applies() {
        let files = |access: &str| format!(r#"[{{"path": "/a", "access": "{access}"}}]"#);
        let specs = [
            ("all", format!(r#"{{"appliesTo": {{}}, "files": {}}}"#, files("Read"))),
            (
                "ended",
                format!(
                    r#"{{"appliesTo": {{}}, "expires": "1970-01-01T00:01:00Z", "files": {}}}"#,
                    files("None")
                ),
            ),
            ("named", format!(r#"{{"files": {}}}"#, files("None"))),
            ("network", r#"{"appliesTo": {}, "egress": {"rules": []}}"#.to_owned()),
            ("other", format!(r#"{{"appliesTo": {{"sandboxes": ["b"]}}, "files": {}}}"#, files("None"))),
        ];
        let all = policies(&specs.each_ref().map(|(name, spec)| (*name, spec.as_str())));
        let names = |subject: &Subject, second| {
            let found = file_rules(subject, &Policies::new(), &all, at(second)).unwrap().into_iter();
            found.map(|found| found.policy).collect::<Vec<_>>()
        };
        assert_eq!(names(&subject(), 0), ["all", "ended"]);
        assert_eq!(names(&subject(), 60), ["all"]);
        // A policy that does not exist hides none of the others.
        let missing = Subject { by_claim: policy_names("named,missing"), ..subject() };
        assert_eq!(names(&missing, 60), ["all", "named"]);
        assert_eq!(names(&Subject { namespace: "other".into(), ..subject() }, 0), [""; 0]);
    }

    /// The rules of all policies of a tenant were combined at each change.
    #[test]
    fn rules_for_files_of_too_many_policies_are_not_combined() {
        let names: Vec<String> = (0..=LEVELS).map(|number| format!("p{number}")).collect();
        let spec = r#"{"appliesTo": {}, "files": [{"path": "/a", "access": "Read"}]}"#;
        let count = |count: usize| {
            let all: Vec<_> = names.iter().take(count).map(|name| (name.as_str(), spec)).collect();
            file_rules(&subject(), &Policies::new(), &policies(&all), at(0)).map(|found| found.len())
        };
        assert_eq!((count(LEVELS), count(LEVELS + 1)), (Ok(LEVELS), Err(LEVELS + 1)));
    }

    /// A policy whose rules end one after the other held a copy of them for each of these times, and so did policies that are
    /// too many.
    #[test]
    fn levels_of_the_past_and_of_too_many_policies_are_not_kept() {
        let rules: Vec<String> = (1..60)
            .map(|number| {
                format!(r#"{{"name": "{number}", "any": true, "expires": "1970-01-01T00:00:{number:02}Z"}}"#)
            })
            .collect();
        let spec = format!(r#"{{"appliesTo": {{}}, "egress": {{"rules": [{}]}}}}"#, rules.join(", "));
        let all = policies(&[("p", &spec)]);
        let level =
            |second| applying(&subject(), &Policies::new(), &all, None, at(second)).unwrap().levels.remove(0);
        let first = Arc::downgrade(&level(0));
        assert!(first.upgrade().is_some(), "it is kept until its time");
        level(1);
        assert!(first.upgrade().is_none());
        let names: Vec<String> = (0..=LEVELS).map(|number| format!("p{number}")).collect();
        let all: Vec<_> = names.iter().map(|name| (name.as_str(), spec.as_str())).collect();
        let all = policies(&all);
        let error = applying(&subject(), &Policies::new(), &all, None, at(0)).unwrap_err();
        assert_eq!(error, NotEnforceable::TooMany(LEVELS + 1, Some(at(1))));
        let has_level =
            |policy: &StoredPolicy| policy.step.lock().unwrap().levels.iter().any(Option::is_some);
        assert!(!all.values().any(has_level));
    }

    #[test]
    fn stored_condition_on_an_unknown_field_allows_nothing_and_takes_nothing_else() {
        let spec = r#"{"appliesTo": {}, "files": [{"path": "/a", "access": "None"}], "egress": {"rules": [
            {"name": "a", "hosts": ["a.example"], "when": "session.anomaly < 3"},
            {"name": "b", "hosts": ["b.example"]},
            {"name": "c", "hosts": ["c.example"]},
            {"name": "d", "hosts": ["c.example"], "decision": "Deny", "when": "session.anomaly > 3"}]}}"#;
        let all = policies(&[("p", spec)]);
        let policy = all.values().next().and_then(StoredPolicy::object).unwrap();
        let error = policy.check_new().unwrap_err();
        assert_eq!(error.field, "spec.egress.rules[0].when");
        assert!(error.reason.contains("session has no field \"anomaly\""), "{error}");
        let none = Policies::new();
        let levels = applying(&subject(), &none, &all, None, at(0)).unwrap().levels;
        for (host, expected) in
            [("a.example", Decision::Deny), ("b.example", Decision::Allow), ("c.example", Decision::Deny)]
        {
            let verdict = decide(&levels, &host.parse().unwrap(), &Moment::default());
            assert_eq!(verdict.decision, expected, "{host}");
        }
        assert_eq!(file_rules(&subject(), &none, &all, at(0)).unwrap()[0].rules.len(), 1);
    }

    /// Regression: on a cluster, where another API server checks policies, they had no bound.
    #[test]
    fn policy_above_128_kib_is_not_read() {
        let object = |rules: usize| -> PolicyObject {
            let hosts: Vec<String> = (0..64).map(|host| format!(r#""{host:060}.example""#)).collect();
            let hosts = hosts.join(", ");
            let rules = (0..rules).map(|rule| format!(r#"{{"name": "{rule}", "hosts": [{hosts}]}}"#));
            let spec = format!(r#"{{"egress": {{"rules": [{}]}}}}"#, rules.collect::<Vec<_>>().join(", "));
            let text = format!(
                r#"{{"apiVersion": "policy.hutch.dev/v1alpha1", "kind": "SandboxPolicy", "metadata": {{"name": "p"}}, "spec": {spec}}}"#
            );
            serde_json::from_str(&text).unwrap()
        };
        assert!(StoredPolicy::new(object(20)).is_ok());
        let error = StoredPolicy::new(object(40)).unwrap_err();
        assert_eq!(error.field, "spec");
        assert!(error.reason.ends_with(" bytes; at most 131072"), "{error}");
        assert!(object(40).check_new().is_ok(), "only its size is wrong");
    }

    #[test]
    fn policy_that_is_missing_invalid_or_one_too_many_closes_everything() {
        let missing = Subject { by_claim: policy_names("later"), ..subject() };
        let none = Policies::new();
        let error = applying(&missing, &none, &none, None, at(0)).unwrap_err();
        assert_eq!((error.reason(), error), ("PolicyNotFound", NotEnforceable::NotFound("later".into())));
        let elsewhere = Subject { namespace: "other".into(), ..subject() };
        let closes = |spec: &str, subject: &Subject| {
            let text = format!(
                r#"{{"apiVersion": "policy.hutch.dev/v1alpha1", "kind": "SandboxPolicy", "metadata": {{"name": "x"}}, "spec": {spec}}}"#
            );
            let policy = StoredPolicy::unreadable(&serde_json::from_str(&text).unwrap(), "why".to_owned());
            let all = Policies::from([(("team".to_owned(), "x".to_owned()), policy)]);
            match applying(subject, &none, &all, None, at(0)) {
                Ok(found) => !found.levels.is_empty(),
                Err(error) => error == NotEnforceable::Invalid("x".into(), "why".into()),
            }
        };
        // Of one that cannot be read, what says to whom it applies counts, if at least that can be read.
        let named = Subject { by_claim: policy_names("x"), ..subject() };
        let (of_a, of_b) =
            (r#"{"appliesTo": {"sandboxes": ["a"]}, "x": 1}"#, r#"{"appliesTo": {"sandboxes": ["b"]}}"#);
        for (spec, subject, expected) in [
            (r#"{"appliesTo": {}, "egress": 1}"#, subject(), true),
            (of_a, subject(), true),
            (of_b, subject(), false),
            (of_b, named.clone(), true),
            (r#"{"egress": 1}"#, subject(), false),
            (r#"{"egress": 1}"#, named, true),
            (r#"{"appliesTo": {"sandbox": ["b"]}}"#, subject(), true),
            (r#"{"appliesTo": 1}"#, subject(), true),
            ("1", subject(), true),
            (r#"{"appliesTo": {}}"#, elsewhere, false),
        ] {
            assert_eq!(closes(spec, &subject), expected, "{spec} {subject:?}");
        }
        let long = StoredPolicy::unreadable(&serde_json::Value::Null, "\u{1b}".repeat(1000));
        let all = Policies::from([(("team".to_owned(), "x".to_owned()), long)]);
        let error = applying(&subject(), &none, &all, None, at(0)).unwrap_err();
        assert_eq!(error, NotEnforceable::Invalid("x".into(), " ".repeat(WHY)));
        let names: Vec<String> = (0..9).map(|number| format!("p{number}")).collect();
        let specs: Vec<_> = names.iter().map(|name| (name.as_str(), r#"{"appliesTo": {}}"#)).collect();
        let error = applying(&subject(), &none, &policies(&specs), None, at(0)).unwrap_err();
        assert_eq!(error, NotEnforceable::TooMany(9, None));
        assert_eq!(applying(&subject(), &none, &policies(&specs[..8]), None, at(0)).unwrap().levels.len(), 8);
    }
}
