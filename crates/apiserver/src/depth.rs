//! Nesting of objects. The decoder reads 127 levels, and functions of values call themselves for each level, so that no
//! deeper value may ever be made.

use serde_json::Value;

use crate::failure::Failure;

/// Maximum levels of an object. What the server adds (`managedFields`) repeats them with a few more.
pub(crate) const MAX: usize = 100;

/// Returns the levels of a value: 0 for one without parts.
pub(crate) fn of(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(of).max().unwrap_or(0),
        Value::Object(fields) => 1 + fields.values().map(of).max().unwrap_or(0),
        _ => 0,
    }
}

/// Refuses an object with too many levels, unless it had them before.
pub(crate) fn check(object: &Value, old: Option<&Value>) -> Result<(), Failure> {
    let levels = without_owners(object);
    match levels > MAX && old.is_none_or(|old| without_owners(old) < levels) {
        true => {
            Err(Failure::bad_request(format!("the object has {levels} levels, at most {MAX} are allowed")))
        }
        false => Ok(()),
    }
}

/// Returns the levels of an object, without those of its record of owners.
fn without_owners(object: &Value) -> usize {
    let Some(fields) = object.as_object() else { return of(object) };
    let levels = |(name, field): (&String, &Value)| match field.as_object().filter(|_| name == "metadata") {
        Some(metadata) => {
            let others = metadata.iter().filter(|(name, _)| *name != "managedFields");
            1 + others.map(|(_, field)| of(field)).max().unwrap_or(0)
        }
        None => of(field),
    };
    1 + fields.iter().map(levels).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn levels_are_counted_without_the_record_of_owners() {
        assert_eq!([json!(1), json!([]), json!({"a": [{}]})].map(|value| of(&value)), [0, 1, 3]);
        let nested = |levels: usize| (0..levels).fold(json!(1), |value, _| json!([value]));
        let object = |spec: usize, owners: usize| json!({"metadata": {"managedFields": nested(owners), "labels": {}}, "spec": nested(spec)});
        assert!(check(&object(MAX - 1, MAX + 20), None).is_ok());
        assert!(check(&object(MAX, 1), None).is_err());
        assert!(check(&object(MAX, 1), Some(&object(MAX, 1))).is_ok());
        assert!(check(&object(MAX + 1, 1), Some(&object(MAX, 1))).is_err());
    }
}
