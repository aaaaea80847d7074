//! Kinds as data: what the API server knows about each kind it serves.
//!
//! The built-in kinds (a table, [`builtin`]) and the kinds of a CustomResourceDefinition ([`Kind::from_crd`])
//! give the same struct, so no handler asks which of the two it has before it.

mod builtin;
mod crd;
mod definitions;
mod event;
mod fields;
mod shape;
mod strict;

use std::sync::Arc;

use serde_json::Value;

pub(crate) use crd::CrdProblem;
pub(crate) use definitions::definition;
pub(crate) use definitions::{OBJECT_META, REFERENCE};
pub(crate) use event::{core_to_events, events_to_core};
pub(crate) use fields::type_name;
pub(crate) use fields::{Mistyped, check, prune};
pub(crate) use shape::{Field, ListType, Shape};
pub(crate) use strict::problems;

/// API group of the policies of the network.
pub(crate) const POLICIES: &str = "policy.hutch.dev";

/// One kind in one version, as the API server serves it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Kind {
    /// API group; empty for the core group.
    pub group: String,
    /// The version of this entry, such as `v1beta1`.
    pub version: String,
    /// Such as `Pod`.
    pub kind: String,
    /// Such as `PodList`.
    pub list_kind: String,
    /// The resource's name in paths, such as `pods`.
    pub plural: String,
    /// Such as `pod`.
    pub singular: String,
    /// Such as `po`.
    pub short_names: Vec<String>,
    /// Such as `all`.
    pub categories: Vec<String>,
    /// True if objects live in namespaces.
    pub namespaced: bool,
    /// The verbs of the resource itself, as discovery names them.
    pub verbs: &'static [&'static str],
    /// Subresources: `status`, `scale`, `log` and so on.
    pub subresources: Vec<Subresource>,
    /// Printer columns of this version (custom kinds only; those of built-in kinds are code in `table`).
    pub columns: Vec<Column>,
    /// The structural schema (`openAPIV3Schema`) of a custom kind; `None` for built-in kinds, which are open to
    /// defaulting and validation by schema. See [`Kind::shape`] for what merges and field checks use.
    pub schema: Option<Arc<Value>>,
    /// Name of the OpenAPI definition of a built-in kind, such as `io.k8s.api.core.v1.Pod`.
    pub definition: Option<String>,
    /// All served versions of the kind, best first.
    pub served_versions: Vec<String>,
    /// The version in which objects are stored.
    pub storage_version: String,
    /// The text of the `Warning` header that every request to this version gets.
    pub deprecation_warning: Option<String>,
    /// True if `/status` exists: writes to the object then keep `status`, and writes to `/status` change only that.
    pub has_status: bool,
    /// Paths of the replica counts, if `/scale` exists.
    pub scale: Option<Scale>,
    /// Dotted paths by which a custom kind can be selected besides name and namespace, such as `spec.color`.
    pub selectable_fields: Vec<String>,
    /// Another (group, plural) whose stored objects this kind shows: `events.k8s.io` shows the core group's.
    pub view_of: Option<(String, String)>,
    /// Revision of the definition of a custom kind.
    pub defined: u64,
}

/// Something below an object's path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Subresource {
    /// Its last path segment.
    pub name: String,
    /// Group, version and kind of its body.
    pub body: (String, String, String),
    /// The verbs that it answers.
    pub verbs: Vec<&'static str>,
}

/// One printer column of a custom kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Column {
    /// The heading, before kubectl makes it upper case.
    pub name: String,
    /// `string`, `integer`, `number`, `boolean` or `date`.
    pub kind: String,
    /// OpenAPI format, often empty.
    pub format: String,
    /// Shown by `kubectl explain`-like clients only.
    pub description: String,
    /// 0 is always shown, more only in wide output.
    pub priority: i64,
    /// A JSONPath such as `.status.conditions[?(@.type=='Ready')].status`.
    pub json_path: String,
}

/// Paths of the numbers of `/scale`, such as `.spec.replicas`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Scale {
    /// Wanted replicas.
    pub spec_replicas: String,
    /// Observed replicas.
    pub status_replicas: String,
    /// The label selector in text form, if the kind has one.
    pub label_selector: Option<String>,
}

/// Verbs of a stored kind.
pub(crate) const STORED_VERBS: &[&str] =
    &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
/// Verbs of a kind that only answers a question.
pub(crate) const REVIEW_VERBS: &[&str] = &["create"];

impl Kind {
    /// `v1` or `apps/v1`.
    pub(crate) fn api_version(&self) -> String {
        api_version(&self.group, &self.version)
    }

    /// `pods` or `deployments.apps`: the name in messages and of CustomResourceDefinitions.
    pub(crate) fn group_resource(&self) -> String {
        if self.group.is_empty() { self.plural.clone() } else { format!("{}.{}", self.plural, self.group) }
    }

    /// Returns true if the kind comes from a CustomResourceDefinition.
    pub(crate) fn is_custom(&self) -> bool {
        self.definition.is_none()
    }

    /// Returns true for a review: its objects are never stored.
    pub(crate) fn is_review(&self) -> bool {
        self.verbs == REVIEW_VERBS
    }

    /// The subresource of that name.
    pub(crate) fn subresource(&self, name: &str) -> Option<&Subresource> {
        self.subresources.iter().find(|s| s.name == name)
    }

    /// The shape that merges and field checks follow: of a custom kind its own schema, of a built-in kind the published
    /// OpenAPI definition (with merge keys and list types). Open for a custom kind without a schema.
    pub(crate) fn shape(&self) -> Shape<'_> {
        match (&self.definition, &self.schema) {
            (Some(name), _) => Shape::builtin(name),
            (None, Some(schema)) => Shape::custom(schema),
            (None, None) => Shape::OPEN,
        }
    }

    /// One entry for each served version of a CustomResourceDefinition, best version first.
    pub(crate) fn from_crd(crd: &Value) -> Result<Vec<Kind>, CrdProblem> {
        crd::kinds(crd)
    }
}

/// The kinds that are always there.
pub(crate) fn builtin() -> Vec<Kind> {
    builtin::kinds()
}

/// `version` for the core group, else `group/version`.
pub(crate) fn api_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_string() } else { format!("{group}/{version}") }
}

/// Splits an `apiVersion` into group (empty for core) and version.
pub(crate) fn split_api_version(api_version: &str) -> (&str, &str) {
    api_version.split_once('/').unwrap_or(("", api_version))
}

/// Sorts versions as Kubernetes does, best first: `v2` before `v1` before `v1beta2` before `v1alpha1`, then others by name.
pub(crate) fn version_rank(version: &str) -> impl Ord + use<> {
    let parsed = parse_version(version);
    let rank = parsed.map_or((1u8, 0i64, 0i64, 0i64), |(major, level, minor)| (0, -level, -major, -minor));
    (rank, version.to_string())
}

/// (major, level, minor) where level is 2 for stable, 1 for beta, 0 for alpha.
fn parse_version(version: &str) -> Option<(i64, i64, i64)> {
    let rest = version.strip_prefix('v')?;
    let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (major, rest) = rest.split_at(digits);
    let major = major.parse().ok()?;
    if rest.is_empty() {
        return Some((major, 2, 0));
    }
    let (level, minor) = if let Some(m) = rest.strip_prefix("beta") {
        (1, m)
    } else if let Some(m) = rest.strip_prefix("alpha") {
        (0, m)
    } else {
        return None;
    };
    Some((major, level, minor.parse().ok()?))
}

#[cfg(test)]
mod tests;
