//! Discovery of groups, versions and resources, in both forms: the old lists and aggregated discovery.

use serde_json::{Value, json};

use crate::kinds::{Kind, Subresource, api_version, version_rank};

/// The form in which a client wants `/api` and `/apis`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// `APIVersions` and `APIGroupList`.
    Plain,
    /// `APIGroupDiscoveryList` of this version of `apidiscovery.k8s.io`: `v2` or `v2beta1`.
    Aggregated(&'static str),
}

impl Form {
    /// The first known form of an `Accept` header; plain without one.
    pub(crate) fn from_accept(accept: &str) -> Form {
        for range in accept.split(',') {
            let parameter = |name: &str| {
                range
                    .split(';')
                    .skip(1)
                    .find_map(|p| p.trim().strip_prefix(name)?.strip_prefix('='))
                    .map(str::trim)
            };
            let aggregated = parameter("as") == Some("APIGroupDiscoveryList")
                && parameter("g") == Some("apidiscovery.k8s.io");
            match (aggregated, parameter("v")) {
                (true, Some("v2")) => return Form::Aggregated("v2"),
                (true, Some("v2beta1")) => return Form::Aggregated("v2beta1"),
                // Another version of it: the client names what else it would take.
                (true, _) => {}
                (false, _) if parameter("as").is_none() => return Form::Plain,
                (false, _) => {}
            }
        }
        Form::Plain
    }

    /// The `Content-Type` of an answer in this form.
    pub(crate) fn content_type(self) -> String {
        match self {
            Form::Plain => "application/json".into(),
            Form::Aggregated(version) => {
                format!("application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList")
            }
        }
    }
}

/// The answer to `/api`. `address` is host and port under which the client reaches the server.
pub(crate) fn api<'a>(kinds: impl IntoIterator<Item = &'a Kind>, form: Form, address: &str) -> Value {
    match form {
        Form::Plain => json!({
            "kind": "APIVersions",
            "versions": ["v1"],
            "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
        }),
        Form::Aggregated(version) => aggregated(&select(kinds, |k| k.group.is_empty()), version),
    }
}

/// The answer to `/apis`.
pub(crate) fn apis<'a>(kinds: impl IntoIterator<Item = &'a Kind>, form: Form) -> Value {
    let kinds = select(kinds, |k| !k.group.is_empty());
    match form {
        Form::Plain => {
            let groups: Vec<_> = groups(&kinds).into_iter().map(|group| api_group(&kinds, group)).collect();
            json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
        }
        Form::Aggregated(version) => aggregated(&kinds, version),
    }
}

/// The answer to `/apis/GROUP`; `None` if nothing is served in that group.
pub(crate) fn group<'a>(kinds: impl IntoIterator<Item = &'a Kind>, group: &str) -> Option<Value> {
    let kinds = select(kinds, |k| k.group == group && !group.is_empty());
    if kinds.is_empty() {
        return None;
    }
    let mut answer = api_group(&kinds, group);
    answer["kind"] = "APIGroup".into();
    answer["apiVersion"] = "v1".into();
    Some(answer)
}

/// The answer to `/api/v1` (group is empty) and `/apis/GROUP/VERSION`; `None` if nothing is served there.
pub(crate) fn resources<'a>(
    kinds: impl IntoIterator<Item = &'a Kind>,
    group: &str,
    version: &str,
) -> Option<Value> {
    let mut kinds = select(kinds, |k| k.group == group && k.version == version);
    if kinds.is_empty() {
        return None;
    }
    kinds.sort_by(|a, b| a.plural.cmp(&b.plural));
    let resources: Vec<_> = kinds.into_iter().flat_map(api_resources).collect();
    Some(json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": api_version(group, version),
        "resources": resources,
    }))
}

fn select<'a>(kinds: impl IntoIterator<Item = &'a Kind>, wanted: impl Fn(&Kind) -> bool) -> Vec<&'a Kind> {
    kinds.into_iter().filter(|kind| wanted(kind)).collect()
}

