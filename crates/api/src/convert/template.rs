//! Converts `spec.volumeClaimTemplatesPolicy`, which the older version carries as an annotation.

use serde_json::{Map, Value};

use super::{Error, Saved, object_entry, set_annotation, take_readable, text};
use crate::annotation::VOLUME_CLAIM_TEMPLATES_POLICY as KEY;

pub(super) fn up(object: &mut Map<String, Value>, _: Option<&Saved>) -> Result<(), Error> {
    let Some(policy) = take_readable(object, KEY, policy) else { return Ok(()) };
    object_entry(object, "spec")?.insert("volumeClaimTemplatesPolicy".into(), policy.into());
    Ok(())
}

fn policy(value: &str) -> Option<String> {
    matches!(value, "Disallowed" | "Allowed" | "Overrides").then(|| value.to_owned())
}

pub(super) fn down(object: &mut Map<String, Value>, _: Option<&Saved>) -> Result<(), Error> {
    // On a newer object the annotation has no meaning, and must not gain one when it is converted back.
    take_readable(object, KEY, policy);
    let policy = text(object, &["spec", "volumeClaimTemplatesPolicy"]).to_owned();
    object_entry(object, "spec")?.remove("volumeClaimTemplatesPolicy");
    if policy.is_empty() { Ok(()) } else { set_annotation(object, KEY, policy) }
}
