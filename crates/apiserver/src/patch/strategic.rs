//! Strategic merge patches: merge patches that know which lists are merged by key.
//!
//! Lists may be as long as a request, so items are found by hash.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde_json::{Map, Value};

use super::PatchError;
use crate::kinds::{Shape, type_name};

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_FROM: &str = "$deleteFromPrimitiveList/";
const SET_ORDER: &str = "$setElementOrder/";

/// Applies a strategic merge patch to an object of the given shape.
pub(crate) fn strategic(current: &Value, patch: &Value, shape: Shape<'_>) -> Result<Value, PatchError> {
    match (current, patch) {
        (Value::Object(current), Value::Object(patch)) => {
            Ok(Value::Object(merge_map(current.clone(), patch.clone(), shape)?))
        }
        _ => malformed("a strategic merge patch must be an object"),
    }
}

fn malformed<T>(what: impl Into<String>) -> Result<T, PatchError> {
    Err(PatchError::Malformed(what.into()))
}

type Object = Map<String, Value>;

fn merge_map(mut object: Object, mut patch: Object, shape: Shape<'_>) -> Result<Object, PatchError> {
    match patch.remove(DIRECTIVE) {
        None => {}
        Some(Value::String(directive)) => match directive.as_str() {
            "replace" => return Ok(clean_map(patch)),
            "delete" => return Ok(Map::new()),
            "merge" => {}
            other => return malformed(format!("unknown patch type found: {other}")),
        },
        Some(other) => return malformed(format!("unknown patch type found: {other}")),
    }
    if let Some(retained) = patch.remove(RETAIN_KEYS) {
        retain_keys(&mut object, &patch, &retained)?;
    }
    let mut orders = take_prefixed(&mut patch, SET_ORDER)?;
    for (name, removed) in take_prefixed(&mut patch, DELETE_FROM)? {
        if let Some(Value::Array(list)) = object.get_mut(&name) {
            let removed: HashSet<&Value> = removed.iter().collect();
            list.retain(|item| !removed.contains(item));
        }
    }
    for (name, value) in patch {
        let field = shape.child(&name);
        let order = orders.remove(&name);
        match (object.remove(&name), value) {
            // A null removes; of what is not there it says nothing.
            (_, Value::Null) => {}
            (Some(Value::Object(old)), Value::Object(new)) => {
                let replace = field.patch_strategies().any(|s| s == "replace");
                let merged = if replace { clean_map(new) } else { merge_map(old, new, field)? };
                object.insert(name, Value::Object(merged));
            }
            (Some(Value::Array(old)), Value::Array(new)) if merges(field) => {
                object.insert(name, Value::Array(merge_list(old, new, order, field)?));
            }
            (None, Value::Array(new)) if merges(field) => {
                // Directives within the items still count.
                object.insert(name, Value::Array(merge_list(Vec::new(), new, order, field)?));
            }
            (_, value) => {
                object.insert(name, clean(value));
            }
        }
    }
    // An order may come without items: the list is only sorted anew.
    for (name, order) in orders {
        if let Some(Value::Array(list)) = object.get_mut(&name) {
            let field = shape.child(&name);
            let old = std::mem::take(list);
            *list = reorder(old.clone(), &Places::of(&old, field.patch_merge_key()), &order)?;
        }
    }
    Ok(object)
}

fn merges(field: Shape<'_>) -> bool {
    field.patch_strategies().any(|s| s == "merge")
}

fn retain_keys(object: &mut Object, patch: &Object, retained: &Value) -> Result<(), PatchError> {
    let Value::Array(retained) = retained else {
        return malformed("the value of $retainKeys must be a list");
    };
    let retained: HashSet<&str> = retained.iter().filter_map(Value::as_str).collect();
    let named = |key: &str| retained.contains(key);
    let sent = patch.iter().filter(|(key, value)| !value.is_null() && !key.starts_with('$'));
    if let Some((key, _)) = sent.into_iter().find(|(key, _)| !named(key)) {
        return malformed(format!("$retainKeys does not name the field {key} that the patch sets"));
    }
    object.retain(|key, _| named(key));
    Ok(())
}

/// Takes the entries `PREFIX/name` out of a patch.
fn take_prefixed(patch: &mut Object, prefix: &str) -> Result<BTreeMap<String, Vec<Value>>, PatchError> {
    let keys: Vec<String> = patch.keys().filter(|key| key.starts_with(prefix)).cloned().collect();
    let mut taken = BTreeMap::new();
    for key in keys {
        match patch.remove(&key) {
            Some(Value::Array(list)) => taken.insert(key[prefix.len()..].to_string(), list),
            _ => return malformed(format!("the value of {key} must be a list")),
        };
    }
    Ok(taken)
}

fn merge_list(
    old: Vec<Value>,
    patch: Vec<Value>,
    order: Option<Vec<Value>>,
    field: Shape<'_>,
) -> Result<Vec<Value>, PatchError> {
    let places = Places::of(&old, field.patch_merge_key());
    let Some(key) = field.patch_merge_key() else {
        let mut known: HashSet<&Value> = old.iter().collect();
        let new: Vec<Value> = patch.iter().filter(|item| known.insert(item)).cloned().collect();
        let merged = old.into_iter().chain(new).collect();
        return reorder(merged, &places, order.as_deref().unwrap_or(&patch));
    };
    let directive = |item: &Value| item.get(DIRECTIVE).and_then(Value::as_str).map(ToString::to_string);
    // One item that says `replace` speaks for the whole list.
    if patch.iter().any(|item| directive(item).as_deref() == Some("replace")) {
        let others = patch.into_iter().filter(|item| directive(item).as_deref() != Some("replace"));
        return Ok(others.map(clean).collect());
    }
    let (merged, sent) = merge_items(old, patch, key, field)?;
    if let Some(order) = &order {
        let wanted = Places::of(order, Some(key));
        let place = |item: &Value| wanted.place(item);
        if !sent.iter().map(place).is_sorted() || sent.iter().any(|item| place(item).is_none()) {
            return malformed(format!("the order in the patch list does not match its {SET_ORDER} list"));
        }
    }
    reorder(merged, &places, order.as_deref().unwrap_or(&sent))
}

