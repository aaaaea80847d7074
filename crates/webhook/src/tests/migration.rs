//! The migration on the embedded API server. It has no definition that stores the older version, so for the second phase a
//! layer in front of it keeps `status.storedVersions` as a real one does.

use std::collections::BTreeSet;
use std::sync::Mutex;

use hutch_api::annotation::{MIGRATION_SHADOW, MIGRATION_SOURCE, STORAGE_MIGRATED_AT};
use kube::ResourceExt;
use kube::api::{ApiResource, DynamicObject, PostParams};

use super::*;
use crate::{Error, Migration};

const OLDER: &str = "extensions.agents.x-k8s.io/v1alpha1";
const NEWER: &str = "extensions.agents.x-k8s.io/v1beta1";

fn api(client: &Client, version: &str, kind: &str, namespace: &str) -> Api<DynamicObject> {
    let (group, version) = version.split_once('/').expect("a group and a version");
    let plural = if kind == "Sandbox" { "sandboxes".to_owned() } else { format!("{}s", kind.to_lowercase()) };
    let resource = ApiResource {
        group: group.into(),
        version: version.into(),
        api_version: format!("{group}/{version}"),
        kind: kind.into(),
        plural,
    };
    Api::namespaced_with(client.clone(), namespace, &resource)
}

async fn create(client: &Client, version: &str, kind: &str, place: &str, rest: Value) -> DynamicObject {
    let (namespace, name) = place.split_once('/').expect("a namespace and a name");
    let mut object =
        json!({"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": namespace}});
    for (key, value) in rest.as_object().expect("an object") {
        object[key] = value.clone();
    }
    let object = serde_json::from_value(object).expect("an object");
    api(client, version, kind, namespace).create(&PostParams::default(), &object).await.expect(place)
}

/// A claim of the older version; `bound` is the Sandbox that it has.
async fn claim(client: &Client, place: &str, template: &str, warmpool: Option<&str>, bound: Option<&str>) {
    let mut spec = json!({"sandboxTemplateRef": {"name": template}});
    if let Some(warmpool) = warmpool {
        spec["warmpool"] = warmpool.into();
    }
    let claim = create(client, OLDER, "SandboxClaim", place, json!({ "spec": spec })).await;
    if let Some(bound) = bound {
        let patch = json!({"status": {"sandbox": {"name": bound}}});
        let (namespace, name) = place.split_once('/').expect("a place");
        api(client, OLDER, "SandboxClaim", namespace)
            .patch_status(name, &Default::default(), &kube::api::Patch::Merge(patch))
            .await
            .unwrap_or_else(|error| panic!("{}: {error}", claim.name_any()));
    }
}

async fn pools(client: &Client, namespace: &str) -> Vec<DynamicObject> {
    api(client, NEWER, "SandboxWarmPool", namespace).list(&Default::default()).await.expect("pools").items
}

fn migration(client: &Client) -> Migration {
    Migration { client: client.clone(), namespace: None, dry_run: false }
}

#[derive(Clone, Copy)]
enum Phase {
    Bootstrap,
    Rewrite,
}

async fn run(migration: &Migration, phase: Phase) -> Result<Vec<String>, Error> {
    let mut lines = Vec::new();
    let mut say = |line: String| lines.push(line);
    match phase {
        Phase::Bootstrap => migration.bootstrap(&mut say).await?,
        Phase::Rewrite => migration.rewrite(&mut say).await?,
    }
    Ok(lines)
}

async fn namespace(client: &Client, name: &str) {
    let object = serde_json::from_value(json!({"metadata": {"name": name}})).expect("a namespace");
    let api: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(client.clone());
    api.create(&PostParams::default(), &object).await.expect("a namespace");
}

