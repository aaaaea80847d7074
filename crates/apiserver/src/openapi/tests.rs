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

#[test]
fn old_document_is_closed_and_names_the_patches_of_every_kind() {
    let kinds: Vec<_> = builtin().into_iter().chain(custom("integer")).collect();
    let document = v2::document(&kinds, "v1.36.0");
    let definitions = document["definitions"].as_object().expect("definitions");
    let text = document.to_string();
    for reference in text.split("\"$ref\":\"#/definitions/").skip(1) {
        let name = reference.split('"').next().expect("a name");
        assert!(definitions.contains_key(name), "{name}");
    }
    assert!(!text.contains("#/components/") && !text.contains("\"allOf\":["));
    let patch = patch_of(&document, "Box");
    let parameters = patch["parameters"].as_array().expect("parameters");
    assert!(parameters.iter().any(|p| p["name"] == "fieldValidation" && p["type"] == "string"));
    assert!(parameters.iter().any(|p| p["in"] == "body"));
    for (name, schema) in definitions {
        // kubectl refuses the whole document for one of these.
        let is_list = schema["type"] == "array";
        assert!(!is_list || schema["items"].is_object(), "{name}");
    }
}

#[test]
fn schema_that_the_old_form_cannot_express_is_open() {
    let schema = |from: Value| v2::schema(&from);
    let open = json!({"type": "object", "properties": {"a": {}}, "description": "d", "nullable": true});
    assert_eq!(schema(open), json!({"description": "d"}));
    let any = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    assert_eq!(schema(any), json!({"x-kubernetes-preserve-unknown-fields": true}));
    let quantity = json!({"oneOf": [{"type": "string"}, {"type": "number"}]});
    assert_eq!(schema(quantity), json!({"type": "string"}));
    assert_eq!(schema(json!({"type": "array"})), json!({}));
    let reference = json!({"allOf": [reference("A")], "default": {}, "description": "d"});
    assert_eq!(schema(reference), json!({"$ref": "#/definitions/A", "description": "d"}));
}

#[test]
fn client_gets_the_old_document_in_the_form_that_it_accepts() {
    let old = Old::of(&custom("integer"), "v1.36.0");
    let form = |accept: &str| old.form(accept).map(|(document, media)| (document[0], media));
    let binary = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
    // The first field of the message is the version of OpenAPI.
    let found = (0x0a, "application/com.github.proto-openapi.spec.v2.v1.0+protobuf");
    assert_eq!(form(binary), Some(found));
    assert_eq!(form(&format!("{binary}, application/json")), Some(found));
    for accept in ["", "*/*", "application/json;q=1, text/plain"] {
        assert_eq!(form(accept), Some((b'{', "application/json")));
    }
    assert_eq!(form("text/plain"), None);
}

/// The messages are those that a reader of `OpenAPIv2.proto` gives for the same JSON.
#[test]
fn old_document_in_protobuf_has_the_numbers_of_its_fields() {
    let document = json!({"swagger": "2.0", "definitions": {"A": {
        "type": "object", "required": ["b"], "x-y": {"c": 1}, "additionalProperties": {"$ref": "B"},
    }}});
    let schema = [
        &[0x9a, 0x01, 1, b'b'][..],
        &[0xaa, 0x01, 5, 0x0a, 3, 0x0a, 1, b'B'],
        &[0xb2, 0x01, 8, 0x0a, 6, b'o', b'b', b'j', b'e', b'c', b't'],
        &[0xfa, 0x01, 16, 0x0a, 3, b'x', b'-', b'y', 0x12, 9, 0x12, 7],
        b"{\"c\":1}",
    ]
    .concat();
    let length = u8::try_from(schema.len()).expect("a short one");
    let wanted =
        [b"\x0a\x032.0", &[0x4a, length + 7, 0x0a, length + 5, 0x0a, 1, b'A', 0x12, length][..], &schema]
            .concat();
    assert_eq!(binary::encode(&document), wanted);
}
