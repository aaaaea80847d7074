//! Volumes and what they are filled from.

use std::collections::HashSet;

use hutch_api::syntax;
use serde_json::Value;

use super::{duplicate, list, text};
use crate::admission::names::{file_path, invalid, no_backsteps};
use crate::failure::Cause;

/// Sources of a volume, in the order in which Kubernetes counts them.
const SOURCES: &[&str] = &[
    "emptyDir",
    "hostPath",
    "gitRepo",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "secret",
    "nfs",
    "iscsi",
    "glusterfs",
    "flocker",
    "persistentVolumeClaim",
    "rbd",
    "cinder",
    "cephfs",
    "quobyte",
    "downwardAPI",
    "fc",
    "flexVolume",
    "configMap",
    "azureFile",
    "vsphereVolume",
    "photonPersistentDisk",
    "portworxVolume",
    "azureDisk",
    "storageos",
    "projected",
    "scaleIO",
    "csi",
    "ephemeral",
    "image",
];
/// Shortest and longest life of a projected token, in seconds, with the messages for others.
const TOKEN_SECONDS_MIN: (i64, &str) = (600, "may not specify a duration less than 10 minutes");
const TOKEN_SECONDS_MAX: (i64, &str) = (1 << 32, "may not specify a duration larger than 2^32 seconds");

/// Checks the volumes of a Pod. Returns the names of the valid ones, which containers can mount.
pub(super) fn check<'a>(spec: &'a Value, at: &str, causes: &mut Vec<Cause>) -> HashSet<&'a str> {
    let mut names = HashSet::new();
    for (index, volume) in list(spec, "volumes") {
        let (at, name) = (format!("{at}.volumes[{index}]"), text(volume, "name"));
        let field = format!("{at}.name");
        let mut found = Vec::new();
        source(volume, &at, &mut found);
        if name.is_empty() {
            found.push(Cause::required(field.as_str(), ""));
        } else {
            found.extend(invalid(&field, name, syntax::label(name)));
        }
        if names.contains(name) {
            found.push(duplicate(field, name));
        }
        if found.is_empty() {
            names.insert(name);
        }
        causes.extend(found);
    }
    names
}

fn source(volume: &Value, at: &str, causes: &mut Vec<Cause>) {
    let mut found = SOURCES.iter().filter(|source| !volume[**source].is_null());
    let Some(first) = found.next() else {
        return causes.push(Cause::required(at, "must specify a volume type"));
    };
    let (source, field) = (&volume[*first], format!("{at}.{first}"));
    match *first {
        "hostPath" => match text(source, "path") {
            "" => causes.push(Cause::required(format!("{field}.path"), "")),
            path => causes.extend(invalid(&format!("{field}.path"), path, no_backsteps(path))),
        },
        "secret" => {
            required(source, &field, "secretName", causes);
            mode(source, &field, "defaultMode", causes);
            keys(source, &field, causes);
        }
        "configMap" => {
            required(source, &field, "name", causes);
            mode(source, &field, "defaultMode", causes);
            keys(source, &field, causes);
        }
        "downwardAPI" => {
            mode(source, &field, "defaultMode", causes);
            list(source, "items").for_each(|(_, file)| downward_file(file, &field, causes));
        }
        "projected" => {
            mode(source, &field, "defaultMode", causes);
            projected(source, &field, causes);
        }
        "persistentVolumeClaim" => required(source, &field, "claimName", causes),
        _ => {}
    }
    for second in found {
        let why = "may not specify more than 1 volume type";
        causes.push(Cause::forbidden(format!("{at}.{second}"), why));
    }
}

fn required(value: &Value, at: &str, field: &str, causes: &mut Vec<Cause>) {
    if text(value, field).is_empty() {
        causes.push(Cause::required(format!("{at}.{field}"), ""));
    }
}

fn mode(value: &Value, at: &str, field: &str, causes: &mut Vec<Cause>) {
    if let Some(mode) = value[field].as_i64()
        && !(0..=0o777).contains(&mode)
    {
        let message = "must be a number between 0 and 0777 (octal), both inclusive";
        causes.push(Cause::invalid(format!("{at}.{field}"), &value[field], message));
    }
}

