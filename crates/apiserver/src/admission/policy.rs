//! Policies of sandboxes: what their schema cannot say.

use hutch_api::annotation::POLICIES;
use hutch_policy::{POLICY_BYTES, PolicyObject, ProviderObject, policy_names};
use hutch_store::Page;
use serde::Deserialize;
use serde_json::Value;

use crate::access::Action;
use crate::call::Call;
use crate::failure::{Cause, Failure};
use crate::kinds::{self, Kind};
use crate::meta;

/// Group of the policies.
pub(crate) const GROUP: &str = kinds::POLICIES;

/// Warning of a NetworkPolicy.
const NO_EFFECT: &str = "a NetworkPolicy opens and closes nothing on one machine; a SandboxPolicy does \
                         (kubectl explain sandboxpolicy.spec)";

/// Collection of the policies that offer credentials.
const OFFERING: &str = "sandboxpolicies.policy.hutch.dev";

/// Collections of the objects whose annotation names policies.
const NAMING: [&str; 3] = [
    "sandboxtemplates.extensions.agents.x-k8s.io",
    "sandboxclaims.extensions.agents.x-k8s.io",
    "sandboxes.agents.x-k8s.io",
];

/// Warns about an object that has no effect, or a field of it that has none.
pub(crate) fn warn(call: &Call, object: &Value) {
    if call.resource.is("networking.k8s.io", "networkpolicies") {
        call.warn(NO_EFFECT);
    }
    if call.kind().group != GROUP {
        return;
    }
    let Ok(policy) = PolicyObject::deserialize(object) else { return };
    let ended = policy.ended(call.core.ambient.now());
    policy.without_effect().into_iter().chain(ended).for_each(|mistake| call.warn(mistake.to_string()));
    for (field, name) in policy.other_credentials().filter(|(_, name)| !is_offered(call, name)) {
        call.warn(format!("{field}: no policy offers a credential {name:?} here, so no request uses it"));
    }
    if policy.needs_annotation() && !is_named(call, policy.name()) {
        let name = policy.name();
        call.warn(format!(
            "spec.appliesTo: without it the policy applies to no sandbox until an annotation {POLICIES}: {name} of a \
             template, a claim or a Sandbox names it"
        ));
    }
}

/// Returns true if a policy in the namespace of the request, or in any if it has none, offers a credential of this name.
fn is_offered(call: &Call, credential: &str) -> bool {
    let prefix = call.prefix();
    let page = Page { prefix: &prefix, ..Page::default() };
    call.store.list(OFFERING, page).entries.iter().any(|entry| {
        let object = entry.value.value();
        let credentials = object["spec"]["credentials"].as_array();
        credentials.into_iter().flatten().any(|offered| offered["name"] == credential)
    })
}

/// Returns true if an annotation in the namespace of the request names a policy.
fn is_named(call: &Call, policy: &str) -> bool {
    let prefix = call.prefix();
    NAMING.iter().any(|collection| {
        let page = Page { prefix: &prefix, ..Page::default() };
        call.store.list(collection, page).entries.iter().any(|entry| {
            let names = entry.value.value()["metadata"]["annotations"][POLICIES].as_str().map(policy_names);
            names.is_some_and(|names| names.contains(policy))
        })
    })
}

/// Refuses fields of a policy without a value, which the schema would drop: `scanner: null` would restrict nothing. A spec
/// that is stored already may stay, so that an older policy can still be labeled and deleted.
pub(crate) fn check_given(kind: &Kind, object: &Value, old: Option<&Value>) -> Result<(), Failure> {
    if kind.group != GROUP || old.is_some_and(|old| old.get("spec") == object.get("spec")) {
        return Ok(());
    }
    hutch_policy::check_given(object).map_err(|error| {
        let cause = Cause::new("FieldValueInvalid", error.field, error.reason);
        Failure::invalid(kind, meta::text(object, "name"), vec![cause])
    })
}

/// Plural of the providers of credentials.
pub(super) const PROVIDERS: &str = "credentialproviders";

/// Refuses a new or changed policy with credentials of a provider that the caller may not use. Other kinds pass. The object
/// is as it will be stored: before, a number may be written in a way that its readers do not accept.
pub(crate) fn check_use(call: &Call, before: Option<&Value>, object: &Value) -> Result<(), Failure> {
    if call.kind().group != GROUP || call.kind().plural == PROVIDERS {
        return Ok(());
    }
    // Each field of the spec says where a value goes, or which sandboxes use it.
    if before.is_some_and(|before| before.get("spec") == object.get("spec")) {
        return Ok(());
    }
    let policy = PolicyObject::deserialize(object).map_err(|error| {
        let cause = Cause::new("FieldValueInvalid", "spec", error.to_string());
        Failure::invalid(call.kind(), meta::text(object, "name"), vec![cause])
    })?;
    let namespace = call.namespace.as_deref().unwrap_or_default();
    let denied = policy.providers().find(|name| {
        let using = Action::on("use", GROUP, PROVIDERS, name).inside(namespace);
        !call.core.access.decide(&call.identity, &using).allowed
    });
    let Some(name) = denied else { return Ok(()) };
    let user = &call.identity.name;
    let why = format!(
        "spec.credentials: user {user:?} cannot use credentialproviders.{GROUP} {name:?} in the namespace {namespace:?}: \
         that needs the verb \"use\""
    );
    Err(Failure::forbidden(call.kind(), policy.name(), &why, Vec::new()))
}

