//! To whom a policy applies that cannot be read.

use serde_json::{Value, json};

use super::{PolicyObject, check_applies_to};

impl PolicyObject {
    /// Returns a policy that cannot be read, with nothing but what says to which sandboxes it applies; `None` if that cannot be
    /// read either.
    pub fn reach(object: &Value) -> Option<PolicyObject> {
        let spec = object.get("spec")?.as_object()?;
        let reach = json!({
            "apiVersion": object.get("apiVersion")?, "kind": object.get("kind")?,
            "metadata": {"name": object.get("metadata")?.get("name")?},
            "spec": {"appliesTo": spec.get("appliesTo")},
        });
        let reach: PolicyObject = serde_json::from_value(reach).ok()?;
        let applies = reach.spec.applies_to.as_ref();
        applies.is_none_or(|applies| check_applies_to(applies, reach.kind).is_ok()).then_some(reach)
    }
}
