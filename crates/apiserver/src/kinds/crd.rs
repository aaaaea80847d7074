//! A CustomResourceDefinition read as kinds.

use std::sync::Arc;

use serde_json::Value;

use super::{Column, Kind, STORED_VERBS, Scale, Subresource, version_rank};

/// Error in a CustomResourceDefinition.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {message}")]
pub(crate) struct CrdProblem {
    /// Path of the field at fault, such as `spec.names.plural`.
    pub path: String,
    /// Cause, with the text of a Kubernetes API server.
    pub message: String,
}

fn problem(path: &str, message: impl Into<String>) -> CrdProblem {
    CrdProblem { path: path.into(), message: message.into() }
}

fn text<'a>(object: &'a Value, pointer: &str) -> Option<&'a str> {
    object.pointer(pointer).and_then(Value::as_str).filter(|s| !s.is_empty())
}

fn required<'a>(object: &'a Value, pointer: &str) -> Result<&'a str, CrdProblem> {
    text(object, pointer).ok_or_else(|| problem(&pointer[1..].replace('/', "."), "Required value"))
}

fn texts(object: &Value, pointer: &str) -> Vec<String> {
    let list = object.pointer(pointer).and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_str).map(Into::into).collect()
}

pub(super) fn kinds(crd: &Value) -> Result<Vec<Kind>, CrdProblem> {
    let group = required(crd, "/spec/group")?;
    let plural = required(crd, "/spec/names/plural")?;
    let kind = required(crd, "/spec/names/kind")?;
    let name = required(crd, "/metadata/name")?;
    if name != format!("{plural}.{group}") {
        let message = format!("Invalid value: \"{name}\": must be spec.names.plural+\".\"+spec.group");
        return Err(problem("metadata.name", message));
    }
    let namespaced = match required(crd, "/spec/scope")? {
        "Namespaced" => true,
        "Cluster" => false,
        other => {
            let message =
                format!("Unsupported value: \"{other}\": supported values: \"Cluster\", \"Namespaced\"");
            return Err(problem("spec.scope", message));
        }
    };
    let none = Vec::new();
    let versions = crd.pointer("/spec/versions").and_then(Value::as_array).unwrap_or(&none);
    let flagged = |flag: &'static str| versions.iter().filter(move |v| v[flag] == Value::Bool(true));
    let mut storage = flagged("storage").filter_map(|v| text(v, "/name"));
    let (Some(storage_version), None) = (storage.next(), storage.next()) else {
        return Err(problem(
            "spec.versions",
            "Invalid value: must have exactly one version marked as storage version",
        ));
    };
    let mut served_versions: Vec<String> =
        flagged("served").filter_map(|v| text(v, "/name")).map(Into::into).collect();
    served_versions.sort_by_key(|v| version_rank(v));

    let base = Kind {
        group: group.into(),
        kind: kind.into(),
        list_kind: text(crd, "/spec/names/listKind").map_or_else(|| format!("{kind}List"), Into::into),
        plural: plural.into(),
        singular: text(crd, "/spec/names/singular").map_or_else(|| kind.to_lowercase(), Into::into),
        short_names: texts(crd, "/spec/names/shortNames"),
        categories: texts(crd, "/spec/names/categories"),
        namespaced,
        verbs: STORED_VERBS,
        served_versions: served_versions.clone(),
        storage_version: storage_version.into(),
        ..Kind::default()
    };
    let mut kinds = Vec::with_capacity(served_versions.len());
    for version in &served_versions {
        let Some((index, entry)) =
            versions.iter().enumerate().find(|(_, v)| v["name"].as_str() == Some(version.as_str()))
        else {
            continue;
        };
        kinds.push(of_version(&base, entry, &format!("spec.versions[{index}]"))?);
    }
    Ok(kinds)
}

fn of_version(base: &Kind, entry: &Value, path: &str) -> Result<Kind, CrdProblem> {
    let version = entry["name"].as_str().unwrap_or_default().to_string();
    let Some(schema) = entry.pointer("/schema/openAPIV3Schema") else {
        return Err(problem(
            &format!("{path}.schema.openAPIV3Schema"),
            "Required value: schemas are required",
        ));
    };
    let mut subresources = Vec::new();
    let scale = entry.pointer("/subresources/scale").map(|scale| Scale {
        spec_replicas: text(scale, "/specReplicasPath").unwrap_or(".spec.replicas").into(),
        status_replicas: text(scale, "/statusReplicasPath").unwrap_or(".status.replicas").into(),
        label_selector: text(scale, "/labelSelectorPath").map(Into::into),
    });
    let has_status = entry.pointer("/subresources/status").is_some_and(Value::is_object);
    let verbs = vec!["get", "patch", "update"];
    if scale.is_some() {
        let body = ("autoscaling".into(), "v1".into(), "Scale".into());
        subresources.push(Subresource { name: "scale".into(), body, verbs: verbs.clone() });
    }
    if has_status {
        let body = (base.group.clone(), version.clone(), base.kind.clone());
        subresources.push(Subresource { name: "status".into(), body, verbs });
    }
    let selectable = entry["selectableFields"].as_array().into_iter().flatten();
    let deprecation_warning = (entry["deprecated"] == Value::Bool(true)).then(|| {
        let standard = || format!("{}/{version} {} is deprecated", base.group, base.kind);
        text(entry, "/deprecationWarning").map_or_else(standard, Into::into)
    });
    Ok(Kind {
        version,
        subresources,
        columns: columns(entry, path)?,
        schema: Some(Arc::new(schema.clone())),
        deprecation_warning,
        has_status,
        scale,
        selectable_fields: selectable
            .filter_map(|f| f["jsonPath"].as_str())
            .map(|p| p.trim_start_matches('.').into())
            .collect(),
        ..base.clone()
    })
}

fn columns(entry: &Value, path: &str) -> Result<Vec<Column>, CrdProblem> {
    let declared = entry.get("additionalPrinterColumns").and_then(Value::as_array);
    let Some(declared) = declared.filter(|list| !list.is_empty()) else {
        // What every custom kind without columns of its own is shown with.
        return Ok(vec![Column {
            name: "Age".into(),
            kind: "date".into(),
            format: String::new(),
            description: String::new(),
            priority: 0,
            json_path: ".metadata.creationTimestamp".into(),
        }]);
    };
    let mut columns = Vec::with_capacity(declared.len());
    for (index, column) in declared.iter().enumerate() {
        let path = format!("{path}.additionalPrinterColumns[{index}]");
        let need = |field: &str| {
            text(column, &format!("/{field}"))
                .ok_or_else(|| problem(&format!("{path}.{field}"), "Required value"))
        };
        let json_path = need("jsonPath")?;
        crate::json_path::JsonPath::parse(json_path).map_err(|message| {
            problem(&format!("{path}.jsonPath"), format!("Invalid value: \"{json_path}\": {message}"))
        })?;
        columns.push(Column {
            name: need("name")?.into(),
            kind: need("type")?.into(),
            format: text(column, "/format").unwrap_or_default().into(),
            description: text(column, "/description").unwrap_or_default().into(),
            priority: column["priority"].as_i64().unwrap_or(0),
            json_path: json_path.into(),
        });
    }
    Ok(columns)
}
