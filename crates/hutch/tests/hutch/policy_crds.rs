//! The kinds of policies on a real Kubernetes: it takes their CRDs, with every rule in CEL, and judges and shows policies as
//! `hutch up` does.

#[path = "../../../policy/tests/judged/mod.rs"]
mod judged;

use std::path::Path;
use std::process::{Command, Output};

use hutch_testkit::cluster::{Cluster, Options};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};

use crate::harness::{Up, text};

const VERSION: &str = "policy.hutch.dev/v1alpha1";

/// Fields, and a part of their description.
const EXPLAINED: [(&str, &str); 3] = [
    ("sandboxpolicy.spec.egress.rules", "plaintext"),
    ("clustersandboxpolicy.spec.appliesTo", "namespaceSelector"),
    ("credentialprovider.spec", "serviceAccountToken"),
];

fn kubectl(cluster: &Cluster, arguments: &[&str]) -> Output {
    let mut command = Command::new("kubectl");
    command.arg("--kubeconfig").arg(cluster.kubeconfig()).args(arguments).output().expect("kubectl")
}

/// Sends a policy to be created, which a dry run does not keep.
async fn create(client: &Client, kind: &str, spec: &Value, dry_run: bool) -> Result<(), String> {
    let object = json!({"apiVersion": VERSION, "kind": kind, "metadata": {"name": "p"}, "spec": spec});
    let dry_run = if dry_run { "&dryRun=All" } else { "" };
    let request = http::Request::post(format!("{}?fieldValidation=Strict{dry_run}", collection(kind)))
        .header("content-type", "application/json")
        .body(object.to_string().into_bytes());
    let answer = client.request::<Value>(request.expect("a request")).await;
    answer.map(drop).map_err(|error| error.to_string())
}

async fn created(client: &Client, kind: &str, spec: &Value) -> Result<(), String> {
    create(client, kind, spec, true).await
}

fn collection(kind: &str) -> String {
    match kind {
        "SandboxPolicy" => format!("/apis/{VERSION}/namespaces/default/sandboxpolicies"),
        "CredentialProvider" => format!("/apis/{VERSION}/credentialproviders"),
        _ => format!("/apis/{VERSION}/clustersandboxpolicies"),
    }
}

/// Checks that a policy was taken if no part of a refusal is expected, and refused with one of these otherwise.
fn agrees<'a>(kind: &str, spec: &Value, judge: Result<(), String>, parts: impl Iterator<Item = &'a str>) {
    let parts: Vec<&str> = parts.collect();
    match judge {
        Ok(()) => assert!(parts.is_empty(), "{kind} {spec} is taken; expected: {parts:?}"),
        Err(said) => {
            assert!(
                parts.iter().any(|part| said.contains(part)),
                "{kind} {spec}: {said}; expected: {parts:?}"
            );
        }
    }
}

/// A large policy does not exceed the cost that Kubernetes permits at run time, and a name of it that is there twice is found.
async fn cost_is_permitted(client: &Client) {
    let name = |index: usize| format!("{index:03}-{}", "a".repeat(96));
    let rule = |index: usize| json!({"name": name(index), "hosts": ["a.example.com"], "http": [{"methods": ["GET"]}]});
    let mut rules: Vec<Value> = (0..256).map(rule).collect();
    let spec = |rules: &[Value]| json!({"egress": {"rules": rules}});
    for kind in ["ClusterSandboxPolicy", "SandboxPolicy"] {
        assert_eq!(created(client, kind, &spec(&rules)).await, Ok(()), "{kind}");
    }
    rules[255]["name"] = name(0).into();
    let said = created(client, "SandboxPolicy", &spec(&rules)).await.expect_err("a name is there twice");
    assert!(said.contains("every rule needs a name of its own"), "{said}");
}

