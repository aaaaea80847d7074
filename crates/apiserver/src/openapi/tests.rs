use super::*;
use crate::kinds::builtin;

fn custom(size: &str) -> Vec<Kind> {
    let crd = json!({"metadata": {"name": "boxes.example.org"}, "spec": {"group": "example.org", "scope": "Namespaced",
        "names": {"kind": "Box", "plural": "boxes"},
        "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object", "properties": {
                "size": {"type": size}}}}}}}]}});
    Kind::from_crd(&crd).expect("kinds")
}

/// Finds the PATCH of a kind as kubectl does before it writes, to read a parameter and a media type.
fn patch_of<'a>(document: &'a Value, kind: &str) -> &'a Value {
    let paths = document["paths"].as_object().expect("paths");
    let wanted = |op: &&Value| op["x-kubernetes-group-version-kind"]["kind"] == kind;
    paths.values().filter_map(|item| item.get("patch")).find(wanted).expect("a patch operation")
}

#[test]
fn kubectl_finds_field_validation_and_patch_types() {
    let kinds: Vec<_> = builtin().into_iter().chain(custom("integer")).collect();
    let cases = [
        ("api/v1", "Pod", true),
        ("apis/apps/v1", "Deployment", true),
        ("apis/example.org/v1", "Box", false),
    ];
    for (path, kind, strategic) in cases {
        let document = document(&kinds, path, "v1.36.0").expect("a document");
        let patch = patch_of(&document, kind);
        let parameters = patch["parameters"].as_array().expect("parameters");
        assert!(parameters.iter().any(|p| p["name"] == "fieldValidation" && p["in"] == "query"), "{kind}");
        assert_eq!(patch["requestBody"]["content"].get(paths_strategic()).is_some(), strategic, "{kind}");
    }
    assert_eq!(document(&kinds, "apis/nowhere/v1", "v1.36.0"), None);
}

fn paths_strategic() -> &'static str {
    "application/strategic-merge-patch+json"
}

#[test]
fn every_document_is_closed_and_names_its_kinds() {
    let kinds: Vec<_> = builtin().into_iter().chain(custom("integer")).collect();
    let index = index(&kinds);
    for path in index["paths"].as_object().expect("paths").keys() {
        let document = document(&kinds, path, "v1.36.0").expect("a document");
        let schemas = document["components"]["schemas"].as_object().expect("schemas");
        let mut found = Vec::new();
        references(&document, &mut found);
        for name in found {
            assert!(schemas.contains_key(name), "{path}: {name}");
        }
        for kind in kinds.iter().filter(|k| document_path(&k.group, &k.version) == *path) {
            let gvks = &schemas[&component(kind)]["x-kubernetes-group-version-kind"];
            assert!(gvks.as_array().is_some_and(|list| list.contains(&gvk(kind))), "{}", kind.kind);
        }
    }
}

#[test]
fn a_custom_kind_is_published_with_its_metadata() {
    let document = document(&custom("integer"), "apis/example.org/v1", "v1.36.0").expect("a document");
    let schema = &document["components"]["schemas"]["org.example.v1.Box"];
    assert_eq!(schema["properties"]["spec"]["properties"]["size"]["type"], "integer");
    assert_eq!(schema["properties"]["metadata"]["allOf"][0], reference(OBJECT_META));
}

#[test]
fn the_hash_follows_the_schema() {
    let url = |kinds: &[Kind]| index(kinds)["paths"]["apis/example.org/v1"]["serverRelativeURL"].clone();
    let first = url(&custom("integer"));
    assert_eq!(first, url(&custom("integer")));
    assert_ne!(first, url(&custom("string")));
    assert!(
        first.as_str().is_some_and(|u| u.starts_with("/openapi/v3/apis/example.org/v1?hash=")),
        "{first}"
    );
}
