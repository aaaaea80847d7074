//! Numbers that a field cannot have: too large, too small, broken, text.

use super::cases::{Case, DEPLOYMENTS, POOLS, SANDBOXES, THINGS, object};
use serde_json::{Value, json};

/// As they are written in the body.
const NUMBERS: &[&str] = &[
    "2147483647",
    "2147483648",
    "-2147483649",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808",
    "-9223372036854775809",
    "18446744073709551615",
    "18446744073709551616",
    "1e3",
    "1e19",
    "1e400",
    "1.0",
    "1.5",
    "-0",
    "\"1\"",
    "true",
];

/// Fields that they are written to: the kind, and a JSON pointer.
const PLACES: &[(&str, &str, &str)] = &[
    ("Deployment int32", DEPLOYMENTS, "/spec/replicas"),
    ("Deployment int64", DEPLOYMENTS, "/spec/template/spec/terminationGracePeriodSeconds"),
    ("Deployment int-or-string", DEPLOYMENTS, "/spec/strategy/rollingUpdate/maxSurge"),
    ("Deployment annotation", DEPLOYMENTS, "/metadata/annotations/a"),
    ("Deployment generation", DEPLOYMENTS, "/metadata/generation"),
    ("Sandbox int64", SANDBOXES, "/spec/podTemplate/spec/terminationGracePeriodSeconds"),
    ("Sandbox annotation", SANDBOXES, "/metadata/annotations/a"),
    ("Sandbox generation", SANDBOXES, "/metadata/generation"),
    ("Sandbox unknown field", SANDBOXES, "/spec/nowhere"),
    ("SandboxWarmPool int32", POOLS, "/spec/replicas"),
    ("Thing integer", THINGS, "/spec/plain"),
    ("Thing int32", THINGS, "/spec/small"),
    ("Thing int64", THINGS, "/spec/large"),
    ("Thing number", THINGS, "/spec/number"),
    ("Thing bounded", THINGS, "/spec/bounded"),
    ("Thing int-or-string", THINGS, "/spec/either"),
    ("Thing text", THINGS, "/spec/texts/a"),
    ("Thing open", THINGS, "/spec/open"),
];

/// Stands in a body for what is written there.
const HOLE: &str = "the number";

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (place, path, pointer) in PLACES {
        let mut body = object(path, &json!({"name": "n"}));
        put(&mut body, pointer, HOLE.into());
        let body = body.to_string();
        for number in NUMBERS {
            // A text must be a percentage there, which is another matter.
            if number.starts_with('"') && place.ends_with("int-or-string") {
                continue;
            }
            let written = body.replace(&format!("{HOLE:?}"), number);
            cases.push(Case::new(format!("{place}: {number}"), "POST", path, written).showing(pointer));
        }
        if ["Thing int64", "Thing text", "Thing open"].contains(place) {
            // A patch takes another way than a body.
            for number in NUMBERS {
                let mut patch = json!({});
                put(&mut patch, pointer, HOLE.into());
                let written = patch.to_string().replace(&format!("{HOLE:?}"), number);
                let path = format!("{path}/there");
                cases.push(
                    Case::new(format!("{place}, patched: {number}"), "PATCH", &path, written)
                        .showing(pointer),
                );
            }
        }
    }
    cases
}

/// Puts a value at a pointer, with the objects on the way.
fn put(into: &mut Value, pointer: &str, value: Value) {
    let mut place = into;
    for step in pointer.split('/').skip(1) {
        place = &mut place[step];
    }
    *place = value;
}
