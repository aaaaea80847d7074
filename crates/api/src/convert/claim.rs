//! Converts `spec.sandboxTemplateRef` and `spec.warmpool` from and to `spec.warmPoolRef`; carries
//! `spec.volumeClaimTemplates`, which the older version lacks.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::carried::{set_annotation, take_readable};
use super::{Error, Saved, object_entry, text};
use crate::SHADOW_POOL_PREFIX;
use crate::annotation::{VOLUME_CLAIM_TEMPLATES, WARM_POOL_REF};

/// A pool, and its form in the older version. Valid while that form is unchanged.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Shown {
    pool: String,
    template: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    warmpool: Option<String>,
}

impl Shown {
    fn parse(text: &str) -> Option<Shown> {
        serde_json::from_str(text).ok()
    }
}

pub(super) fn up(object: &mut Map<String, Value>, _: Option<&Saved>) -> Result<(), Error> {
    let shown = take_readable(object, WARM_POOL_REF, Shown::parse);
    let volumes = take_readable(object, VOLUME_CLAIM_TEMPLATES, volume_claims);
    let pool = match shown {
        Some(shown) if shown == shows(object, &shown.pool) => shown.pool,
        _ => pool_of(object),
    };
    let spec = object_entry(object, "spec")?;
    spec.remove("sandboxTemplateRef");
    spec.remove("warmpool");
    spec.insert("warmPoolRef".into(), json!({ "name": pool }));
    if let Some(volumes) = volumes {
        spec.insert("volumeClaimTemplates".into(), volumes);
    }
    Ok(())
}

/// Returns the pool that a claim of the older version refers to.
fn pool_of(object: &Map<String, Value>) -> String {
    let bound = text(object, &["status", "sandbox", "name"]);
    match specific_pool(text(object, &["spec", "warmpool"])) {
        Some(pool) => pool.to_owned(),
        // A pool names its Sandboxes after itself, so the bound Sandbox identifies its pool.
        None if !bound.is_empty() && bound != text(object, &["metadata", "name"]) => {
            without_suffix(bound).to_owned()
        }
        None => format!("{SHADOW_POOL_PREFIX}{}", text(object, &["spec", "sandboxTemplateRef", "name"])),
    }
}

fn shows(object: &Map<String, Value>, pool: &str) -> Shown {
    Shown {
        pool: pool.to_owned(),
        template: text(object, &["spec", "sandboxTemplateRef", "name"]).to_owned(),
        warmpool: object.get("spec").and_then(|spec| spec["warmpool"].as_str()).map(str::to_owned),
    }
}

/// Schemas are not checked after a conversion, so values from annotations must at least have the right shape.
fn volume_claims(text: &str) -> Option<Value> {
    let list: Vec<Map<String, Value>> = serde_json::from_str(text).ok()?;
    let fits = |item: &Map<String, Value>| {
        item.get("spec").is_some_and(Value::is_object)
            && item.get("metadata").is_none_or(Value::is_object)
            && item.keys().all(|key| matches!(key.as_str(), "spec" | "metadata"))
    };
    list.iter().all(fits).then(|| list.into())
}

pub(super) fn down(object: &mut Map<String, Value>, saved: Option<&Saved>) -> Result<(), Error> {
    let pool = text(object, &["spec", "warmPoolRef", "name"]).to_owned();
    let bound = text(object, &["status", "sandbox", "name"]).to_owned();
    // On a newer object these annotations have no meaning, and must not gain one when it is converted back.
    take_readable(object, WARM_POOL_REF, Shown::parse);
    take_readable(object, VOLUME_CLAIM_TEMPLATES, volume_claims);
    let spec = object_entry(object, "spec")?;
    spec.remove("warmPoolRef");
    let volumes = spec.remove("volumeClaimTemplates");
    let (template, warmpool) = match saved {
        Some(saved) => as_written(saved, &pool, &bound),
        None => match pool.strip_prefix(SHADOW_POOL_PREFIX) {
            Some(template) => (template.to_owned(), Some("default".to_owned())),
            None => (pool.clone(), Some(pool.clone())),
        },
    };
    spec.insert("sandboxTemplateRef".into(), json!({ "name": template }));
    if let Some(warmpool) = warmpool {
        spec.insert("warmpool".into(), warmpool.into());
    }
    if pool_of(object) != pool {
        let shown = shows(object, &pool);
        set_annotation(object, WARM_POOL_REF, json!(shown).to_string())?;
    }
    match volumes {
        Some(Value::Array(volumes)) if !volumes.is_empty() => {
            set_annotation(object, VOLUME_CLAIM_TEMPLATES, Value::Array(volumes).to_string())
        }
        _ => Ok(()),
    }
}

/// Returns template and `warmpool` as written in the older version, or the pool that was chosen since.
fn as_written(saved: &Saved, pool: &str, bound: &str) -> (String, Option<String>) {
    let (template, warmpool) = (saved.template().unwrap_or_default(), saved.warmpool());
    let expected = specific_pool(warmpool.unwrap_or_default()).unwrap_or(template);
    let from_sandbox = !bound.is_empty() && (pool == bound || pool == without_suffix(bound));
    let unchanged =
        pool == expected || pool.strip_prefix(SHADOW_POOL_PREFIX) == Some(expected) || from_sandbox;
    let warmpool = if unchanged { warmpool.map(str::to_owned) } else { Some(pool.to_owned()) };
    (template.to_owned(), warmpool)
}

/// Returns the value of `warmpool` when it names one pool and is not a keyword.
fn specific_pool(warmpool: &str) -> Option<&str> {
    (!matches!(warmpool, "" | "none" | "default")).then_some(warmpool)
}

/// `a-b-x7k2p` -> `a-b`; the name itself when it has no dash.
fn without_suffix(name: &str) -> &str {
    name.rsplit_once('-').map_or(name, |(start, _)| start)
}
