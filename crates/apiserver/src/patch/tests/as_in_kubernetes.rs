//! The answers of Kubernetes' own libraries to the same questions: `vectors.txt` was written by the program in `vectors/`.

use super::*;

/// Without nulls: upstream drops them one step later.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.iter().filter(|(_, value)| !value.is_null());
            Value::Object(kept.map(|(name, value)| (name.clone(), without_nulls(value))).collect())
        }
        Value::Array(items) => items.iter().map(without_nulls).collect(),
        other => other.clone(),
    }
}

/// The object alone, and its managers without times and in a settled order.
fn apart(object: &Value) -> (Value, Vec<(String, FieldSet)>) {
    let mut owners: Vec<_> = managers::read(object)
        .into_iter()
        .map(|m| (format!("{} {:?}", m.name, m.operation), m.fields))
        .collect();
    owners.sort_by(|a, b| a.0.cmp(&b.0));
    let mut object = object.clone();
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.retain(|name, _| !matches!(name.as_str(), "managedFields" | "creationTimestamp"));
    }
    (object, owners)
}

/// A message without ` at TIME`.
fn without_times(message: &str) -> String {
    let mut parts = message.split(" at 20");
    let first = parts.next().unwrap_or_default().to_string();
    parts.fold(first, |text, part| text + &part["26-11-21T10:35:47Z".len()..])
}

fn check_steps(kind: &Kind, vector: &Value) {
    let mut live: Option<Value> = None;
    for step in vector["steps"].as_array().expect("steps") {
        let (manager, object) = (step["manager"].as_str().expect("a manager"), &step["object"]);
        let got = if step["op"] == "apply" {
            let applier = Applier { force: step["force"] == true, ..applier(manager, 0) };
            apply(live.as_ref(), object, applier, kind)
        } else {
            let mut updated = object.clone();
            let api_version = kind.api_version();
            let updater = Updater { api_version: &api_version, ..updater(manager, 0) };
            track_update(live.as_ref(), &mut updated, updater, kind.shape());
            Ok(updated)
        };
        match (got, step["error"].as_str()) {
            (Ok(got), None) => assert_eq!(apart(&got), apart(&step["result"]), "{step}"),
            (Err(got), Some(wanted)) => {
                assert_eq!(without_times(&got.to_string()), without_times(wanted), "{step}")
            }
            (got, wanted) => panic!("{step}: got {got:?}, wanted {wanted:?}"),
        }
        // Each step starts from what Kubernetes made of the last one.
        live = step.get("result").filter(|object| !object["metadata"].is_null()).cloned();
    }
}

#[test]
fn patches_and_applies_end_as_in_kubernetes() {
    let (mut patches, mut sequences) = (0, 0);
    for line in include_str!("../vectors.txt").lines() {
        let vector: Value = serde_json::from_str(line).expect("a vector");
        let name = vector["kind"].as_str().expect("a kind");
        let kind = builtin().into_iter().find(|k| k.kind == name).expect("a built-in kind");
        if vector.get("patch").is_none() {
            sequences += 1;
            check_steps(&kind, &vector);
            continue;
        }
        patches += 1;
        let got = strategic(&vector["original"], &vector["patch"], kind.shape());
        match got {
            Ok(got) => assert_eq!(got, without_nulls(&vector["result"]), "{line}"),
            Err(error) => assert!(vector.get("error").is_some(), "{line}: {error}"),
        }
    }
    assert!(patches >= 30 && sequences >= 30, "{patches} {sequences}");
}
