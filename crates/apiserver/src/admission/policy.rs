//! Policies of sandboxes: what their schema cannot say.

use hutch_policy::PolicyObject;
use serde_json::Value;

use crate::call::Call;
use crate::failure::{Cause, Failure};
use crate::kinds::Kind;
use crate::meta;

/// Group of the policies.
pub(crate) const GROUP: &str = "policy.hutch.dev";

/// Warning of a NetworkPolicy.
const NO_EFFECT: &str = "a NetworkPolicy opens and closes nothing on one machine; a SandboxPolicy does \
                         (kubectl explain sandboxpolicy.spec)";

/// Warns about an object that has no effect.
pub(crate) fn warn(call: &Call) {
    if call.resource.is("networking.k8s.io", "networkpolicies") {
        call.warn(NO_EFFECT);
    }
}

/// Maximum bytes of the spec of a policy.
const POLICY_BYTES: usize = 64 << 10;

/// Checks a policy as its readers do. Those would close every sandbox in its reach.
pub(crate) fn check(kind: &Kind, object: &Value) -> Result<(), Failure> {
    let invalid = |field: String, reason: String| {
        let cause = Cause::new("FieldValueInvalid", field, reason);
        Err(Failure::invalid(kind, meta::text(object, "name"), vec![cause]))
    };
    match serde_path_to_error::deserialize::<_, PolicyObject>(object) {
        Err(error) => invalid(error.path().to_string(), error.inner().to_string()),
        Ok(policy) => {
            let bytes = object.get("spec").map_or(0, |spec| spec.to_string().len());
            if bytes > POLICY_BYTES {
                return invalid("spec".to_owned(), format!("{bytes} bytes; at most {POLICY_BYTES}"));
            }
            let checked = policy.check().and_then(|()| policy.check_for_server());
            checked.or_else(|error| invalid(error.field, error.reason))
        }
    }
}
