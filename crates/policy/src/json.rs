//! JSON that every reader understands alike.

use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Reads a JSON text. `None` if it is not JSON, or has an object in which two keys are the same or differ only in case:
/// readers disagree on which one counts.
pub(crate) fn strict(bytes: &[u8]) -> Option<Value> {
    serde_json::from_slice::<Strict>(bytes).ok().map(|strict| strict.0)
}

/// Reads JSON texts, one after the other, as [`strict`] does.
pub(crate) fn strict_all(bytes: &[u8]) -> Option<Vec<Value>> {
    let values = serde_json::Deserializer::from_slice(bytes).into_iter::<Strict>();
    values.map(|value| value.ok().map(|strict| strict.0)).collect()
}

/// Returns a key as readers compare it that ignore case.
pub(crate) fn folded(key: &str) -> String {
    // Upper case first: so the long s and the Kelvin sign are letters of ASCII.
    key.chars().flat_map(char::to_uppercase).flat_map(char::to_lowercase).collect()
}

struct Strict(Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Strict, D::Error> {
        deserializer.deserialize_any(Any).map(Strict)
    }
}

struct Any;

impl<'de> DeserializeSeed<'de> for Any {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Any {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("JSON")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = list.next_element_seed(Any)? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let (mut map, mut keys) = (Map::new(), std::collections::BTreeSet::new());
        while let Some(key) = entries.next_key::<String>()? {
            if !keys.insert(folded(&key)) {
                return Err(serde::de::Error::custom("a key occurs twice"));
            }
            map.insert(key, entries.next_value_seed(Any)?);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_with_keys_that_readers_confuse_is_refused() {
        for text in ["{}", "[1, -2, 1.5, true, null, \"a\"]", r#"{"a": {"b": [{}]}, "c": {"a": 1}}"#] {
            assert_eq!(strict(text.as_bytes()), serde_json::from_str(text).ok(), "{text}");
        }
        for text in [
            "",
            "{",
            "{} {}",
            r#"{"a": 1, "a": 2}"#,
            r#"{"a": 1, "A": 2}"#,
            r#"{"x": {"k": 1, "\u212a": 2}}"#,
            r#"{"s": 1, "\u017f": 2}"#,
            "\u{feff}{}",
            "NaN",
        ] {
            assert_eq!(strict(text.as_bytes()), None, "{text}");
        }
        assert_eq!(strict(&[b'['; 100_000]), None);
    }
}
