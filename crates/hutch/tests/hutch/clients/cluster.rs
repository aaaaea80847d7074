//! The routers of the cells on a cluster.

use k8s_openapi::api::core::v1::{Namespace, Pod, Service};
use kube::api::{Api, PostParams};
use serde_json::{Value, json};

use super::script::Settings;
use crate::control_plane::ControlPlane;
use crate::harness::HUTCH;

/// File of the key that signs tokens.
const KEY: &str = "router.key";
/// Where the package looks for a router to forward to.
const SYSTEM: &str = "agent-sandbox-system";

pub(crate) struct Running(ControlPlane);

impl Running {
    pub(crate) async fn start() -> Running {
        let mut plane = ControlPlane::start().await;
        start_routers(&mut plane);
        router_pod(&plane).await;
        plane.listening(&["router", "scoped"]).await;
        Running(plane)
    }

    pub(crate) fn settings(&self) -> Settings {
        let plane = &self.0;
        let users = std::fs::read_to_string(plane.file("tokens.csv")).expect("the administrator's token");
        let listens =
            |router: &str, name: &str| plane.printed(router, name).expect("the router says where it listens");
        let tls = json!({"router": format!("https://{}", listens("router", "https ")),
            "certificate": plane.file("server.crt"), "key": plane.file("server.key")});
        let scoped = json!({"router": format!("http://{}", listens("scoped", "http ")),
            "key": plane.file(KEY), "hutch": HUTCH});
        Settings {
            kubeconfig: plane.cluster.kubeconfig().to_owned(),
            router: format!("http://{}", listens("router", "http ")),
            token: users.split(',').next().expect("a token").to_owned(),
            tls,
            scoped,
        }
    }
}

/// Starts a router with token reviews. Its listener with TLS requires a client certificate, for which that of the API server
/// serves.
fn start_routers(plane: &mut ControlPlane) {
    let flags = [
        "--authz-mode=tokenreview".to_owned(),
        "--mtls-mode=required".to_owned(),
        "--https-bind-address=127.0.0.1:0".to_owned(),
        format!("--tls-cert-file={}", plane.file("server.crt")),
        format!("--tls-key-file={}", plane.file("server.key")),
        format!("--tls-client-ca-file={}", plane.file("server.crt")),
    ];
    std::fs::write(plane.file(KEY), "0123456789abcdef0123456789abcdef").expect("written");
    let scoped = [
        "--authz-mode=scoped-token".to_owned(),
        format!("--authz-scoped-token-secret-file={}", plane.file(KEY)),
    ];
    plane.router("router", &flags);
    plane.router("scoped", &scoped);
}

/// Starts a router as a Pod behind the Service that the package forwards to. A forwarded port carries no identity, so this
/// router admits every client.
async fn router_pod(plane: &ControlPlane) {
    let script = "exec \"$0\" router --http-bind-address=$POD_IP:8080 --authz-mode=allow-all --wake-on-connect \
        --metrics-bind-address=0 --health-probe-bind-address=0 --kubeconfig=$1";
    let container = json!({"name": "router", "image": "hutch", "readinessProbe": {"tcpSocket": {"port": 8080}},
        "command": ["sh", "-c", script, HUTCH, plane.cluster.kubeconfig()]});
    let labels = json!({"app": "sandbox-router"});
    create::<Namespace>(Api::all(plane.client.clone()), json!({"metadata": {"name": SYSTEM}})).await;
    let service = json!({"metadata": {"name": "sandbox-router-svc"},
        "spec": {"selector": labels, "ports": [{"port": 8080, "targetPort": 8080}]}});
    create::<Service>(Api::namespaced(plane.client.clone(), SYSTEM), service).await;
    let pod = json!({"metadata": {"name": "sandbox-router", "labels": labels},
        "spec": {"containers": [container], "automountServiceAccountToken": false}});
    let pods: Api<Pod> = Api::namespaced(plane.client.clone(), SYSTEM);
    create(pods.clone(), pod).await;
    let ready = async || {
        let status = pods.get("sandbox-router").await.ok().and_then(|pod| pod.status);
        status.is_some_and(|status| status.phase.as_deref() == Some("Running"))
    };
    plane.cluster.until("the router's Pod runs", ready).await.unwrap();
}

async fn create<K>(api: Api<K>, object: Value)
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned + serde::Serialize,
{
    let object: K = serde_json::from_value(object).expect("well formed");
    // A namespace's ServiceAccount takes a moment, and no Pod can be made before.
    let made = async || match api.create(&PostParams::default(), &object).await {
        Ok(_) => Some(()),
        Err(kube::Error::Api(status)) if status.is_forbidden() => None,
        Err(error) => panic!("{error}"),
    };
    hutch_testkit::wait::eventually("it is made", made).await;
}
