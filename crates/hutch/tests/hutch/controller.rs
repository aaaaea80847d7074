//! `hutch controller` as a process of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Output};

use http::{Method, Version};
use hutch_api::Sandbox;
use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use opentelemetry_proto::tonic::trace::v1::Span;
use rustix::process::Signal;
use serde_json::json;

use crate::collector::{Collector, hex, texts};
use crate::harness::HUTCH;
use crate::replica::{self, Cluster, eventually};

const LEASE: &str = "a3317529.agent-sandbox.x-k8s.io";
const LEADS: &str = "this process leads";

fn hutch(words: &[&str]) -> Output {
    Command::new(HUTCH).arg("controller").args(words).output().expect("hutch starts")
}

#[test]
fn mistake_is_one_line_and_starts_nothing() {
    for (words, named) in [
        (&["--sandbox-concurrent-workers=0"][..], "--sandbox-concurrent-workers"),
        (&["-no-such-flag"], "--no-such-flag"),
        (&["--kubeconfig=/no/such/file"], "--kubeconfig=/no/such/file"),
        (&["--metrics-bind-address=nowhere"], "--metrics-bind-address"),
        (&["--webhook-namespace=No Name"], "--webhook-namespace"),
    ] {
        let output = hutch(words);
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{printed}");
        assert!(printed.contains(named) && printed.trim_end().lines().count() == 1, "{printed}");
    }
    for (words, printed) in [(["--version"], env!("CARGO_PKG_VERSION")), (["--help"], "--leader-elect")] {
        let output = hutch(&words);
        assert!(
            output.status.success() && String::from_utf8_lossy(&output.stdout).contains(printed),
            "{output:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn second_replica_leads_after_the_first_stops() {
    let cluster = Cluster::start().await;
    let mut first = cluster.replica(&["--zap-devel"], &[], LEADS).await;
    assert!(first.log().contains("warning: --zap-devel"), "{}", first.log());
    let mut second = cluster.replica(&[], &[], "waiting for the lease").await;
    let master = |replica: &replica::Replica| {
        let text = replica.get("metrics", "/metrics");
        let line =
            text.lines().find(|line| line.starts_with("leader_election_master_status{")).expect("a gauge");
        assert!(line.contains(LEASE), "{line}");
        line.ends_with(" 1")
    };
    assert!(master(&first) && !master(&second));
    assert_eq!(
        (first.get("probes", "/healthz"), second.get("probes", "/readyz")),
        ("ok".into(), "ok".into())
    );
    sandbox(&cluster, "a").await;

    first.signal(Signal::TERM);
    assert_eq!(first.ended().await, Some(0), "{}", first.log());
    second.says(LEADS).await;
    assert!(master(&second));
    sandbox(&cluster, "b").await;
    let lease: Lease = cluster.api().get(LEASE).await.expect("the lease");
    let spec = lease.spec.expect("a spec");
    assert_eq!((spec.lease_transitions, spec.lease_duration_seconds), (Some(1), Some(15)));

    second.signal(Signal::INT);
    assert_eq!(second.ended().await, Some(0), "{}", second.log());
    let lease: Lease = cluster.api().get(LEASE).await.expect("the lease");
    assert_eq!(lease.spec.expect("a spec").holder_identity.as_deref(), Some(""), "given back");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn conversion_webhook_runs_in_the_controller() {
    let cluster = Cluster::start().await;
    let folder = tempfile::tempdir().expect("tempdir");
    let folder = format!("--webhook-cert-dir={}", folder.path().display());
    let flags = ["--enable-webhook", "--webhook-port=0", "--webhook-namespace=default", &folder];
    let mut replica = cluster.replica(&flags, &[], LEADS).await;
    assert!(replica.log().contains("the conversion webhook listens"), "{}", replica.log());
    let secret: k8s_openapi::api::core::v1::Secret =
        cluster.api().get("agent-sandbox-webhook-certs").await.expect("its certificates");
    assert!(secret.data.expect("data").contains_key("ca.crt"));
    replica.signal(Signal::TERM);
    assert_eq!(replica.ended().await, Some(0), "{}", replica.log());
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replica_that_lost_its_lease_exits() {
    let cluster = Cluster::start().await;
    let mut replica = cluster.replica(&[], &[], LEADS).await;
    let theirs = json!({"spec": {"holderIdentity": "go-replica_1", "leaseDurationSeconds": 15}});
    let leases = cluster.api::<Lease>();
    leases.patch(LEASE, &PatchParams::default(), &Patch::Merge(theirs)).await.expect("taken");
    assert_eq!(replica.ended().await, Some(1));
    assert!(
        replica.log().contains("no longer the leader: go-replica_1 holds the lease"),
        "{}",
        replica.log()
    );
    let lease = leases.get(LEASE).await.expect("the lease").spec.expect("a spec");
    assert_eq!(lease.holder_identity.as_deref(), Some("go-replica_1"), "what is not ours is not given back");
    cluster.stop().await;
}

/// A Sandbox that the leader makes Ready.
async fn sandbox(cluster: &Cluster, name: &str) {
    let spec = json!({"podTemplate": {"spec": {"containers": [{"name": "c", "image": "hutch/host"}]}}});
    cluster.create::<Sandbox>(name, json!({"spec": spec})).await;
    eventually("the sandbox is Ready", || async {
        let sandbox: Sandbox = cluster.api().get(name).await.ok()?;
        sandbox.status?.conditions?.iter().find(|c| c.type_ == "Ready" && c.status == "True").map(|_| ())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_are_limited_by_the_flag_and_use_http_2() {
    let cluster = Cluster::start().await;
    let flags =
        ["--extensions", "--leader-elect=false", "--api-connections=3", "--separate-watch-connection"];
    let mut replica = cluster.replica(&flags, &[], "controllers run").await;
    cluster.pool(8).await;
    let asked = cluster.asked();
    assert!(asked.iter().all(|asked| asked.version == Version::HTTP_2), "{asked:?}");
    let peers = |watch: bool| {
        asked.iter().filter(|asked| asked.watch == watch).map(|asked| asked.peer).collect::<BTreeSet<_>>()
    };
    assert_eq!(peers(false).len(), 3);
    assert!(peers(true).is_disjoint(&peers(false)), "watches have their own");
    replica.signal(Signal::TERM);
    assert_eq!(replica.ended().await, Some(0), "{}", replica.log());
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn warm_claim_costs_at_most_six_writes() {
    let cluster = Cluster::start().await;
    let _replica = cluster.replica(&["--extensions", "--leader-elect=false"], &[], "controllers run").await;
    cluster.pool(1).await;
    let member = only_sandbox(&cluster).await;
    cluster.asked();
    let labels = json!({"agents.x-k8s.io/created-by": "go-client"});
    let claim = cluster.claim("c", json!({"metadata": {"labels": labels}, "spec": {}})).await;
    assert_eq!(claim.status.expect("a status").sandbox.expect("a sandbox").name.as_ref(), Some(&member));
    eventually("the Pod has left the pool", || async {
        let pod: k8s_openapi::api::core::v1::Pod = cluster.api().get(&member).await.ok()?;
        (!pod.labels().contains_key("agents.x-k8s.io/warm-pool-sandbox")).then_some(())
    })
    .await;
    eventually("the event is written", || async {
        let events =
            cluster.api::<k8s_openapi::api::events::v1::Event>().list(&Default::default()).await.ok()?;
        events.items.iter().find(|event| event.reason.as_deref() == Some("SandboxAdopted")).map(|_| ())
    })
    .await;
    eventually("the Sandbox's status is of its present generation", || async {
        let sandbox: Sandbox = cluster.api().get(&member).await.ok()?;
        let conditions = sandbox.status?.conditions?;
        conditions.iter().all(|c| c.observed_generation == sandbox.metadata.generation).then_some(())
    })
    .await;
    let own = ["/sandboxclaims/", "/events", member.as_str()];
    let writes: Vec<String> = cluster
        .asked()
        .iter()
        .filter(|asked| asked.method != Method::GET && own.iter().any(|part| asked.path.contains(part)))
        .map(|asked| format!("{} {}", asked.method, asked.path))
        .collect();
    assert!((3..=6).contains(&writes.len()), "{writes:#?}");
    cluster.stop().await;
}

async fn only_sandbox(cluster: &Cluster) -> String {
    let all = cluster.api::<Sandbox>().list(&Default::default()).await.expect("a list").items;
    assert_eq!(all.len(), 1);
    all[0].name_any()
}

/// The spans of that trace, by name.
fn trace_of(collector: &Collector, id: &str) -> BTreeMap<String, Vec<Span>> {
    let mut found: BTreeMap<String, Vec<Span>> = BTreeMap::new();
    for (about, span) in collector.received() {
        assert_eq!(about["service.name"], "agent-sandbox-controller");
        if hex(&span.trace_id) == id {
            found.entry(span.name.clone()).or_default().push(span);
        }
    }
    found
}

/// The traces in which a span is about that claim.
fn traces_of_claim(collector: &Collector, claim: &str) -> BTreeSet<String> {
    let spans = collector.received();
    let of_claim = spans.iter().filter(|(_, span)| {
        span.name == "ReconcileSandboxClaim" && texts(&span.attributes)["sandbox.name"] == claim
    });
    of_claim.map(|(_, span)| hex(&span.trace_id)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn claim_continues_the_trace_of_its_client() {
    let (collector, endpoint) = Collector::start().await;
    let cluster = Cluster::start().await;
    let variables = [("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str()), ("OTEL_BSP_SCHEDULE_DELAY", "100")];
    let flags = ["--extensions", "--leader-elect=false", "--enable-tracing"];
    let mut replica = cluster.replica(&flags, &variables, "controllers run").await;
    cluster.pool(2).await;

    let (trace, span) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
    let context = json!({"traceparent": format!("00-{trace}-{span}-01")}).to_string();
    let labels = json!({"agents.x-k8s.io/created-by": "python-client"});
    let annotations = json!({"opentelemetry.io/trace-context": context});
    let given = json!({"metadata": {"labels": labels, "annotations": annotations}, "spec": {}});
    let traced = cluster.claim("traced", given).await;
    let untraced = cluster.claim("untraced", json!({"spec": {}})).await;
    for claim in [&traced, &untraced] {
        let name = claim.status.clone().expect("a status").sandbox.expect("a sandbox").name.expect("a name");
        let sandbox: Sandbox = cluster.api().get(&name).await.expect("the sandbox");
        let key = "opentelemetry.io/trace-context";
        assert_eq!(
            sandbox.annotations().get(key),
            claim.annotations().get(key),
            "{name} continues the trace"
        );
    }
    replica.signal(Signal::TERM);
    assert_eq!(replica.ended().await, Some(0), "{}", replica.log());

    assert_eq!(traces_of_claim(&collector, "traced"), BTreeSet::from([trace.to_owned()]));
    let spans = trace_of(&collector, trace);
    let claim = &spans["ReconcileSandboxClaim"][0];
    assert_eq!(hex(&claim.parent_span_id), span);
    let about = texts(&claim.attributes);
    assert_eq!(about["sandbox.namespace"], "default");
    assert_eq!(about["agents.x-k8s.io/created-by"], "python-client");
    let sandbox = &spans["ReconcileSandbox"];
    let pod =
        sandbox.iter().flat_map(|span| &span.events).find(|event| event.name == "ExistingPodStatusObserved");
    assert_eq!(texts(&pod.expect("a reconcile of the Pod").attributes)["pod.Phase"], "Running");
    let step = &spans["reconcilePod"][0];
    assert!(
        sandbox.iter().any(|span| span.span_id == step.parent_span_id),
        "a step is within its Sandbox's span"
    );

    let own = traces_of_claim(&collector, "untraced");
    assert_eq!(own.len(), 1, "one claim, one trace: {own:?}");
    let noted = &untraced.annotations()["opentelemetry.io/trace-context"];
    assert!(noted.contains(own.first().expect("a trace")), "{noted}");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_are_the_published_ones() {
    let cluster = Cluster::start().await;
    let replica = cluster.replica(&["--extensions"], &[], "controllers run").await;
    cluster.pool(1).await;
    let ago = |seconds: i64| (jiff::Timestamp::now() - jiff::SignedDuration::from_secs(seconds)).to_string();
    let annotations = json!({
        "agents.x-k8s.io/client-first-requested-at": ago(3),
        "agents.x-k8s.io/webhook-first-observed-at": ago(2),
    });
    cluster.claim("warm", json!({"metadata": {"annotations": annotations}, "spec": {}})).await;
    let made_up_for = r#"agent_sandboxes{created_by="controller",expired="false",launch_type="warm",namespace="default",owned_by="SandboxWarmPool",ready_condition="true",sandbox_template="t"} 1"#;
    let text = eventually("the pool has made up for it", || async {
        let text = replica.get("metrics", "/metrics");
        text.lines().any(|line| line == made_up_for).then_some(text)
    })
    .await;
    let shown = families(&text);
    let published: BTreeSet<String> =
        include_str!("fixtures/metrics.txt").lines().map(str::to_owned).collect();
    assert_eq!(shown, published, "{text}");
    let by = r#"launch_type="warm",sandbox_template="t""#;
    for line in [
        format!("agent_sandbox_client_claim_startup_latency_ms_count{{{by}}} 1"),
        format!("agent_sandbox_claim_startup_latency_ms_bucket{{{by},le=\"1500\"}} 0"),
        format!("agent_sandbox_claim_startup_latency_ms_count{{{by}}} 1"),
        format!("agent_sandbox_claim_controller_startup_latency_ms_count{{{by}}} 1"),
        r#"agent_sandbox_creation_latency_ms_count{launch_type="warm",namespace="default",sandbox_template="t"} 1"#.into(),
        r#"agent_sandbox_claim_creation_total{created_by="unknown",launch_type="warm",namespace="default",pod_condition="ready",sandbox_template="t",warmpool_name="p"} 1"#.into(),
        r#"agent_sandboxes{created_by="unknown",expired="false",launch_type="warm",namespace="default",owned_by="SandboxClaim",ready_condition="true",sandbox_template="t"} 1"#.into(),
    ] {
        assert!(text.lines().any(|shown| shown == line), "{line} is not in\n{text}");
    }
    cluster.stop().await;
}

/// Each family as `name type label,label`, and the bounds of its buckets.
fn families(text: &str) -> BTreeSet<String> {
    let kinds = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let mut found = BTreeSet::new();
    for (name, kind) in kinds {
        let (mut labels, mut bounds) = (BTreeSet::new(), Vec::new());
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (shown, rest) = line.split_once(['{', ' ']).expect("a sample");
            let own = ["", "_bucket", "_sum", "_count"].iter().any(|end| shown == format!("{name}{end}"));
            if !own || !line.contains('{') {
                continue;
            }
            let pairs = rest.rsplit_once('}').expect("labels").0;
            for pair in pairs.split("\",") {
                let (label, value) = pair.split_once("=\"").expect("a label");
                let value = value.trim_end_matches('"');
                if label != "le" {
                    labels.insert(label.to_owned());
                } else if value != "+Inf" {
                    let bound = format!("{:.2e}", value.parse::<f64>().expect("a number"));
                    if !bounds.contains(&bound) {
                        bounds.push(bound);
                    }
                }
            }
        }
        let labels: Vec<String> = labels.into_iter().collect();
        let all = [vec![name.to_owned(), kind.to_owned(), labels.join(",")], bounds].concat();
        found.insert(all.join(" ").trim_end().to_owned());
    }
    found
}
