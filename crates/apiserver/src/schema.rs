//! Structural schemas of custom kinds: defaults, validation, CEL rules.

mod cel;
mod defaults;
mod validate;

use std::collections::HashMap;
use std::sync::Arc;

use regex::Regex;
use serde_json::Value;

use crate::failure::Cause;

/// A schema ready for use. The schema itself is walked as written; only what is costly to make is kept beside it.
#[derive(Debug)]
pub(crate) struct Structural {
    schema: Arc<Value>,
    patterns: HashMap<String, Regex>,
    rules: cel::Rules,
}

impl Structural {
    pub(crate) fn compile(schema: &Arc<Value>) -> Self {
        let mut patterns = HashMap::new();
        collect_patterns(schema, &mut patterns);
        Structural { schema: schema.clone(), patterns, rules: cel::Rules::compile(schema) }
    }

    /// Fills in what the schema says of absent fields.
    pub(crate) fn default(&self, object: &mut Value) {
        defaults::apply(&self.schema, object, true);
    }

    /// Validates an object, apart from known errors; with `old` also the fields that may not change. As in Kubernetes, what
    /// `old` has too is not judged again: a schema may have become stricter since. `replicas` is the path of the count that
    /// `/scale` sets.
    pub(crate) fn validate(
        &self,
        object: &Value,
        old: Option<&Value>,
        replicas: Option<&str>,
        mut causes: Vec<Cause>,
    ) -> Vec<Cause> {
        causes.extend(validate::object(self, object, old));
        causes.extend(replicas.and_then(|path| validate::replicas(object, path)));
        // As in Kubernetes, rules are not asked about an object that lacks parts or has parts of a wrong type.
        let blocking =
            ["FieldValueRequired", "FieldValueTypeInvalid", "FieldValueTooLong", "FieldValueTooMany"];
        if causes.iter().any(|cause| blocking.contains(&cause.reason)) {
            if !self.rules.is_empty() {
                let detail = "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation";
                causes.push(Cause::invalid("<nil>", &Value::Null, detail));
            }
            return causes;
        }
        causes.extend(self.rules.check(object, old));
        causes
    }

    pub(crate) fn schema(&self) -> &Value {
        &self.schema
    }

    pub(crate) fn pattern(&self, text: &str) -> Option<&Regex> {
        self.patterns.get(text)
    }
}

fn collect_patterns(schema: &Value, patterns: &mut HashMap<String, Regex>) {
    match schema {
        Value::Object(map) => {
            if let Some(Value::String(pattern)) = map.get("pattern")
                && !patterns.contains_key(pattern)
                && let Ok(regex) = Regex::new(pattern)
            {
                patterns.insert(pattern.clone(), regex);
            }
            map.values().for_each(|child| collect_patterns(child, patterns));
        }
        Value::Array(list) => list.iter().for_each(|child| collect_patterns(child, patterns)),
        _ => {}
    }
}

/// Returns true if a schema has a default anywhere.
pub(crate) fn has_defaults(schema: &Value) -> bool {
    match schema {
        Value::Object(map) => map.contains_key("default") || map.values().any(has_defaults),
        Value::Array(list) => list.iter().any(has_defaults),
        _ => false,
    }
}

/// Returns true if a schema sets a flag.
fn flag(schema: &Value, name: &str) -> bool {
    schema.get(name) == Some(&Value::Bool(true))
}

#[cfg(test)]
mod tests;
