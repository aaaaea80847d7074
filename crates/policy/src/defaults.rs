//! The defaults in the schemas of the CRDs, and those that the documentation names, against those of the code. The API server
//! writes the former into objects; `hutch run` reads files without them.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::{PolicyObject, ProviderObject};

/// Schema of the spec of a kind.
fn schema(plural: &str) -> Value {
    let path = format!("{}/crds/policy.hutch.dev_{plural}.yaml", env!("CARGO_MANIFEST_DIR"));
    let crd: Value = serde_saphyr::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"].clone()
}

/// Path of a field in the spec, with `[]` for the items of a list.
fn path(name: &str) -> Vec<String> {
    name.replace("[]", ".[]").split('.').filter(|step| !step.is_empty()).map(str::to_owned).collect()
}

/// Schema of a field.
fn field<'a>(schema: &'a Value, path: &[String]) -> &'a Value {
    path.iter().fold(schema, |schema, step| match step.as_str() {
        "[]" => &schema["items"],
        name => &schema["properties"][name],
    })
}

/// Collects the defaults of a schema by their paths: those that the API server applies, and those that descriptions name.
fn collect(schema: &Value, at: &mut Vec<String>, applied: &mut Vec<Named>, described: &mut Vec<Named>) {
    if let Some(value) = schema.get("default") {
        applied.push((at.clone(), value.clone()));
    }
    let text = schema["description"].as_str().unwrap_or_default();
    match text.split_once("he default is ").map(|(_, default)| default) {
        Some(default) if default.starts_with('`') => {
            described.push((at.clone(), default.split('`').nth(1).unwrap().into()));
        }
        Some("all of them.") => described.push((at.clone(), schema["items"]["enum"].clone())),
        // Of ports, a text about two fields together.
        other => assert!(other.is_none_or(|text| text == "443, or 80 with `plaintext`."), "{at:?}: {text}"),
    }
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        at.push(name.clone());
        collect(field, at, applied, described);
        at.pop();
    }
    if schema["items"].is_object() {
        at.push("[]".to_owned());
        collect(&schema["items"], at, applied, described);
        at.pop();
    }
}

/// A field and its default.
type Named = (Vec<String>, Value);

/// Returns a value of a schema with its required fields alone.
fn least(schema: &Value) -> Value {
    let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    match schema["type"].as_str() {
        Some("object") => required.map(|name| (name, least(&schema["properties"][name]))).collect(),
        Some("array") => json!([]),
        _ => schema["enum"].get(0).cloned().unwrap_or_else(|| "a.example".into()),
    }
}

/// Returns a value of a schema with its required fields and everything that leads to a field. The field has this value, or is
/// absent.
fn with(schema: &Value, path: &[String], value: Option<&Value>) -> Value {
    match path {
        [] => value.cloned().unwrap_or_default(),
        [step, rest @ ..] if step == "[]" => json!([with(&schema["items"], rest, value)]),
        [name, rest @ ..] => {
            let mut object = least(schema);
            if !rest.is_empty() || value.is_some() {
                object[name] = with(&schema["properties"][name], rest, value);
            }
            object
        }
    }
}

/// Returns true if two specs of a kind are read as the same object.
fn read_alike(plural: &str, specs: [Value; 2]) -> bool {
    let [one, other] = specs.map(|spec| {
        let kind = match plural {
            "credentialproviders" => "CredentialProvider",
            "clustersandboxpolicies" => "ClusterSandboxPolicy",
            _ => "SandboxPolicy",
        };
        json!({"apiVersion": "policy.hutch.dev/v1alpha1", "kind": kind, "metadata": {"name": "p"}, "spec": spec})
    });
    let failed = format!("{one} {other}");
    match plural {
        "credentialproviders" => {
            let read = |object| serde_json::from_value::<ProviderObject>(object).expect(&failed);
            read(one) == read(other)
        }
        _ => {
            let read = |object| serde_json::from_value::<PolicyObject>(object).expect(&failed);
            read(one) == read(other)
        }
    }
}