/// The table of a policy with a value in every column.
async fn shows_columns(client: &Client) {
    let spec = json!({"mode": "Observe", "expires": "2099-01-31T12:00:00Z",
        "egress": {"rules": [{"name": "first", "any": true}, {"name": "second", "hosts": ["a.example.com"]}]}});
    for kind in ["ClusterSandboxPolicy", "SandboxPolicy"] {
        create(client, kind, &spec, false).await.expect(kind);
        let request = http::Request::get(format!("{}/p", collection(kind)))
            .header("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
            .body(Vec::new());
        let table: Value = client.request(request.expect("a request")).await.expect("a table");
        let shown = |column: &Value| {
            let word = |name: &str| column[name].as_str().unwrap_or_default().to_owned();
            assert_eq!(column["priority"], 0, "{column}");
            format!("{} {} {}", word("name"), word("type"), word("format")).trim_end().to_owned()
        };
        let columns: Vec<String> =
            table["columnDefinitions"].as_array().expect("columns").iter().map(shown).collect();
        assert_eq!(
            columns,
            ["Name string name", "Mode string", "First Rule string", "Expires string", "Age date"]
        );
        let described = |column: usize| &table["columnDefinitions"][column]["description"];
        assert_eq!(described(2), "Name of the first egress rule.");
        let cells = table["rows"][0]["cells"].as_array().expect("cells");
        assert_eq!(cells[..4], ["p", "Observe", "first", "2099-01-31T12:00:00Z"].map(Value::from), "{kind}");
        assert!(cells[4].as_str().is_some_and(|age| age.ends_with('s')), "{kind}: {cells:?}");
    }
}

#[tokio::test]
async fn kubernetes_takes_the_crds_and_judges_policies() {
    hutch_testkit::require!(kubernetes, kubectl);
    let options = Options { crds: None, controllers: false, node: false };
    let cluster = Cluster::start(options).await.expect("a cluster");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../policy");
    let applied = kubectl(&cluster, &["apply", "--server-side", "-k", &folder.display().to_string()]);
    assert!(applied.status.success(), "{}", text(&applied.stderr));
    let kinds = ["clustersandboxpolicies", "sandboxpolicies", "credentialproviders"];
    for kind in kinds {
        let name = format!("crd/{kind}.policy.hutch.dev");
        let served = kubectl(&cluster, &["wait", "--for=condition=Established", &name, "--timeout=60s"]);
        assert!(served.status.success(), "{}", text(&served.stderr));
    }
    let client = cluster.client("policies").await.expect("a client");
    for case in judged::cases() {
        for kind in case.kinds() {
            let judge = created(&client, kind, &case.spec).await;
            agrees(kind, &case.spec, judge, [case.crd.as_deref()].into_iter().flatten());
        }
    }
    cost_is_permitted(&client).await;
    for (path, described) in EXPLAINED {
        let output = kubectl(&cluster, &["explain", path]);
        assert!(text(&output.stdout).contains(described), "{path}: {output:?}");
    }
    shows_columns(&client).await;
}

#[tokio::test]
async fn hutch_up_judges_and_shows_policies_as_kubernetes() {
    hutch_testkit::require!(root, kubectl);
    let up = Up::start(&[]);
    let kubeconfig = Kubeconfig::read_from(up.kubeconfig()).expect("a kubeconfig");
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
    let client = Client::try_from(config.expect("a configuration")).expect("a client");
    for case in judged::cases() {
        for kind in case.kinds() {
            let judge = created(&client, kind, &case.spec).await;
            // It judges by both, in the words of one of them.
            agrees(
                kind,
                &case.spec,
                judge,
                [&case.types, &case.crd].into_iter().flatten().map(String::as_str),
            );
        }
    }
    cost_is_permitted(&client).await;
    shows_columns(&client).await;
    for (path, described) in EXPLAINED {
        let printed = up.ok(&format!("explain {path}"));
        assert!(printed.contains(described) && printed.contains("DESCRIPTION"), "{path}: {printed}");
    }
}