/// Checks a policy, or a provider of credentials, as its readers do. Those would close every sandbox in its reach.
pub(crate) fn check(kind: &Kind, object: &Value) -> Result<(), Failure> {
    let found = mistake(kind, object);
    found.map_err(|cause| Failure::invalid(kind, meta::text(object, "name"), vec![cause]))
}

/// Puts what the readers of a policy say about a field in place of what its schema says, such as that a text does not match a
/// pattern.
pub(crate) fn explain(kind: &Kind, object: &Value, causes: &mut [Cause]) {
    if kind.group != GROUP || causes.is_empty() {
        return;
    }
    let Err(found) = mistake(kind, object) else { return };
    let same = |cause: &&mut Cause| (cause.reason, &cause.field) == (found.reason, &found.field);
    causes.iter_mut().filter(same).for_each(|cause| *cause = found.clone());
}

/// Returns the first field that the readers of a policy, or of a provider of credentials, refuse.
fn mistake(kind: &Kind, object: &Value) -> Result<(), Cause> {
    let invalid = |field: String, reason: String| Err(Cause::new("FieldValueInvalid", field, reason));
    if kind.plural == PROVIDERS {
        return match serde_path_to_error::deserialize::<_, ProviderObject>(object) {
            Err(error) => invalid(error.path().to_string(), error.inner().to_string()),
            Ok(provider) => provider.check().or_else(|error| invalid(error.field, error.reason)),
        };
    }
    let bytes = object.get("spec").map_or(0, |spec| spec.to_string().len());
    if bytes > POLICY_BYTES {
        return invalid("spec".to_owned(), format!("{bytes} bytes; at most {POLICY_BYTES}"));
    }
    match serde_path_to_error::deserialize::<_, PolicyObject>(object) {
        Err(error) => invalid(error.path().to_string(), error.inner().to_string()),
        Ok(policy) => {
            let checked = policy.check_new().and_then(|()| policy.check_for_server());
            checked.or_else(|error| invalid(error.field, error.reason))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn stored_policy_that_could_not_be_written_today_can_be_labeled() {
        let kind = Kind { group: GROUP.into(), plural: "sandboxpolicies".into(), ..Kind::default() };
        let rules = json!([{"name": "a", "hosts": ["a.example"], "http": []}]);
        let old = json!({"metadata": {"name": "p"}, "spec": {"egress": {"rules": rules}}});
        let mut new = old.clone();
        new["metadata"]["labels"] = json!({"a": "b"});
        assert!(check_given(&kind, &new, Some(&old)).is_ok());
        assert!(check_given(&kind, &new, None).is_err());
        new["spec"]["mode"] = "Observe".into();
        assert!(check_given(&kind, &new, Some(&old)).is_err());
    }

    #[test]
    fn words_of_the_types_take_the_place_of_a_pattern() {
        let kind = Kind { group: GROUP.into(), plural: "sandboxpolicies".into(), ..Kind::default() };
        let object = json!({"apiVersion": "policy.hutch.dev/v1alpha1", "kind": "SandboxPolicy", "metadata": {"name": "p"},
            "spec": {"egress": {"rules": [{"name": "a", "hosts": ["a.example:443"]}]}}});
        let said = |field: &str| {
            let mut causes = vec![Cause::new("FieldValueInvalid", field, "should match")];
            explain(&kind, &object, &mut causes);
            causes.remove(0).message
        };
        let message = said("spec.egress.rules[0].hosts[0]");
        assert!(message.contains("or under `ports` of a policy"), "{message}");
        assert_eq!(said("spec.egress.rules[0].name"), "should match");
    }

    #[test]
    fn policy_above_64_kib_is_refused() {
        let kind = Kind { group: GROUP.into(), plural: "sandboxpolicies".into(), ..Kind::default() };
        let checked = |rules: usize| {
            let name = |rule: usize| format!("{rule:04}{}", "a".repeat(250));
            let rules: Vec<_> = (0..rules).map(|rule| json!({"name": name(rule), "any": true})).collect();
            let object = json!({"apiVersion": "policy.hutch.dev/v1alpha1", "kind": "SandboxPolicy",
                "metadata": {"name": "p"}, "spec": {"egress": {"rules": rules}}});
            check(&kind, &object)
        };
        assert!(checked(200).is_ok());
        let error = format!("{:?}", checked(240).unwrap_err());
        assert!(error.contains("bytes; at most 65536"), "{error}");
    }
}