/// Groups in the order in which they first occur.
fn groups<'a>(kinds: &[&'a Kind]) -> Vec<&'a str> {
    let mut groups: Vec<&str> = Vec::new();
    for kind in kinds {
        if !groups.contains(&kind.group.as_str()) {
            groups.push(&kind.group);
        }
    }
    groups
}

/// Versions of a group, best first.
fn versions<'a>(kinds: &[&'a Kind], group: &str) -> Vec<&'a str> {
    let mut versions: Vec<&str> =
        kinds.iter().filter(|k| k.group == group).map(|k| k.version.as_str()).collect();
    versions.sort_by_key(|v| version_rank(v));
    versions.dedup();
    versions
}

fn api_group(kinds: &[&Kind], group: &str) -> Value {
    let versions: Vec<_> = versions(kinds, group)
        .into_iter()
        .map(|version| json!({"groupVersion": api_version(group, version), "version": version}))
        .collect();
    json!({"name": group, "preferredVersion": versions.first(), "versions": versions})
}

fn api_resources(kind: &Kind) -> Vec<Value> {
    let mut resource = json!({
        "name": kind.plural,
        "singularName": kind.singular,
        "namespaced": kind.namespaced,
        "kind": kind.kind,
        "verbs": kind.verbs,
    });
    add_names(&mut resource, kind);
    let below = kind.subresources.iter().map(|sub| {
        let mut entry = json!({
            "name": format!("{}/{}", kind.plural, sub.name),
            "singularName": "",
            "namespaced": kind.namespaced,
            "kind": sub.body.2,
            "verbs": sub.verbs,
        });
        if (&sub.body.0, &sub.body.1) != (&kind.group, &kind.version) {
            entry["group"] = sub.body.0.clone().into();
            entry["version"] = sub.body.1.clone().into();
        }
        entry
    });
    std::iter::once(resource).chain(below).collect()
}

fn add_names(resource: &mut Value, kind: &Kind) {
    if !kind.short_names.is_empty() {
        resource["shortNames"] = json!(kind.short_names);
    }
    if !kind.categories.is_empty() {
        resource["categories"] = json!(kind.categories);
    }
}

fn aggregated(kinds: &[&Kind], version: &str) -> Value {
    let items: Vec<_> = groups(kinds).into_iter().map(|group| aggregated_group(kinds, group)).collect();
    json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": format!("apidiscovery.k8s.io/{version}"),
        "metadata": {},
        "items": items,
    })
}

fn aggregated_group(kinds: &[&Kind], group: &str) -> Value {
    let versions: Vec<_> = versions(kinds, group)
        .into_iter()
        .map(|version| {
            let mut kinds: Vec<_> =
                kinds.iter().filter(|k| k.group == group && k.version == version).collect();
            kinds.sort_by(|a, b| a.plural.cmp(&b.plural));
            let resources: Vec<_> = kinds.into_iter().map(|kind| aggregated_resource(kind)).collect();
            json!({"version": version, "resources": resources, "freshness": "Current"})
        })
        .collect();
    let metadata = if group.is_empty() { json!({}) } else { json!({"name": group}) };
    json!({"metadata": metadata, "versions": versions})
}

