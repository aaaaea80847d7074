//! `deploy/`: that it is taken, that its roles are enough and no more, that its parts fit together.

pub(crate) mod confined;
pub(crate) mod manifests;
mod rules;
mod templates;
pub(crate) mod work;

use std::collections::{BTreeMap, BTreeSet};

use hutch_controller::Config;
use hutch_serve::Shutdown;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams};
use serde_json::{Value, json};

use self::confined::{Cluster, beside, until};
use self::manifests::{folder, objects, of_kind, read, text};
use self::rules::{granted, short};
use crate::harness::HUTCH;

const CONTROLLER: &str = "agent-sandbox-controller";
const EXTENSIONS: &str = "agent-sandbox-controller-extensions";
const ROUTER: &str = "sandbox-router";
/// Optional manifests.
const OPTIONAL: [&str; 6] = [
    "egress.yaml",
    "sandbox-sleep.yaml",
    "sandboxd/one-machine.yaml",
    "sandboxd/template.yaml",
    "sandboxd/template-with-token.yaml",
    SNAPSHOTS,
];

/// File of the optional role for the kinds that the embedded API server has, and a cluster only by choice.
const SNAPSHOTS: &str = "snapshots.yaml";

/// The kustomization, with that role.
fn with_snapshots() -> Vec<Value> {
    let mut objects = objects();
    objects.extend(read(&folder().join(SNAPSHOTS)));
    objects
}

/// Everything that can be applied.
fn with_optional() -> Vec<Value> {
    let mut objects = objects();
    objects.extend(OPTIONAL.iter().flat_map(|file| read(&folder().join(file))));
    objects
}

#[tokio::test]
async fn applying_every_object_twice_changes_nothing() {
    let cluster = Cluster::start().await;
    let mut objects = with_optional();
    // This server has that check by itself, and refuses `authorizer`. `gateway::credentials` applies it to Kubernetes.
    objects.retain(|object| object["kind"] != "ValidatingAdmissionPolicy");
    assert!(objects.len() > 20, "{}", objects.len());
    let mut revisions = Vec::new();
    for round in 0..2 {
        for object in &objects {
            let (version, kind, name) =
                (text(object, "/apiVersion"), text(object, "/kind"), text(object, "/metadata/name"));
            let (group, version) = version.split_once('/').unwrap_or(("", version));
            let resource = ApiResource::from_gvk_with_plural(
                &GroupVersionKind::gvk(group, version, kind),
                &plural(kind),
            );
            let api: Api<DynamicObject> = match object["metadata"]["namespace"].as_str() {
                Some(namespace) => Api::namespaced_with(cluster.admin.client.clone(), namespace, &resource),
                None if ["SandboxTemplate", "SandboxWarmPool"].contains(&kind) => {
                    Api::default_namespaced_with(cluster.admin.client.clone(), &resource)
                }
                None => Api::all_with(cluster.admin.client.clone(), &resource),
            };
            let params = PatchParams::apply("deploy-test").force();
            let applied = api.patch(name, &params, &Patch::Apply(object)).await;
            let applied = applied.unwrap_or_else(|error| panic!("round {round}: {kind} {name}: {error}"));
            revisions.push(applied.metadata.resource_version);
        }
    }
    let (first, second) = revisions.split_at(objects.len());
    assert_eq!(first, second);
}

fn plural(kind: &str) -> String {
    let lower = kind.to_lowercase();
    if lower.ends_with('y') { format!("{}ies", &lower[..lower.len() - 1]) } else { format!("{lower}s") }
}

#[test]
fn crds_are_the_published_ones() {
    let published: Vec<Value> =
        hutch_api::crds().iter().map(|text| serde_saphyr::from_str(text).expect("YAML")).collect();
    let objects = objects();
    assert_eq!(of_kind(&objects, "CustomResourceDefinition"), published.iter().collect::<Vec<_>>());
}

/// The rows `| account | where | resources | verbs | why |` of deploy/README.md as grants.
fn documented() -> BTreeMap<String, BTreeSet<String>> {
    let readme = std::fs::read_to_string(folder().join("README.md")).expect("deploy/README.md");
    let mut told: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in readme.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [account, place, resources, verbs, why] = cells.as_slice() else {
            panic!("not five cells: {line}")
        };
        assert!(why.len() > 10, "a reason is missing: {line}");
        let code =
            |text: &str| -> Vec<String> { text.split('`').skip(1).step_by(2).map(str::to_owned).collect() };
        let row = told.entry(code(account).remove(0)).or_default();
        for resource in code(resources) {
            row.extend(verbs.split(' ').map(|verb| format!("{place}: {resource} {verb}")));
        }
    }
    told
}