/// The items of a list after those of a patch, found by their key; and the keys that the patch sets, in its order.
fn merge_items(
    old: Vec<Value>,
    patch: Vec<Value>,
    key: &str,
    field: Shape<'_>,
) -> Result<(Vec<Value>, Vec<Value>), PatchError> {
    let mut merged: Vec<Option<Value>> = old.into_iter().map(Some).collect();
    let mut places: HashMap<Value, Vec<usize>> = HashMap::new();
    for (place, item) in merged.iter().enumerate() {
        if let Some(id) = item.as_ref().and_then(|item| item.get(key)) {
            places.entry(id.clone()).or_default().push(place);
        }
    }
    let mut sent = Vec::new();
    for item in patch {
        let Value::Object(map) = item else {
            return malformed(format!(
                "an item of a list merged by {key} must be an object, not {}",
                type_name(&item)
            ));
        };
        let Some(id) = map.get(key).cloned() else {
            let text = Value::Object(map);
            return malformed(format!("map: {text} does not contain declared merge key: {key}"));
        };
        if map.get(DIRECTIVE).and_then(Value::as_str) == Some("delete") {
            places.remove(&id).into_iter().flatten().for_each(|place| merged[place] = None);
            continue;
        }
        sent.push(Value::Object([(key.to_string(), id.clone())].into_iter().collect()));
        let same = places.entry(id).or_default();
        match same.first() {
            Some(&place) => {
                if let Some(Value::Object(object)) = merged[place].take() {
                    merged[place] = Some(Value::Object(merge_map(object, map, field.items())?));
                }
            }
            None => {
                same.push(merged.len());
                merged.push(Some(clean(Value::Object(map))));
            }
        }
    }
    Ok((merged.into_iter().flatten().collect(), sent))
}

/// Positions of the items of a list, by their key or, without one, by value.
struct Places<'a> {
    key: Option<&'a str>,
    places: HashMap<Value, usize>,
}

impl<'a> Places<'a> {
    /// Of several that are alike the first one counts.
    fn of(list: &[Value], key: Option<&'a str>) -> Places<'a> {
        let mut places = Places { key, places: HashMap::with_capacity(list.len()) };
        for (place, item) in list.iter().enumerate() {
            if let Some(id) = places.id(item).cloned() {
                places.places.entry(id).or_insert(place);
            }
        }
        places
    }

    fn id<'v>(&self, item: &'v Value) -> Option<&'v Value> {
        self.key.map_or(Some(item), |key| item.get(key))
    }

    fn place(&self, item: &Value) -> Option<usize> {
        self.places.get(self.id(item)?).copied()
    }
}

/// Sorts a merged list: items named by `order` as it says, the others where they were in `old`.
fn reorder(merged: Vec<Value>, old: &Places<'_>, order: &[Value]) -> Result<Vec<Value>, PatchError> {
    if let (Some(key), Some(bad)) = (old.key, order.iter().find(|item| old.id(item).is_none())) {
        return malformed(format!("map: {bad} does not contain declared merge key: {key}"));
    }
    let order = Places::of(order, old.key);
    let (mut sent, kept): (Vec<_>, Vec<_>) = merged.into_iter().partition(|item| order.place(item).is_some());
    sent.sort_by_key(|item| order.place(item));
    Ok(interleave(kept, sent, |item| old.place(item)))
}

/// Orders a merged list: items that were sent in their own order, the others as they were, and between the two kinds
/// whatever stood before in `old` stays before. `index` gives the place of an item in `old`.
fn interleave<T>(kept: Vec<T>, sent: Vec<T>, index: impl Fn(&T) -> Option<usize>) -> Vec<T> {
    let mut merged = Vec::with_capacity(kept.len() + sent.len());
    let (mut kept, mut sent) = (kept.into_iter().peekable(), sent.into_iter().peekable());
    loop {
        let keep = match (kept.peek(), sent.peek()) {
            (None, None) => return merged,
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (Some(kept), Some(sent)) => matches!((index(kept), index(sent)), (Some(k), Some(s)) if k < s),
        };
        merged.extend(if keep { kept.next() } else { sent.next() });
    }
}

/// A value that is new to the object: without directives and nulls.
fn clean(value: Value) -> Value {
    match value {
        Value::Object(map) => Value::Object(clean_map(map)),
        Value::Array(items) => {
            let dropped = |item: &Value| item.get(DIRECTIVE).is_some_and(|d| d == "delete" || d == "replace");
            Value::Array(items.into_iter().filter(|item| !dropped(item)).map(clean).collect())
        }
        other => other,
    }
}

fn clean_map(map: Object) -> Object {
    let directive = |key: &str| {
        key == DIRECTIVE || key == RETAIN_KEYS || key.starts_with(DELETE_FROM) || key.starts_with(SET_ORDER)
    };
    map.into_iter()
        .filter(|(key, value)| !value.is_null() && !directive(key))
        .map(|(key, value)| (key, clean(value)))
        .collect()
}
