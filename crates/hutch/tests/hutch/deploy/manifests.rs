//! `deploy/` as data: every object of its kustomization.

use std::path::{Path, PathBuf};

use serde_json::Value;

pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy")
}

/// The objects in the order of the kustomization, with the images that it sets.
pub(crate) fn objects() -> Vec<Value> {
    let mut objects = Vec::new();
    collect(&folder(), &mut objects);
    let images = read(&folder().join("kustomization.yaml")).remove(0)["images"].clone();
    for object in &mut objects {
        let containers = object.pointer_mut("/spec/template/spec/containers").and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            let image =
                images.as_array().into_iter().flatten().find(|image| image["name"] == container["image"]);
            let image =
                image.unwrap_or_else(|| panic!("the kustomization does not set {}", container["image"]));
            let (name, tag) =
                (image["newName"].as_str().expect("a name"), image["newTag"].as_str().expect("a tag"));
            container["image"] = format!("{name}:{tag}").into();
        }
    }
    objects
}

fn collect(folder: &Path, objects: &mut Vec<Value>) {
    for kustomization in read(&folder.join("kustomization.yaml")) {
        for resource in kustomization["resources"].as_array().expect("resources") {
            let path = folder.join(resource.as_str().expect("a path"));
            if path.is_dir() {
                collect(&path, objects);
            } else {
                objects.extend(read(&path));
            }
        }
    }
}

/// The documents of a file.
pub(crate) fn read(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let documents: Vec<Value> =
        serde_saphyr::from_multiple(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    documents
}

pub(crate) fn of_kind<'a>(objects: &'a [Value], kind: &str) -> Vec<&'a Value> {
    objects.iter().filter(|object| object["kind"] == kind).collect()
}

pub(crate) fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}
