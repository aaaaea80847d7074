//! The string fields of a kind, found in the OpenAPI documents of the server.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;

/// One step from an object to a field in it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Step {
    Field(String),
    /// The first item of a list.
    Item,
    /// A key of a map.
    Key,
    /// The value under this key of a map.
    Under(String),
}

/// The place of a string in an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place(pub(super) Vec<Step>);

impl fmt::Display for Place {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut first = true;
        for step in &self.0 {
            match step {
                Step::Field(name) if first => write!(out, "{name}")?,
                Step::Field(name) => write!(out, ".{name}")?,
                Step::Item => write!(out, "[]")?,
                Step::Key => write!(out, "{{key}}")?,
                Step::Under(key) => write!(out, "{{{key}}}")?,
            }
            first = false;
        }
        Ok(())
    }
}

impl Place {
    /// The place one step further.
    fn then(&self, step: Step) -> Place {
        Place(self.0.iter().cloned().chain([step]).collect())
    }

    pub(super) fn field(&self, name: &str) -> Place {
        self.then(Step::Field(name.into()))
    }

    pub(super) fn item(&self) -> Place {
        self.then(Step::Item)
    }

    /// Names of the fields on the way.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|step| match step {
            Step::Field(name) => Some(name.as_str()),
            _ => None,
        })
    }
}

/// Schemas by name, of all documents.
#[derive(Default)]
pub(super) struct Schemas {
    components: BTreeMap<String, Value>,
}

/// Results of the walk of a kind.
#[derive(Default)]
pub(super) struct Found {
    pub(super) strings: Vec<Place>,
    /// Fields that are not walked, with the reason.
    pub(super) skipped: Vec<(String, &'static str)>,
}

impl Schemas {
    pub(super) fn add(&mut self, document: &Value) {
        let schemas = document["components"]["schemas"].as_object().expect("schemas");
        self.components.extend(schemas.iter().map(|(name, schema)| (name.clone(), schema.clone())));
    }

    /// The schema of a kind.
    pub(super) fn kind(&self, group: &str, version: &str, kind: &str) -> &Value {
        let is = |schema: &&Value| {
            let of = schema["x-kubernetes-group-version-kind"].as_array().into_iter().flatten();
            of.into_iter().any(|of| of["group"] == group && of["version"] == version && of["kind"] == kind)
        };
        self.components.values().find(is).unwrap_or_else(|| panic!("no schema of {kind}"))
    }

    /// A schema and all that it refers to, as one list.
    pub(super) fn parts<'a>(&'a self, schema: &'a Value) -> Vec<&'a Value> {
        let mut parts = vec![schema];
        if let Some(name) = reference(schema) {
            parts.extend(self.parts(&self.components[name]));
        }
        for part in schema["allOf"].as_array().into_iter().flatten() {
            parts.extend(self.parts(part));
        }
        parts
    }

    /// The schema of a property.
    pub(super) fn property<'a>(&'a self, schema: &'a Value, name: &str) -> Option<&'a Value> {
        self.parts(schema).into_iter().find_map(|part| part["properties"].get(name))
    }

    /// All strings of a kind. `status` is the server's own, and so is `managedFields`.
    pub(super) fn strings(&self, root: &Value) -> Found {
        let mut found = Found::default();
        self.walk(root, &Place(Vec::new()), &mut Vec::new(), &mut found);
        found.strings.sort();
        found.strings.dedup();
        found
    }

    fn walk<'a>(&'a self, schema: &'a Value, at: &Place, within: &mut Vec<&'a str>, found: &mut Found) {
        if let Some(name) = reference(schema) {
            if within.contains(&name) {
                found.skipped.push((at.to_string(), "it holds itself"));
                return;
            }
            within.push(name);
            self.walk(&self.components[name], at, within, found);
            within.pop();
        }
        for part in schema["allOf"].as_array().into_iter().flatten() {
            self.walk(part, at, within, found);
        }
        if is_string(schema) {
            found.strings.push(at.clone());
        }
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            let place = at.field(name);
            if (at.0.is_empty() && name == "status") || name == "managedFields" {
                found.skipped.push((place.to_string(), "the server sets it"));
            } else {
                self.walk(property, &place, within, found);
            }
        }
        if schema["items"].is_object() {
            self.walk(&schema["items"], &at.item(), within, found);
        }
        if schema["additionalProperties"].is_object() {
            found.strings.push(at.then(Step::Key));
            self.walk(&schema["additionalProperties"], &at.then(Step::Under("k".into())), within, found);
        }
    }
}

fn reference(schema: &Value) -> Option<&str> {
    schema["$ref"].as_str()?.rsplit('/').next()
}

pub(super) fn is_string(schema: &Value) -> bool {
    schema["type"] == "string"
        || schema["format"] == "int-or-string"
        || schema["x-kubernetes-int-or-string"] == true
        || schema["oneOf"].as_array().is_some_and(|kinds| kinds.iter().any(|kind| kind["type"] == "string"))
}