#[tokio::test]
async fn the_first_phase_makes_the_pools_that_cold_claims_will_name() {
    let server = api_server().await;
    let client = client(&server);
    namespace(&client, "other").await;
    for (place, template, warmpool, bound) in [
        ("default/cold", "python", None, Some("cold")),
        ("default/waiting", "python", Some("default"), None),
        ("default/none", "node", Some("none"), Some("none")),
        // These have their pool in them.
        ("default/specific", "go", Some("gophers"), Some("specific")),
        ("default/warm", "ruby", Some("default"), Some("rubies-x7k2p")),
        ("other/cold", "python", None, Some("cold")),
    ] {
        claim(&client, place, template, warmpool, bound).await;
    }
    create(&client, NEWER, "SandboxClaim", "default/new", json!({"spec": {"warmPoolRef": {"name": "p"}}}))
        .await;

    let dry = Migration { dry_run: true, ..migration(&client) };
    let revision = server.revision();
    let lines = run(&dry, Phase::Bootstrap).await.expect("a dry run");
    assert_eq!(server.revision(), revision, "a dry run writes nothing");
    assert_eq!(
        lines,
        [
            "SandboxWarmPool default/shadow-pool-node would be made: 1 claim names template node alone",
            "SandboxWarmPool default/shadow-pool-python would be made: 2 claims name template python alone",
            "SandboxWarmPool other/shadow-pool-python would be made: 1 claim names template python alone",
        ]
    );

    let alone = Migration { namespace: Some("other".into()), ..migration(&client) };
    run(&alone, Phase::Bootstrap).await.expect("one namespace");
    assert!(pools(&client, "default").await.is_empty() && pools(&client, "other").await.len() == 1);

    run(&migration(&client), Phase::Bootstrap).await.expect("all");
    let made = pools(&client, "default").await;
    let names: Vec<_> = made.iter().map(ResourceExt::name_any).collect();
    assert_eq!(names, ["shadow-pool-node", "shadow-pool-python"]);
    let python = &made[1];
    assert_eq!(python.data["spec"]["replicas"], 0);
    assert_eq!(python.data["spec"]["sandboxTemplateRef"]["name"], "python");
    assert_eq!(python.annotations()[MIGRATION_SHADOW], "true");
    assert_eq!(python.annotations()[MIGRATION_SOURCE], "python");
    // What the claims have become names what was made.
    let cold = api(&client, NEWER, "SandboxClaim", "default").get("cold").await.expect("a claim");
    assert_eq!(cold.data["spec"]["warmPoolRef"]["name"], "shadow-pool-python");

    let revision = server.revision();
    let lines = run(&migration(&client), Phase::Bootstrap).await.expect("again");
    assert_eq!(server.revision(), revision, "the second time nothing is written");
    assert!(lines.iter().all(|line| line.ends_with(" is there")) && lines.len() == 3, "{lines:?}");
}

#[tokio::test]
async fn pool_of_another_owner_is_left_alone_and_reported() {
    let server = api_server().await;
    let client = client(&server);
    claim(&client, "default/a", "python", None, None).await;
    claim(&client, "default/b", "node", None, None).await;
    for (name, template) in [("default/shadow-pool-python", "other"), ("default/shadow-pool-node", "node")] {
        let spec = json!({"replicas": 3, "sandboxTemplateRef": {"name": template}});
        create(&client, OLDER, "SandboxWarmPool", name, json!({ "spec": spec })).await;
    }
    let revision = server.revision();
    let lines = run(&migration(&client), Phase::Bootstrap).await.expect("a run");
    assert_eq!(server.revision(), revision);
    assert!(
        lines[0].ends_with("shadow-pool-node is there and is no pool of a migration: left alone"),
        "{lines:?}"
    );
    assert!(lines[1].contains("warning: it makes Sandboxes of template other"), "{lines:?}");
}

