//! The bounds in the schemas of the CRDs against those of the code. What the API server accepts must be read by the node.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::{credential, expression, files, host, http, object, provider, scanner};

/// Schema of the spec of a kind.
fn schema(plural: &str) -> Value {
    let path = format!("{}/crds/policy.hutch.dev_{plural}.yaml", env!("CARGO_MANIFEST_DIR"));
    let crd: Value = serde_saphyr::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"].clone()
}

/// Bounds of the schema of a kind, by the path of the field: the number of entries of a list or map, and the length of a text.
fn bounds(plural: &str) -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    collect(&schema(plural), String::new(), &mut found);
    found
}

fn collect(schema: &Value, path: String, found: &mut BTreeMap<String, usize>) {
    let bound = ["maxItems", "maxProperties", "maxLength"].iter().find_map(|name| schema[name].as_u64());
    found.extend(bound.map(|bound| (path.clone(), usize::try_from(bound).unwrap())));
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let dot = if path.is_empty() { "" } else { "." };
        collect(field, format!("{path}{dot}{name}"), found);
    }
    for (kind, mark) in [("items", "[]"), ("additionalProperties", "{}")] {
        if schema[kind].is_object() {
            collect(&schema[kind], format!("{path}{mark}"), found);
        }
    }
}

/// Bounds of the code, by the end of the path.
fn of_code(path: &str) -> Option<usize> {
    Some(match path {
        "files[].path" => files::LENGTH,
        "scanner.allow" | "scanner.allow[].hosts" => scanner::EXCEPTIONS,
        "credentials" => credential::CREDENTIALS,
        "credentials[].hosts" | "credentials[].ports" | "credentials[].paths" => credential::ENTRIES,
        "egress.rules[].credentials" => credential::ENTRIES,
        "credentials[].name"
        | "credentials[].env"
        | "credentials[].header"
        | "egress.rules[].credentials[]" => credential::NAME,
        "credentials[].aws.accessKeyId" | "credentials[].aws.sessionToken" => credential::NAME,
        "credentials[].format" => credential::FORMAT,
        "egress.rules" => object::RULES,
        "egress.rules[].when" | "egress.rules[].mcp[].args" => expression::LENGTH,
        "credentials[].hosts[]" | "egress.rules[].hosts[]" => host::NAME_LIMIT,
        "egress.rules[].http" | "egress.rules[].mcp" => object::ENTRIES,
        "egress.rules[].http[].query" | "egress.rules[].http[].headers" => object::ENTRIES,
        "credentials[].paths[]" | "egress.rules[].http[].paths[]" => http::PATTERN,
        "egress.rules[].mcp[].methods[]" | "egress.rules[].mcp[].tools[]" => http::PATTERN,
        "files" | "appliesTo.templates" | "appliesTo.sandboxes" => object::HOSTS,
        _ if path.starts_with("appliesTo.") || path.contains(".sandboxes[]") => return None,
        "egress.rules[].hosts" | "egress.rules[].cidrs" | "egress.rules[].private" => object::HOSTS,
        "egress.rules[].ports" | "egress.rules[].sandboxes" => object::HOSTS,
        "egress.rules[].http[].methods" | "egress.rules[].http[].paths" => object::HOSTS,
        "egress.rules[].http[].body.contentTypes" => object::HOSTS,
        "egress.rules[].mcp[].methods" | "egress.rules[].mcp[].tools" => object::HOSTS,
        _ => return None,
    })
}

fn of_providers(path: &str) -> Option<usize> {
    Some(match path {
        "hosts" | "ports" | "paths" => provider::ENTRIES,
        "hosts[]" => host::NAME_LIMIT,
        "paths[]" => http::PATTERN,
        "secret.key" => provider::NAME,
        "serviceAccountToken.audience" | "vault.path" | "vault.field" | "vault.parameters{}" => {
            provider::TEXT
        }
        "vault.parameters" => provider::PARAMETERS,
        _ => return None,
    })
}

#[test]
fn bounds_of_the_schemas_are_those_of_the_code() {
    for plural in ["sandboxpolicies", "clustersandboxpolicies", "credentialproviders"] {
        let (of, least): (fn(&str) -> Option<usize>, usize) =
            if plural == "credentialproviders" { (of_providers, 10) } else { (of_code, 26) };
        let bounds = bounds(plural);
        let compared: Vec<_> =
            bounds.iter().filter_map(|(path, bound)| Some((path, bound, of(path)?))).collect();
        for (path, bound, expected) in &compared {
            assert_eq!(**bound, *expected, "{plural}: {path}");
        }
        assert!(compared.len() >= least, "{plural}: {}", compared.len());
    }
}

/// Rules in CEL repeat lists of names.
#[test]
fn names_in_rules_of_the_schema_are_those_of_the_code() {
    let listed = |names: &[&str]| format!("{names:?}").replace('"', "'");
    let rule =
        |field: &Value| field["x-kubernetes-validations"][0]["rule"].as_str().unwrap_or_default().to_owned();
    let own = schema("sandboxpolicies");
    let credential = &own["properties"]["credentials"]["items"]["properties"];
    let (env, header) = (rule(&credential["env"]), rule(&credential["header"]));
    assert!(env.contains(&listed(&credential::OF_SYSTEM)), "{env}");
    assert!(env.contains(&format!("'^({})'", credential::OF_SYSTEM_FROM.join("|"))), "{env}");
    assert!(header.contains(&listed(&credential::CLOSED)), "{header}");
    let reserved = files::RESERVED.map(|path| path.trim_start_matches('/').replace('.', "[.]")).join("|");
    for schema in [&own, &schema("clustersandboxpolicies")] {
        let path = rule(&schema["properties"]["files"]["items"]["properties"]["path"]);
        assert!(path.contains(&format!("^/({reserved})(/|$)")), "{path}");
    }
}