/// The `items` of a ConfigMap or a Secret: which key becomes which file.
fn keys(source: &Value, at: &str, causes: &mut Vec<Cause>) {
    for (index, item) in list(source, "items") {
        let at = format!("{at}.items[{index}]");
        required(item, &at, "key", causes);
        path(item, &at, causes);
        mode(item, &at, "mode", causes);
    }
}

fn path(item: &Value, at: &str, causes: &mut Vec<Cause>) {
    required(item, at, "path", causes);
    let path = text(item, "path");
    causes.extend(invalid(&format!("{at}.path"), path, file_path(path)));
}

/// A file of the downward API. Kubernetes does not say which of them is wrong.
fn downward_file(file: &Value, at: &str, causes: &mut Vec<Cause>) {
    path(file, at, causes);
    match (&file["fieldRef"], &file["resourceFieldRef"]) {
        (Value::Null, Value::Null) => {
            causes.push(Cause::required(at, "one of fieldRef and resourceFieldRef is required"));
        }
        (field, resource) => {
            if !field.is_null() && !resource.is_null() {
                let message = "fieldRef and resourceFieldRef can not be specified simultaneously";
                causes.push(Cause::invalid(at, &"resource".into(), message));
            }
            if !field.is_null() {
                required(field, &format!("{at}.fieldRef"), "fieldPath", causes);
            }
        }
    }
    mode(file, at, "mode", causes);
}

fn projected(projected: &Value, at: &str, causes: &mut Vec<Cause>) {
    let mut paths = HashSet::new();
    for (index, source) in list(projected, "sources") {
        let field = format!("{at}.sources[{index}]");
        let mut kinds = 0;
        for kind in ["secret", "configMap"] {
            let (own, field) = (&source[kind], format!("{field}.{kind}"));
            if own.is_null() {
                continue;
            }
            kinds += 1;
            required(own, &field, "name", causes);
            keys(own, &field, causes);
            for (_, item) in list(own, "items") {
                claim_path(text(item, "path"), text(own, "name"), at, &mut paths, causes);
            }
        }
        let downward = &source["downwardAPI"];
        kinds += usize::from(!downward.is_null());
        for (_, file) in list(downward, "items") {
            downward_file(file, &format!("{field}.downwardAPI"), causes);
            claim_path(text(file, "path"), text(file, "path"), at, &mut paths, causes);
        }
        kinds += usize::from(!source["serviceAccountToken"].is_null());
        token(&source["serviceAccountToken"], at, &format!("{field}.serviceAccountToken"), causes);
        let bundle = &source["clusterTrustBundle"];
        if !bundle.is_null() {
            kinds += 1;
            path(bundle, &format!("{field}.clusterTrustBundle"), causes);
            claim_path(text(bundle, "path"), text(bundle, "path"), at, &mut paths, causes);
        }
        if kinds > 1 {
            causes.push(Cause::forbidden(field, "may not specify more than 1 volume type per source"));
        }
    }
}

/// No two sources of a projected volume may write the same file.
fn claim_path<'a>(
    path: &'a str,
    shown: &str,
    at: &str,
    paths: &mut HashSet<&'a str>,
    causes: &mut Vec<Cause>,
) {
    if !path.is_empty() && !paths.insert(path) {
        causes.push(Cause::invalid(at, &shown.into(), "conflicting duplicate paths"));
    }
}

fn token(token: &Value, projected: &str, at: &str, causes: &mut Vec<Cause>) {
    if token.is_null() {
        return;
    }
    if let Some(seconds) = token["expirationSeconds"].as_i64() {
        for (wrong, message) in [
            (seconds < TOKEN_SECONDS_MIN.0, TOKEN_SECONDS_MIN.1),
            (seconds > TOKEN_SECONDS_MAX.0, TOKEN_SECONDS_MAX.1),
        ] {
            if wrong {
                causes.push(Cause::invalid(format!("{at}.expirationSeconds"), &seconds.into(), message));
            }
        }
    }
    path(token, projected, causes);
}
