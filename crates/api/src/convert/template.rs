//! `spec.volumeClaimTemplatesPolicy`, which the older version carries as an annotation.

use serde_json::{Map, Value};

use super::{Error, Saved, object_entry, set_annotation, take_annotation, text};
use crate::annotation::VOLUME_CLAIM_TEMPLATES_POLICY as KEY;

pub(super) fn up(object: &mut Map<String, Value>, _: Option<&Saved>) -> Result<(), Error> {
    let Some(value) = take_annotation(object, KEY) else { return Ok(()) };
    if !matches!(value.as_str(), "Disallowed" | "Allowed" | "Overrides") {
        return Err(Error::Policy { key: KEY, value });
    }
    object_entry(object, "spec")?.insert("volumeClaimTemplatesPolicy".into(), value.into());
    Ok(())
}

pub(super) fn down(object: &mut Map<String, Value>, _: Option<&Saved>) -> Result<(), Error> {
    let policy = text(object, &["spec", "volumeClaimTemplatesPolicy"]).to_owned();
    object_entry(object, "spec")?.remove("volumeClaimTemplatesPolicy");
    if policy.is_empty() { Ok(()) } else { set_annotation(object, KEY, policy) }
}