#[test]
fn roles_are_those_of_the_readme() {
    let objects = with_optional();
    let mut roles = BTreeMap::new();
    for account in of_kind(&objects, "ServiceAccount") {
        let name = text(account, "/metadata/name");
        let grants = granted(&objects, name, &[]);
        assert!(
            grants.iter().all(|grant| !grant.verb.contains('*') && !grant.resource.contains('*')),
            "{name}"
        );
        let rows = grants.iter().map(|grant| {
            let place = match (&grant.namespace, grant.names.as_slice()) {
                (None, []) => "everywhere".to_owned(),
                (Some(namespace), []) => format!("`{namespace}`"),
                (None, names) => format!("{} names", names.len()),
                (Some(_), names) => format!("`{}`", names.join("`, `")),
            };
            let resource = grant.resource.strip_prefix('/').unwrap_or(&grant.resource);
            format!("{place}: {resource} {}", grant.verb)
        });
        roles.insert(name.to_owned(), rows.collect::<BTreeSet<_>>());
    }
    assert_eq!(documented(), roles);
}

#[test]
fn router_may_write_only_with_an_optional_role() {
    let writes = |objects: &[Value]| -> BTreeSet<String> {
        let grants = short(&granted(objects, ROUTER, &[]));
        grants
            .into_iter()
            .filter(|grant| !["get", "list", "watch"].iter().any(|verb| grant.ends_with(verb)))
            .collect()
    };
    let asks = "authentication.k8s.io/tokenreviews create".to_owned();
    assert_eq!(writes(&objects()), BTreeSet::from([asks.clone()]));
    assert_eq!(writes(&with_optional()), BTreeSet::from([asks, "agents.x-k8s.io/sandboxes patch".into()]));
}

/// Why something is granted that [`work`] does not use.
fn reason(grant: &str) -> Option<&'static str> {
    match grant.split_once(' ')? {
        (resource, "update") if resource.ends_with("/finalizers") => {
            Some("an admission plugin requires it when an owner reference blocks the owner's deletion")
        }
        ("/persistentvolumeclaims", "delete") => Some("the same plugin requires it when a volume is adopted"),
        ("coordination.k8s.io/leases", _) => Some("the Lease is the program's, not the controllers'"),
        (_, "get") => Some("read again when a write shows that a watch is behind"),
        _ => None,
    }
}

#[tokio::test]
async fn controllers_and_webhook_need_exactly_their_roles() {
    let cluster = Cluster::start().await;
    let grants = granted(&with_snapshots(), CONTROLLER, &[]);
    let (client, asked) = cluster.confined(grants.clone());
    let controllers = controllers(client.clone(), Config::default());
    beside(controllers, async {
        work::on_sandboxes(&cluster.admin).await;
        work::on_extensions(&cluster.admin).await;
        work::on_snapshots(&cluster.admin).await;
        work::on_certificates(&cluster.admin, client).await;
    })
    .await;
    let asked = asked.lock().unwrap();
    assert!(asked.refused.is_empty(), "not granted: {:#?}", asked.refused);
    let unused: Vec<_> =
        short(&grants).difference(&asked.used).filter(|grant| reason(grant).is_none()).cloned().collect();
    assert!(unused.is_empty(), "granted for nothing: {unused:#?}");
}

#[tokio::test]
async fn controller_without_extensions_needs_only_the_first_role() {
    let cluster = Cluster::start().await;
    let (client, asked) = cluster.confined(granted(&with_snapshots(), CONTROLLER, &[EXTENSIONS]));
    let config = Config { extensions: false, ..Config::default() };
    beside(controllers(client, config), work::on_sandboxes(&cluster.admin)).await;
    assert!(asked.lock().unwrap().refused.is_empty(), "not granted: {:#?}", asked.lock().unwrap().refused);
}

#[tokio::test]
async fn access_without_a_grant_is_refused() {
    let cluster = Cluster::start().await;
    let mut grants = granted(&objects(), CONTROLLER, &[]);
    grants.retain(|grant| grant.short() != "/pods create");
    let (client, asked) = cluster.confined(grants);
    let spec = json!({"podTemplate": {"spec": {"containers": [{"name": "c", "image": "i"}]}}});
    beside(controllers(client, Config::default()), async {
        cluster.admin.create("agents.x-k8s.io/v1beta1", "Sandbox", "s", json!({ "spec": spec })).await;
        let refused = until(async || {
            asked
                .lock()
                .unwrap()
                .refused
                .iter()
                .any(|access| access.resource == "/pods" && access.verb == "create")
        });
        assert!(refused.await, "the authorizer lets everything through");
    })
    .await;
}

async fn controllers(client: kube::Client, config: Config) {
    hutch_controller::run(client, config, Shutdown::new()).await;
}

#[test]
fn programs_accept_the_flags_of_their_manifests() {
    let objects = objects();
    for deployment in deployments(&objects) {
        let args = deployment["spec"]["template"]["spec"]["containers"][0]["args"].as_array().expect("args");
        let args: Vec<&str> = args.iter().map(|arg| arg.as_str().expect("text")).collect();
        let run = |more: &[&str]| {
            let mut hutch = std::process::Command::new(HUTCH);
            hutch.args(&args).args(more).output().expect("hutch").status.success()
        };
        assert!(run(&["--version"]), "{args:?}");
        assert!(!run(&["--no-such-flag", "--version"]), "{args:?}");
    }
}