fn aggregated_resource(kind: &Kind) -> Value {
    let mut resource = json!({
        "resource": kind.plural,
        "responseKind": {"group": kind.group, "version": kind.version, "kind": kind.kind},
        "scope": if kind.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": kind.singular,
        "verbs": kind.verbs,
    });
    add_names(&mut resource, kind);
    if !kind.subresources.is_empty() {
        let below = |sub: &Subresource| {
            let (group, version, kind) = &sub.body;
            json!({
                "subresource": sub.name,
                "responseKind": {"group": group, "version": version, "kind": kind},
                "verbs": sub.verbs,
            })
        };
        resource["subresources"] = kind.subresources.iter().map(below).collect();
    }
    resource
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::builtin;

    #[test]
    fn accept_headers_choose_the_form() {
        let v2 = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
        let beta = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";
        let cases = [
            (format!("{v2},application/json"), Form::Aggregated("v2")),
            (format!("{beta}, {v2}, application/json"), Form::Aggregated("v2beta1")),
            (v2.replace("v=v2", "v=v9") + ",application/json", Form::Plain),
            ("application/json, */*".into(), Form::Plain),
            (String::new(), Form::Plain),
            (v2.into(), Form::Aggregated("v2")),
        ];
        for (accept, wanted) in cases {
            assert_eq!(Form::from_accept(&accept), wanted, "{accept}");
        }
        assert_eq!(Form::Aggregated("v2").content_type(), v2);
    }

    fn custom() -> Vec<Kind> {
        let version = |name: &str, storage: bool| {
            json!({"name": name, "served": true, "storage": storage, "schema": {"openAPIV3Schema": {"type": "object"}},
                "subresources": {"status": {}, "scale": {"specReplicasPath": ".a", "statusReplicasPath": ".b"}}})
        };
        let crd = json!({"metadata": {"name": "boxes.example.org"}, "spec": {"group": "example.org", "scope": "Namespaced",
            "names": {"kind": "Box", "plural": "boxes", "singular": "box", "shortNames": ["bx"]},
            "versions": [version("v1alpha1", false), version("v1beta1", true)]}});
        Kind::from_crd(&crd).expect("kinds")
    }

    #[test]
    fn plain_discovery_lists_versions_and_resources() {
        let kinds: Vec<_> = builtin().into_iter().chain(custom()).collect();
        let group = group(&kinds, "example.org").expect("a group");
        assert_eq!(group["preferredVersion"]["groupVersion"], "example.org/v1beta1");
        assert_eq!(group["versions"][1]["version"], "v1alpha1");
        assert_eq!(super::group(&kinds, ""), None);
        assert_eq!(super::group(&kinds, "nowhere.org"), None);

        let list = resources(&kinds, "example.org", "v1beta1").expect("resources");
        let names: Vec<_> = list["resources"].as_array().into_iter().flatten().map(|r| &r["name"]).collect();
        assert_eq!(names, ["boxes", "boxes/scale", "boxes/status"]);
        assert_eq!(list["resources"][0]["shortNames"], json!(["bx"]));
        assert_eq!(list["resources"][1]["group"], "autoscaling");
        assert_eq!(list["resources"][2].get("group"), None);
        assert_eq!(resources(&kinds, "", "v2"), None);

        let apis = apis(&kinds, Form::Plain);
        assert_eq!(apis["groups"].as_array().and_then(|g| g.last()).expect("a group")["name"], "example.org");
        assert_eq!(api(&kinds, Form::Plain, "h:1")["versions"], json!(["v1"]));
    }

    #[test]
    fn aggregated_discovery_lists_everything_at_once() {
        let kinds: Vec<_> = builtin().into_iter().chain(custom()).collect();
        let core = api(&kinds, Form::Aggregated("v2"), "");
        assert_eq!(core["items"].as_array().map(Vec::len), Some(1));
        let resources = core["items"][0]["versions"][0]["resources"].as_array().expect("resources");
        let pods = resources.iter().find(|r| r["resource"] == "pods").expect("pods");
        assert_eq!((&pods["shortNames"], &pods["categories"]), (&json!(["po"]), &json!(["all"])));
        let exec = pods["subresources"].as_array().into_iter().flatten().find(|s| s["subresource"] == "exec");
        assert_eq!(exec.expect("exec")["responseKind"]["kind"], "PodExecOptions");

        let apis = apis(&kinds, Form::Aggregated("v2beta1"));
        assert_eq!(apis["apiVersion"], "apidiscovery.k8s.io/v2beta1");
        let own = apis["items"].as_array().and_then(|i| i.last()).expect("a group");
        assert_eq!(own["metadata"]["name"], "example.org");
        assert_eq!(own["versions"][0]["version"], "v1beta1");
        assert_eq!(own["versions"][0]["resources"][0]["scope"], "Namespaced");
    }
}