/// Checks that a field which is absent means this value, and no other one.
fn check(plural: &str, schema: &Value, (path, default): &Named) {
    let absent = with(schema, path, None);
    let reads = |value: &Value| read_alike(plural, [absent.clone(), with(schema, path, Some(value))]);
    assert!(reads(default), "{plural}: {path:?} is {default} by default");
    let field = field(schema, path);
    let others: Vec<Value> = match (default, field["enum"].as_array()) {
        (Value::Number(number), _) => vec![(number.as_u64().unwrap() + 1).into()],
        (Value::Array(all), _) => vec![Value::from(&all[1..])],
        (_, Some(values)) => values.iter().filter(|value| *value != default).cloned().collect(),
        (_, None) => panic!("{path:?} has values of an unknown kind"),
    };
    assert!(!others.is_empty(), "{path:?}");
    for other in others {
        assert!(!reads(&other), "{plural}: {path:?} is {default} by default, and {other} means the same");
    }
}

#[test]
fn absent_field_means_the_default_of_the_schema() {
    for (plural, expected) in
        [("sandboxpolicies", (5, 4)), ("clustersandboxpolicies", (5, 4)), ("credentialproviders", (1, 0))]
    {
        let schema = schema(plural);
        let (mut applied, mut described) = (Vec::new(), Vec::new());
        collect(&schema, &mut Vec::new(), &mut applied, &mut described);
        assert_eq!((applied.len(), described.len()), expected, "{plural}: {applied:?} {described:?}");
        applied.iter().chain(&described).for_each(|default| check(plural, &schema, default));
    }
}

/// Returns the defaults in a table of the documentation: that after a text, whose fields are at a path.
fn documented(page: &str, before: &str, at: &str) -> BTreeMap<Vec<String>, Value> {
    let (_, rest) = page.split_once(before).expect(before);
    let rows =
        rest.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    let mut found = BTreeMap::new();
    for row in rows {
        let cells: Vec<&str> = row.split(" | ").collect();
        let (Some(name), Some(text)) = (cells[0].split('`').nth(1), cells.get(1)) else { continue };
        let marked = text.split_once("` (default)").and_then(|(before, _)| before.rsplit('`').next());
        let default = match (marked, text.split_once("default: all").is_some()) {
            (Some(value), _) => value.into(),
            (None, true) => text.split('`').skip(1).step_by(2).collect(),
            (None, false) => continue,
        };
        found.insert(path(&format!("{at}{}", name.trim_start_matches("spec."))), default);
    }
    found
}

#[test]
fn documented_default_is_that_of_the_code_and_of_the_schema() {
    let read = |name: &str| {
        std::fs::read_to_string(format!("{}/../../docs/{name}.md", env!("CARGO_MANIFEST_DIR"))).unwrap()
    };
    let page = read("policy");
    let mut all = BTreeMap::new();
    for (before, at) in [
        ("\n## Fields\n", ""),
        ("\nFields of a rule:\n", "egress.rules[]."),
        ("\nFields of an entry of `http`", "egress.rules[].http[]."),
        ("\nFields of an entry of `mcp`", "egress.rules[].mcp[]."),
        ("\n### Scanner\n", "scanner."),
    ] {
        let found = documented(&page, before, at);
        assert!(!found.is_empty(), "{before:?}");
        all.extend(found);
    }
    for plural in ["sandboxpolicies", "clustersandboxpolicies"] {
        let schema = schema(plural);
        all.iter().for_each(|(path, default)| check(plural, &schema, &(path.clone(), default.clone())));
        let (mut applied, mut described) = (Vec::new(), Vec::new());
        collect(&schema, &mut Vec::new(), &mut applied, &mut described);
        for (path, default) in applied.iter().chain(&described) {
            assert_eq!(all.get(path), Some(default), "{plural}: {path:?}");
        }
    }
    // Two that no schema names.
    assert_eq!(all.len(), 5 + 4 + 2, "{all:?}");
    let (mut applied, mut described) = (Vec::new(), Vec::new());
    collect(&schema("credentialproviders"), &mut Vec::new(), &mut applied, &mut described);
    let [(path, default)] = &applied[..] else { panic!("{applied:?}") };
    assert_eq!(path.join("."), "serviceAccountToken.expirationSeconds");
    assert!(read("credentials").contains(&format!("`expirationSeconds` 600 to 86400, default {default}.")));
}
