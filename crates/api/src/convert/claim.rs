//! `spec.sandboxTemplateRef` and `spec.warmpool` against `spec.warmPoolRef`.

use serde_json::{Map, Value, json};

use super::{Error, object_entry, text};
use crate::SHADOW_POOL_PREFIX;

pub(super) fn up(object: &mut Map<String, Value>, _: Option<&Value>) -> Result<(), Error> {
    let template = text(object, &["spec", "sandboxTemplateRef", "name"]);
    let bound = text(object, &["status", "sandbox", "name"]);
    let pool = match specific_pool(text(object, &["spec", "warmpool"])) {
        Some(pool) => pool.to_owned(),
        // A pool names its Sandboxes after itself, so the bound one tells which pool it came from.
        None if !bound.is_empty() && bound != text(object, &["metadata", "name"]) => {
            without_suffix(bound).to_owned()
        }
        None => format!("{SHADOW_POOL_PREFIX}{template}"),
    };
    let spec = object_entry(object, "spec")?;
    spec.remove("sandboxTemplateRef");
    spec.remove("warmpool");
    spec.insert("warmPoolRef".into(), json!({ "name": pool }));
    Ok(())
}

pub(super) fn down(object: &mut Map<String, Value>, saved: Option<&Value>) -> Result<(), Error> {
    let pool = text(object, &["spec", "warmPoolRef", "name"]).to_owned();
    let bound = text(object, &["status", "sandbox", "name"]).to_owned();
    let spec = object_entry(object, "spec")?;
    spec.remove("warmPoolRef");
    spec.remove("volumeClaimTemplates");
    let empty = Map::new();
    let (template, warmpool) = match saved {
        Some(saved) => {
            let saved = saved["spec"].as_object().unwrap_or(&empty);
            let template = text(saved, &["sandboxTemplateRef", "name"]);
            let expected = specific_pool(text(saved, &["warmpool"])).unwrap_or(template);
            let from_sandbox = !bound.is_empty() && (pool == bound || pool == without_suffix(&bound));
            let unchanged =
                pool == expected || pool.strip_prefix(SHADOW_POOL_PREFIX) == Some(expected) || from_sandbox;
            let warmpool = if unchanged { saved.get("warmpool").cloned() } else { Some(pool.into()) };
            (template.to_owned(), warmpool)
        }
        None => match pool.strip_prefix(SHADOW_POOL_PREFIX) {
            Some(template) => (template.to_owned(), Some("default".into())),
            None => (pool.clone(), Some(pool.into())),
        },
    };
    spec.insert("sandboxTemplateRef".into(), json!({ "name": template }));
    if let Some(warmpool) = warmpool {
        spec.insert("warmpool".into(), warmpool);
    }
    Ok(())
}

/// The value of `warmpool` when it names one pool and is no general word.
fn specific_pool(warmpool: &str) -> Option<&str> {
    (!matches!(warmpool, "" | "none" | "default")).then_some(warmpool)
}

/// `a-b-x7k2p` -> `a-b`; the name itself when there is no dash in it.
fn without_suffix(name: &str) -> &str {
    name.rsplit_once('-').map_or(name, |(start, _)| start)
}