fn deployments(objects: &[Value]) -> Vec<&Value> {
    of_kind(objects, "Deployment")
}

#[test]
fn containers_have_the_least_privileges() {
    let objects = objects();
    assert_eq!(deployments(&objects).len(), 2);
    for deployment in deployments(&objects) {
        let (name, spec) = (text(deployment, "/metadata/name"), &deployment["spec"]["template"]["spec"]);
        assert_eq!(spec["securityContext"]["runAsNonRoot"], true, "{name}");
        assert!(spec["securityContext"]["runAsUser"].as_u64().is_some_and(|uid| uid > 0), "{name}");
        assert_eq!(spec["securityContext"]["seccompProfile"]["type"], "RuntimeDefault", "{name}");
        for shared in ["hostNetwork", "hostPID", "hostIPC"] {
            assert!(spec[shared].is_null(), "{name}: {shared}");
        }
        for container in spec["containers"].as_array().expect("containers") {
            let security = &container["securityContext"];
            assert_eq!(security["allowPrivilegeEscalation"], false, "{name}");
            assert_eq!(security["readOnlyRootFilesystem"], true, "{name}");
            assert_eq!(security["capabilities"], json!({"drop": ["ALL"]}), "{name}");
            assert!(container["resources"]["limits"]["memory"].is_string(), "{name}");
            let image = text(container, "/image");
            assert_eq!(image, concat!("localhost/hutch:", env!("CARGO_PKG_VERSION")), "{name}");
            let ports: Vec<&str> =
                container["ports"].as_array().expect("ports").iter().map(|p| text(p, "/name")).collect();
            for probe in ["livenessProbe", "readinessProbe"] {
                assert!(ports.contains(&text(&container[probe], "/httpGet/port")), "{name}: {probe}");
            }
        }
    }
}

#[test]
fn names_fit_together() {
    let objects = objects();
    let settings = hutch_webhook::Settings::default();
    let namespaces: Vec<&str> =
        of_kind(&objects, "Namespace").iter().map(|n| text(n, "/metadata/name")).collect();
    assert_eq!(namespaces, [settings.namespace.as_str()]);
    for object in &objects {
        let namespace = object["metadata"]["namespace"].as_str();
        assert!(namespace.is_none_or(|namespace| namespaces.contains(&namespace)), "{object}");
    }
    let accounts: Vec<&str> =
        of_kind(&objects, "ServiceAccount").iter().map(|a| text(a, "/metadata/name")).collect();
    for deployment in deployments(&objects) {
        let template = &deployment["spec"]["template"];
        assert_eq!(deployment["spec"]["selector"]["matchLabels"], template["metadata"]["labels"]);
        assert!(accounts.contains(&text(template, "/spec/serviceAccountName")));
    }
    for service in of_kind(&objects, "Service").into_iter().chain(of_kind(&objects, "PodDisruptionBudget")) {
        let spec = &service["spec"];
        let selector = if spec["selector"]["matchLabels"].is_null() {
            &spec["selector"]
        } else {
            &spec["selector"]["matchLabels"]
        };
        let deployment = deployments(&objects)
            .into_iter()
            .find(|deployment| deployment["spec"]["template"]["metadata"]["labels"] == *selector)
            .unwrap_or_else(|| panic!("no Pod is behind {service}"));
        let ports =
            deployment["spec"]["template"]["spec"]["containers"][0]["ports"].as_array().expect("ports");
        for port in spec["ports"].as_array().into_iter().flatten() {
            assert!(ports.iter().any(|known| known["name"] == port["targetPort"]), "{service}");
        }
    }
    let webhook = of_kind(&objects, "Service")
        .into_iter()
        .find(|s| s["metadata"]["name"] == settings.service_name.as_str());
    assert_eq!(webhook.expect("the webhook's Service")["spec"]["ports"][0]["port"], 443);
    for definition in of_kind(&objects, "CustomResourceDefinition") {
        let service = &definition["spec"]["conversion"]["webhook"]["clientConfig"]["service"];
        assert_eq!(text(service, "/name"), settings.service_name);
        assert_eq!(text(service, "/namespace"), settings.namespace);
    }
    let controller = deployments(&objects)
        .into_iter()
        .find(|d| d["metadata"]["name"] == CONTROLLER)
        .expect("a Deployment");
    let container = &controller["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(text(container, "/name"), CONTROLLER);
    let port = |name: &str| {
        let ports = container["ports"].as_array().expect("ports");
        ports.iter().find(|port| port["name"] == name).and_then(|port| port["containerPort"].as_u64())
    };
    assert_eq!(
        (port("metrics"), port("healthz"), port("webhook")),
        (Some(8080), Some(8081), Some(u64::from(settings.port)))
    );
    let mounts = container["volumeMounts"].as_array().expect("mounts");
    assert!(
        mounts.iter().any(|mount| settings.cert_dir.starts_with(text(mount, "/mountPath"))),
        "the certificates need a place that can be written"
    );
}
