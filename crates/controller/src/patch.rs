//! JSON merge patches of string maps.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

pub(crate) type Strings = BTreeMap<String, String>;

/// Returns the patch from `current` to `wanted`: changed keys, and null for those to remove. Empty when they are equal.
pub(crate) fn difference(current: Option<&Strings>, wanted: &Strings) -> Map<String, Value> {
    let none = Strings::new();
    let current = current.unwrap_or(&none);
    let changed = wanted.iter().filter(|(key, value)| current.get(*key) != Some(value));
    let mut patch: Map<String, Value> =
        changed.map(|(key, value)| (key.clone(), value.clone().into())).collect();
    let removed = current.keys().filter(|key| !wanted.contains_key(*key));
    patch.extend(removed.map(|key| (key.clone(), Value::Null)));
    patch
}

/// Puts `value` under the path, making the objects on the way.
pub(crate) fn put(patch: &mut Map<String, Value>, path: &[&str], value: Value) {
    let Some((first, rest)) = path.split_first() else { return };
    if rest.is_empty() {
        patch.insert((*first).to_owned(), value);
        return;
    }
    let next = patch.entry((*first).to_owned()).or_insert_with(|| Value::Object(Map::new()));
    if let Value::Object(next) = next {
        put(next, rest, value);
    }
}

/// Puts the difference of two string maps under the path, if they differ.
pub(crate) fn put_difference(
    patch: &mut Map<String, Value>,
    path: &[&str],
    current: Option<&Strings>,
    wanted: &Strings,
) {
    let difference = difference(current, wanted);
    if !difference.is_empty() {
        put(patch, path, Value::Object(difference));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    proptest! {
        #[test]
        fn difference_makes_maps_equal(
            a in prop::collection::btree_map("[a-e]", "[xy]", 0..5), b in prop::collection::btree_map("[a-e]", "[xy]", 0..5),
        ) {
            let patch = difference(Some(&a), &b);
            prop_assert_eq!(patch.is_empty(), a == b);
            let mut merged = a;
            for (key, value) in patch {
                match value.as_str() {
                    Some(value) => { merged.insert(key, value.to_owned()); }
                    None => { merged.remove(&key); }
                }
            }
            prop_assert_eq!(merged, b);
        }
    }

    #[test]
    fn paths_share_their_beginning() {
        let mut patch = Map::new();
        put(&mut patch, &["a", "b"], json!(1));
        put(&mut patch, &["a", "c", "d"], json!(2));
        put_difference(&mut patch, &["a", "e"], None, &Strings::new());
        assert_eq!(Value::Object(patch), json!({"a": {"b": 1, "c": {"d": 2}}}));
    }
}
