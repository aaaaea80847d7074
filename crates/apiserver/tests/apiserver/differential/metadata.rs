//! Metadata that breaks the rules.

use super::cases::{CONFIG_MAPS, Case, NAMESPACES, ROLES, SANDBOXES, SERVICES, THINGS, object};
use serde_json::{Value, json};

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = [names(), generated_names(), places()].concat();
    for (kind, path) in [("ConfigMap", CONFIG_MAPS), ("Thing", THINGS)] {
        let new = |(what, mut metadata): (String, Value)| {
            metadata["name"] = "n".into();
            Case::new(format!("{kind} with {what}"), "POST", path, object(path, &metadata))
                .showing("/metadata/name")
        };
        for field in ["labels", "annotations"] {
            let body = object(path, &json!({"name": "n", field: {"a": null}}));
            let name = format!("{kind} with null in its {field}");
            cases.push(Case::new(name, "POST", path, body).showing(&format!("/metadata/{field}")));
        }
        let all = [labels(), annotations(), finalizers(), owners(), types()].concat();
        cases.extend(all.clone().into_iter().map(new));
        let path = format!("{path}/there");
        let patched = |(what, metadata): (String, Value)| {
            let body = json!({"metadata": metadata});
            Case::new(format!("{kind} patched with {what}"), "PATCH", &path, body).showing("/metadata/name")
        };
        cases.extend(all.into_iter().map(patched));
    }
    cases
}

fn texts(lengths: &[usize]) -> Vec<String> {
    lengths.iter().map(|length| "a".repeat(*length)).collect()
}

/// Shown in the name of a case.
fn brief(text: &str) -> String {
    if text.len() > 60 { format!("{}... of {}", &text[..20], text.len()) } else { format!("{text:?}") }
}

fn names() -> Vec<Case> {
    let mut all: Vec<String> = [
        "", "A", "a_b", "a.b", "-a", "a-", ".a", "a.", "a..b", "1a", "a/b", "a b", "ä", "a\n", ".", "..",
        "%", "a%2fb", "a:b",
    ]
    .map(String::from)
    .to_vec();
    all.extend(texts(&[63, 64, 253, 254]));
    let kinds = [CONFIG_MAPS, SERVICES, NAMESPACES, ROLES, SANDBOXES, THINGS];
    let mut cases = Vec::new();
    for path in kinds {
        for name in &all {
            let body = object(path, &json!({"name": name}));
            let kind = body["kind"].as_str().unwrap_or_default().to_owned();
            cases.push(
                Case::new(format!("{kind} named {}", brief(name)), "POST", path, body)
                    .showing("/metadata/name"),
            );
        }
    }
    cases
}

fn generated_names() -> Vec<Case> {
    let mut cases = Vec::new();
    for path in [CONFIG_MAPS, SERVICES, NAMESPACES, ROLES, THINGS] {
        let mut bad: Vec<String> = ["A-", "a_", "a b", "-a", "1a-", "a/"].map(String::from).to_vec();
        bad.extend(texts(&[58, 59, 64, 254, 300]));
        for prefix in bad {
            // A generated name is random, and messages contain it: with a name the prefix is checked alone.
            let body = object(path, &json!({"name": "n", "generateName": prefix}));
            let kind = body["kind"].as_str().unwrap_or_default().to_owned();
            let what = format!("{kind} with a name and generateName {}", brief(&prefix));
            cases.push(Case::new(what, "POST", path, body).showing("/metadata/generateName"));
        }
    }
    cases
}

/// Namespaces and types that are not those of the path.
fn places() -> Vec<Case> {
    let mut cases = Vec::new();
    for path in [CONFIG_MAPS, THINGS] {
        let kind = if path == THINGS { "Thing" } else { "ConfigMap" };
        let elsewhere = object(path, &json!({"name": "n", "namespace": "elsewhere"}));
        cases.push(Case::new(format!("{kind} for another namespace"), "POST", path, &elsewhere));
        let nowhere = path.replace("/default/", "/nowhere/");
        let body = object(path, &json!({"name": "n"}));
        cases.push(Case::new(format!("{kind} in a namespace that is not there"), "POST", &nowhere, &body));
        let there = format!("{path}/there");
        let other = object(path, &json!({"name": "other"}));
        cases.push(Case::new(format!("{kind} put under another name"), "PUT", &there, &other));
        let moved = object(path, &json!({"name": "there", "namespace": "elsewhere"}));
        cases.push(Case::new(format!("{kind} put into another namespace"), "PUT", &there, &moved));
        for (what, metadata) in [
            ("another name", json!({"name": "other"})),
            ("another namespace", json!({"namespace": "elsewhere"})),
        ] {
            let patch = json!({"metadata": metadata});
            cases.push(Case::new(format!("{kind} patched with {what}"), "PATCH", &there, &patch));
        }
        let mut another = body.clone();
        another["kind"] = "Another".into();
        cases.push(Case::new(format!("{kind} of another kind"), "POST", path, &another));
        let mut another = body.clone();
        another["apiVersion"] = "example.com/v9".into();
        cases.push(Case::new(format!("{kind} of another version"), "POST", path, &another));
    }
    let body = object(NAMESPACES, &json!({"name": "n", "namespace": "default"}));
    cases.push(Case::new("Namespace in a namespace", "POST", NAMESPACES, body));
    cases
}

/// Keys of labels and annotations.
fn keys() -> Vec<String> {
    let mut keys: Vec<String> = [
        "", "/", "a/", "/a", "a/b/c", "-a", "a-", "a b", "A", "A.b/c", "a_b/c", "a..b/c", "-/a", "ä",
        "a.b/C_d", "a/-",
    ]
    .map(String::from)
    .to_vec();
    for length in [63, 64] {
        keys.push("a".repeat(length));
        keys.push(format!("b/{}", "a".repeat(length)));
    }
    for length in [253, 254] {
        keys.push(format!("{}/a", "p".repeat(length)));
    }
    keys
}

