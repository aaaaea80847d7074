//! Unknown and duplicate fields of a built-in kind in the order of the text, as Kubernetes reports them.

use std::collections::HashSet;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::shape::{Field, Shape};
use crate::field_path::{FieldPath, Findings};

/// Returns the messages about a text of JSON; none about what does not parse.
pub(crate) fn problems(text: &[u8], shape: Shape<'_>) -> Vec<String> {
    let mut found = Findings::default();
    let seed = Walk { path: FieldPath::ROOT, shape, found: &mut found };
    let mut reader = serde_json::Deserializer::from_slice(text);
    match seed.deserialize(&mut reader) {
        Ok(()) => found.into_messages(),
        Err(_) => Vec::new(),
    }
}

struct Walk<'a> {
    path: FieldPath<'a>,
    shape: Shape<'a>,
    found: &'a mut Findings,
}

impl<'de> DeserializeSeed<'de> for Walk<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let shape = self.shape.items();
        for index in 0.. {
            let seed = Walk { path: self.path.item(index), shape, found: &mut *self.found };
            if items.next_element_seed(seed)?.is_none() {
                break;
            }
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<(), A::Error> {
        let mut seen = HashSet::new();
        while let Some(name) = fields.next_key::<String>()? {
            let path = self.path.field(&name);
            match self.shape.field(&name) {
                Field::Known(shape) => {
                    if seen.contains(&name) {
                        self.found.add(format_args!("duplicate field \"{path}\""));
                    }
                    fields.next_value_seed(Walk { path, shape, found: &mut *self.found })?;
                    seen.insert(name);
                }
                Field::Open => drop(fields.next_value::<IgnoredAny>()?),
                Field::Unknown => {
                    self.found.add(format_args!("unknown field \"{path}\""));
                    fields.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field_path::tests::{MAX_JOINED, joined_by};

    #[test]
    fn paths_are_joined_for_problems_only() {
        let shape =
            Shape::builtin("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps");
        let long = "k".repeat(1 << 20);
        let required = "\"a\",".repeat(100_000);
        let text = format!(r#"{{"properties":{{"{long}":{{"required":[{required}"a"],"b":1}}}}}}"#);
        let joined = joined_by(|| assert_eq!(problems(text.as_bytes(), shape).len(), 1));
        assert!(joined <= 1024, "{joined}");
        let unknown = r#""b":1,"#.repeat(100_000);
        let text = format!(r#"{{"properties":{{"{long}":{{{unknown}"c":1}}}}}}"#);
        let joined = joined_by(|| assert_eq!(problems(text.as_bytes(), shape).len(), 1));
        assert!(joined <= MAX_JOINED, "{joined}");
    }

    #[test]
    fn problems_come_in_the_order_of_the_text() {
        let text = br#"{"spec": {"zeta": 1, "containers": [{"name": "c", "name": "d", "imagee": {"x": 1}}],
            "alpha": 2, "zeta": 3}, "metadata": {"labels": {"a": "b", "a": "c"}}, "foo": 1}"#;
        let found = problems(text, Shape::builtin("io.k8s.api.core.v1.Pod"));
        assert_eq!(
            found,
            [
                "unknown field \"spec.zeta\"",
                "duplicate field \"spec.containers[0].name\"",
                "unknown field \"spec.containers[0].imagee\"",
                "unknown field \"spec.alpha\"",
                "duplicate field \"metadata.labels.a\"",
                "unknown field \"foo\"",
            ]
        );
        assert!(problems(b"{", Shape::builtin("io.k8s.api.core.v1.Pod")).is_empty());
    }
}
