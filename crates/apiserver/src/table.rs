//! Objects as the rows of a table, as `kubectl get` requests them.
//!
//! Custom kinds are shown by the printer columns of their CustomResourceDefinition, built-in kinds as a real API server
//! shows them. Wide columns are always sent, with priority 1: the client hides them.

mod age;
mod builtin;
mod custom;
mod pod;
mod workload;

use std::str::FromStr;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::kinds::Kind;

/// Part of the object that each row carries: the `includeObject` parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Include {
    /// Nothing.
    None,
    /// `PartialObjectMetadata`, the default.
    Metadata,
    /// All of it.
    Object,
}

impl FromStr for Include {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "" | "Metadata" => Ok(Include::Metadata),
            "None" => Ok(Include::None),
            "Object" => Ok(Include::Object),
            other => Err(format!("unrecognized includeObject value: {other:?}")),
        }
    }
}

/// A table of these objects (`meta.k8s.io/v1`), without metadata of its own: the caller knows whether it stands for a
/// list, an object or an event of a watch.
pub(crate) fn render<'a>(
    kind: &Kind,
    objects: impl IntoIterator<Item = &'a Value>,
    include: Include,
    now: Timestamp,
) -> Value {
    let printer = Printer::of(kind);
    let rows: Vec<_> = objects
        .into_iter()
        .map(|object| {
            let mut row = json!({"cells": printer.cells(object, now)});
            row["object"] = match include {
                Include::None => Value::Null,
                Include::Metadata => partial(object),
                Include::Object => object.clone(),
            };
            if let Some(conditions) = conditions(kind, object) {
                row["conditions"] = conditions;
            }
            row
        })
        .collect();
    json!({
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {},
        "columnDefinitions": printer.columns(),
        "rows": rows,
    })
}

fn partial(object: &Value) -> Value {
    json!({
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": object["metadata"],
    })
}

/// Rows of ended Pods are marked, so that clients can grey them.
fn conditions(kind: &Kind, object: &Value) -> Option<Value> {
    if kind.kind != "Pod" || kind.is_custom() {
        return None;
    }
    let (reason, message) = match object.pointer("/status/phase").and_then(Value::as_str) {
        Some("Succeeded") => ("Succeeded", "The pod has completed successfully."),
        Some("Failed") => ("Failed", "The pod failed."),
        _ => return None,
    };
    Some(json!([{"type": "Completed", "status": "True", "reason": reason, "message": message}]))
}

/// The columns of a kind and how their cells are made.
enum Printer<'a> {
    Custom(custom::Columns<'a>),
    Builtin(&'static builtin::Columns),
}

impl<'a> Printer<'a> {
    fn of(kind: &'a Kind) -> Self {
        if kind.is_custom() {
            Printer::Custom(custom::Columns::of(kind))
        } else {
            Printer::Builtin(builtin::columns_of(kind))
        }
    }

    fn columns(&self) -> Vec<Value> {
        match self {
            Printer::Custom(columns) => columns.definitions(),
            Printer::Builtin(columns) => columns.definitions(),
        }
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        match self {
            Printer::Custom(columns) => columns.cells(object, now),
            Printer::Builtin(columns) => columns.cells(object, now),
        }
    }
}

#[cfg(test)]
mod tests;