fn labels() -> Vec<(String, Value)> {
    let mut all: Vec<(String, Value)> = keys()
        .into_iter()
        .map(|key| (format!("label {}", brief(&key)), json!({"labels": {key: "v"}})))
        .collect();
    let mut values: Vec<String> =
        ["", "A_b.c-d", "-a", "a-", ".a", "a b", "a/b", "ä", "a\n"].map(String::from).to_vec();
    values.extend(texts(&[63, 64]));
    values.push(format!("-{}", "a".repeat(63)));
    all.extend(
        values
            .into_iter()
            .map(|value| (format!("label value {}", brief(&value)), json!({"labels": {"a": value}}))),
    );
    all
}

/// Bytes that the keys and values of annotations have at most.
const ANNOTATIONS: usize = 256 << 10;

fn annotations() -> Vec<(String, Value)> {
    let mut all: Vec<(String, Value)> = keys()
        .into_iter()
        .map(|key| (format!("annotation {}", brief(&key)), json!({"annotations": {key: "v -/\n"}})))
        .collect();
    for more in [0, 1] {
        let one = "x".repeat(ANNOTATIONS - 1 + more);
        all.push((format!("annotations of the limit and {more}"), json!({"annotations": {"a": one}})));
        let half = "ä".repeat(ANNOTATIONS / 4 - 2);
        let rest = "x".repeat(ANNOTATIONS / 2 + 2 + more);
        let two = json!({"annotations": {"a": half, "b": rest}});
        all.push((format!("two annotations of the limit and {more}"), two));
    }
    let many = json!({"annotations": {"a b": "x".repeat(ANNOTATIONS)}, "labels": {"a b": "-"}});
    all.push(("several faults".into(), many));
    all
}

fn finalizers() -> Vec<(String, Value)> {
    let mut names: Vec<String> = [
        "",
        "a",
        "kubernetes",
        "orphan",
        "foregroundDeletion",
        "a/b",
        "a/b/c",
        "a b/c",
        "/a",
        "a/",
        "example.com/A_b",
        "Example.com/a",
    ]
    .map(String::from)
    .to_vec();
    names.push(format!("b/{}", "a".repeat(64)));
    let one = |name: String| (format!("finalizer {}", brief(&name)), json!({"finalizers": [name]}));
    let mut all: Vec<(String, Value)> = names.into_iter().map(one).collect();
    all.push((
        "both ways of deletion as finalizers".into(),
        json!({"finalizers": ["orphan", "foregroundDeletion"]}),
    ));
    all.push(("a finalizer twice".into(), json!({"finalizers": ["a.b/c", "a.b/c"]})));
    all
}

fn owners() -> Vec<(String, Value)> {
    let owner = |change: &[(&str, Value)]| {
        let mut owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "u"});
        for (field, value) in change {
            owner[*field] = value.clone();
        }
        owner
    };
    let mut all = Vec::new();
    for field in ["apiVersion", "kind", "name", "uid"] {
        all.push((
            format!("an owner with empty {field}"),
            json!({"ownerReferences": [owner(&[(field, "".into())])]}),
        ));
        let mut without = owner(&[]);
        without.as_object_mut().expect("an object").remove(field);
        all.push((format!("an owner without {field}"), json!({"ownerReferences": [without]})));
    }
    let controls = |uid: &str| owner(&[("uid", uid.into()), ("controller", true.into())]);
    all.push(("two controllers".into(), json!({"ownerReferences": [controls("u"), controls("v")]})));
    all.push((
        "three controllers".into(),
        json!({"ownerReferences": [controls("u"), controls("v"), controls("w")]}),
    ));
    all.push(("an owner twice".into(), json!({"ownerReferences": [owner(&[]), owner(&[])]})));
    all.push(("an owner without a name, kind or anything".into(), json!({"ownerReferences": [{}]})));
    for version in ["a/b/c", "/v1", "v1/", "Example.com/v1"] {
        all.push((
            format!("an owner of version {version:?}"),
            json!({"ownerReferences": [owner(&[("apiVersion", version.into())])]}),
        ));
    }
    let event = owner(&[("kind", "Event".into())]);
    all.push(("an owner that is an Event".into(), json!({"ownerReferences": [event]})));
    all
}

/// Values of another type.
fn types() -> Vec<(String, Value)> {
    [
        ("labels in a list", json!({"labels": ["a"]})),
        ("labels as text", json!({"labels": "a"})),
        ("a label that is a number", json!({"labels": {"a": 1}})),
        ("a label that is null", json!({"labels": {"a": null}})),
        ("an annotation that is an object", json!({"annotations": {"a": {"b": "c"}}})),
        ("finalizers as text", json!({"finalizers": "a.b/c"})),
        ("finalizers of numbers", json!({"finalizers": [1]})),
        ("owners as text", json!({"ownerReferences": "o"})),
        (
            "an owner whose uid is a number",
            json!({"ownerReferences": [{"apiVersion": "v1", "kind": "K", "name": "o", "uid": 1}]}),
        ),
        ("an unknown field", json!({"labelz": {"a": "b"}})),
        ("a time that is none", json!({"creationTimestamp": "yesterday"})),
        ("a time that is a number", json!({"creationTimestamp": 1})),
        ("a namespace that is a number", json!({"namespace": 1})),
    ]
    .map(|(what, metadata)| (what.to_owned(), metadata))
    .to_vec()
}