#[tokio::test]
async fn what_cannot_be_migrated_is_named_and_nothing_is_made() {
    let server = api_server().await;
    let client = client(&server);
    let long = "t".repeat(52);
    claim(&client, "default/good", "python", None, None).await;
    claim(&client, "default/long", &long, None, None).await;
    let error = run(&migration(&client), Phase::Bootstrap).await.expect_err("a name that is too long");
    let text = error.to_string();
    let start =
        format!("1 problem:\n  SandboxTemplate default/{long}: shadow-pool-{long} would be longer than 63");
    assert!(matches!(error, Error::Problems(_)) && text.starts_with(&start), "{text}");
    assert!(text.contains("at most 51"), "{text}");
    assert!(pools(&client, "default").await.is_empty());

    api(&client, OLDER, "SandboxClaim", "default").delete("long", &Default::default()).await.expect("gone");
    run(&migration(&client), Phase::Bootstrap).await.expect("the problem is solved");
    assert_eq!(pools(&client, "default").await.len(), 1);

    let typo = Migration { namespace: Some("defualt".into()), ..migration(&client) };
    for phase in [Phase::Bootstrap, Phase::Rewrite] {
        let error = run(&typo, phase).await.expect_err("no such namespace");
        assert_eq!(error.to_string(), "--namespace: there is no namespace \"defualt\"");
    }
}

#[tokio::test]
async fn a_cluster_without_the_kinds_needs_no_first_phase_and_cannot_have_a_second() {
    let server = api_server().await;
    let empty =
        refusing(&server, StatusCode::NOT_FOUND, |request| request.uri().path().contains("agents.x-k8s.io"));
    let lines = run(&migration(&empty), Phase::Bootstrap).await.expect("nothing to prepare");
    assert_eq!(lines, [format!("{OLDER} has no SandboxClaim here: nothing to prepare")]);
    let error = run(&migration(&empty), Phase::Rewrite).await.expect_err("nothing to rewrite");
    assert!(error.to_string().contains("is this the right cluster?"), "{error}");
}

/// Changes of definitions, beside those of the embedded server.
#[derive(Default)]
struct Changes {
    /// Definitions of which something is stored in the older version.
    older: BTreeSet<String>,
    /// Definitions whose storage version is still the older one.
    storing_older: BTreeSet<String>,
    /// Objects whose writes fail that often with that status.
    failing: Vec<(String, usize, StatusCode)>,
}

/// A client whose requests about definitions are recorded.
fn upgraded(server: &ApiServer, changes: &Arc<Mutex<Changes>>) -> Client {
    let (app, changes): (Router, _) = (server.router_as(Identity::admin()), changes.clone());
    let app = app.layer(axum::middleware::from_fn(move |request: Request<Body>, next: Next| {
        let changes = changes.clone();
        async move { keep(&changes, request, next).await }
    }));
    hutch_serve::memory::client(app, "default")
}

async fn keep(changes: &Mutex<Changes>, request: Request<Body>, next: Next) -> axum::response::Response {
    let path = request.uri().path().to_owned();
    if request.method() == http::Method::PATCH
        && let Some(failing) = changes
            .lock()
            .unwrap()
            .failing
            .iter_mut()
            .find(|(end, left, _)| path.ends_with(end.as_str()) && *left > 0)
    {
        failing.1 -= 1;
        let body = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": failing.2.as_u16(),
            "reason": failing.2.canonical_reason().unwrap_or_default().replace(' ', ""), "message": "refused by the test"});
        return axum::response::IntoResponse::into_response((failing.2, axum::Json(body)));
    }
    let Some(name) = path.strip_prefix("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/") else {
        return next.run(request).await;
    };
    if let Some(name) = name.strip_suffix("/status") {
        let name = name.to_owned();
        let (parts, body) = request.into_parts();
        let bytes = body.collect().await.expect("a body").to_bytes();
        let patch: Value = serde_json::from_slice(&bytes).expect("a patch");
        assert_eq!(patch["status"], json!({"storedVersions": ["v1beta1"]}));
        let answer = next.run(Request::from_parts(parts, Body::from(bytes))).await;
        if answer.status().is_success() {
            changes.lock().unwrap().older.remove(&name);
        }
        return answer;
    }
    let (parts, body) = next.run(request).await.into_parts();
    let bytes = body.collect().await.expect("a body").to_bytes();
    let mut definition: Value = serde_json::from_slice(&bytes).expect("a definition");
    let changes = changes.lock().unwrap();
    if changes.older.contains(name) {
        definition["status"]["storedVersions"] = json!(["v1alpha1", "v1beta1"]);
    }
    if changes.storing_older.contains(name) {
        for version in definition["spec"]["versions"].as_array_mut().into_iter().flatten() {
            version["storage"] = (version["name"] == "v1alpha1").into();
        }
    }
    let mut answer = axum::response::IntoResponse::into_response(axum::Json(definition));
    *answer.status_mut() = parts.status;
    answer
}

fn all_older() -> Arc<Mutex<Changes>> {
    let older = crate::definitions::NAMES.map(str::to_owned).into();
    Arc::new(Mutex::new(Changes { older, ..Changes::default() }))
}

/// One object of each kind, the older version's where that is still written.
async fn one_of_each(client: &Client) -> Vec<(&'static str, &'static str, &'static str)> {
    let pod = json!({"spec": {"podTemplate": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    create(client, "agents.x-k8s.io/v1alpha1", "Sandbox", "default/s", pod.clone()).await;
    create(client, NEWER, "SandboxTemplate", "default/t", pod).await;
    claim(client, "default/c", "t", None, None).await;
    let pool = json!({"spec": {"replicas": 1, "sandboxTemplateRef": {"name": "t"}}});
    create(client, OLDER, "SandboxWarmPool", "default/p", pool).await;
    vec![
        ("agents.x-k8s.io/v1beta1", "Sandbox", "s"),
        (NEWER, "SandboxTemplate", "t"),
        (NEWER, "SandboxClaim", "c"),
        (NEWER, "SandboxWarmPool", "p"),
    ]
}

async fn marks(client: &Client, objects: &[(&str, &str, &str)]) -> Vec<Option<String>> {
    let mut marks = Vec::new();
    for (version, kind, name) in objects {
        let object = api(client, version, kind, "default").get(name).await.expect(name);
        marks.push(object.annotations().get(STORAGE_MIGRATED_AT).cloned());
    }
    marks
}

#[tokio::test]
async fn the_second_phase_writes_everything_again_and_says_so_to_the_definitions() {
    let (server, changes) = (api_server().await, all_older());
    let client = upgraded(&server, &changes);
    let objects = one_of_each(&client).await;

    let revision = server.revision();
    let lines =
        run(&Migration { dry_run: true, ..migration(&client) }, Phase::Rewrite).await.expect("a dry run");
    assert_eq!(server.revision(), revision, "a dry run writes nothing");
    assert_eq!(lines[0], "Sandbox: 1 objects would be written again");

    let other = Migration { namespace: Some("kube-system".into()), ..migration(&client) };
    run(&other, Phase::Rewrite).await.expect("another namespace");
    assert_eq!(marks(&client, &objects).await, vec![None; 4]);
    assert_eq!(changes.lock().unwrap().older.len(), 4, "a part of the objects proves nothing");

    let before = jiff::Timestamp::now();
    run(&migration(&client), Phase::Rewrite).await.expect("all");
    for mark in marks(&client, &objects).await {
        let at: jiff::Timestamp = mark.expect("a mark").parse().expect("a time");
        assert!((at.as_second() - before.as_second()).abs() < 3600, "{at}");
    }
    assert!(changes.lock().unwrap().older.is_empty(), "the definitions were changes");

    let revision = server.revision();
    let lines = run(&migration(&client), Phase::Rewrite).await.expect("again");
    assert_eq!(server.revision(), revision, "the second time nothing is written");
    assert!(
        lines.iter().all(|line| line.ends_with("everything is stored as v1beta1")) && lines.len() == 4,
        "{lines:?}"
    );
}

#[tokio::test]
async fn every_page_is_written() {
    let (server, changes) = (api_server().await, all_older());
    let client = upgraded(&server, &changes);
    let count = crate::migrate::PAGE as usize + 5;
    let pool = json!({"spec": {"replicas": 0, "sandboxTemplateRef": {"name": "t"}}});
    for number in 0..count {
        create(&client, NEWER, "SandboxWarmPool", &format!("default/p{number}"), pool.clone()).await;
    }
    let lines = run(&migration(&client), Phase::Rewrite).await.expect("all");
    assert!(
        lines.contains(&format!("SandboxWarmPool: {count} of {count} objects written again")),
        "{lines:?}"
    );
    assert!(
        pools(&client, "default")
            .await
            .iter()
            .all(|pool| pool.annotations().contains_key(STORAGE_MIGRATED_AT))
    );
}

#[tokio::test]
async fn an_object_that_cannot_be_written_is_named_and_its_definition_still_says_older() {
    let (server, changes) = (api_server().await, all_older());
    let client = upgraded(&server, &changes);
    let objects = one_of_each(&client).await;
    changes.lock().unwrap().failing = vec![
        ("/sandboxes/s".into(), usize::MAX, StatusCode::UNPROCESSABLE_ENTITY),
        // In one's way for a moment, and gone meanwhile: neither is a problem.
        ("/sandboxclaims/c".into(), 2, StatusCode::CONFLICT),
        ("/sandboxtemplates/t".into(), 1, StatusCode::SERVICE_UNAVAILABLE),
        ("/sandboxwarmpools/p".into(), 1, StatusCode::NOT_FOUND),
    ];
    let error = run(&migration(&client), Phase::Rewrite).await.expect_err("one cannot be written");
    let Error::Problems(problems) = &error else { panic!("{error}") };
    assert_eq!(problems, &["writing Sandbox default/s: refused by the test"]);
    let marks = marks(&client, &objects).await;
    let written: Vec<_> = marks.iter().map(Option::is_some).collect();
    assert_eq!(written, [false, true, true, false], "the pool was not there when it was to be written");
    assert_eq!(changes.lock().unwrap().older.iter().collect::<Vec<_>>(), ["sandboxes.agents.x-k8s.io"]);

    changes.lock().unwrap().failing.clear();
    run(&migration(&client), Phase::Rewrite).await.expect("the problem is solved");
    assert!(changes.lock().unwrap().older.is_empty());
}

#[tokio::test]
async fn the_second_phase_waits_for_the_new_definitions() {
    let (server, changes) = (api_server().await, all_older());
    changes.lock().unwrap().storing_older.insert("sandboxclaims.extensions.agents.x-k8s.io".into());
    let client = upgraded(&server, &changes);
    one_of_each(&client).await;
    let revision = server.revision();
    let error = run(&migration(&client), Phase::Rewrite).await.expect_err("too early");
    assert_eq!(
        error.to_string(),
        "CustomResourceDefinition sandboxclaims.extensions.agents.x-k8s.io stores v1alpha1, not v1beta1: \
         apply the new definitions first"
    );
    assert_eq!(server.revision(), revision);
}

#[tokio::test]
async fn definition_that_changes_meanwhile_is_not_updated() {
    let (server, changes) = (api_server().await, all_older());
    let client = upgraded(&server, &changes);
    one_of_each(&client).await;
    changes.lock().unwrap().failing =
        vec![("sandboxwarmpools.extensions.agents.x-k8s.io/status".into(), 1, StatusCode::CONFLICT)];
    let error = run(&migration(&client), Phase::Rewrite).await.expect_err("changed meanwhile");
    assert!(error.to_string().ends_with("was changed meanwhile: run it again"), "{error}");
    assert_eq!(changes.lock().unwrap().older.len(), 1);
}
