//! Users with client certificates, over TLS.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures::StreamExt;
use hutch_apiserver::{ApiServer, Config, Identity};
use hutch_serve::{Authority, Listener, NewRequest, Shutdown};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::WatchParams;
use kube::config::AuthInfo;
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::raw::{call, typed};

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
/// Ends a test that hangs.
const LIMIT: Duration = Duration::from_secs(20);

struct Site {
    _folder: tempfile::TempDir,
    admin: Router,
    server: ApiServer,
    authority: Arc<Authority>,
    address: std::net::SocketAddr,
    shutdown: Shutdown,
}

impl Drop for Site {
    fn drop(&mut self) {
        self.shutdown.trigger();
    }
}

async fn site() -> Site {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let folder = tempfile::tempdir().unwrap();
    let authority = Arc::new(Authority::open(folder.path()).unwrap());
    let config = Config { authority: Some(authority.clone()), ..Config::default() };
    let server = ApiServer::open(config).await.unwrap();
    let listener = Listener::bind(([127, 0, 0, 1], 0).into()).await.unwrap();
    let (address, shutdown) = (listener.address(), Shutdown::new());
    let tls = authority.server_config(&[]).unwrap();
    tokio::spawn(listener.serve_tls(server.authenticated(), tls, shutdown.clone()));
    Site { _folder: folder, admin: server.router_as(Identity::admin()), server, authority, address, shutdown }
}

/// The object of a request for a user.
fn object(name: &str, request: &NewRequest) -> Value {
    let text = STANDARD.encode(&request.der);
    let pem = format!("-----BEGIN CERTIFICATE REQUEST-----\n{text}\n-----END CERTIFICATE REQUEST-----\n");
    json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": name},
        "spec": {"request": STANDARD.encode(pem), "signerName": "kubernetes.io/kube-apiserver-client", "usages": ["client auth"]}})
}

const APPROVED: &str = r#"{"status": {"conditions": [{"type": "Approved", "status": "True", "reason": "Test", "message": "yes"}]}}"#;
const MERGE: &str = "application/merge-patch+json";

impl Site {
    /// Creates and approves a user, and gives a client of it.
    async fn user(&self, name: &str, groups: &[&str]) -> Client {
        let groups: Vec<String> = groups.iter().map(ToString::to_string).collect();
        let request = NewRequest::new(name, &groups).unwrap();
        let (code, made) = call(&self.admin, "POST", REQUESTS, &object(name, &request).to_string()).await;
        assert_eq!((code.as_u16(), &made["spec"]["username"]), (201, &json!("admin")), "{made}");
        assert_eq!(made["status"], json!({}));
        let approval = format!("{REQUESTS}/{name}/approval");
        let (code, signed) = typed(&self.admin, "PATCH", &approval, MERGE, APPROVED).await;
        assert_eq!(code, 200, "{signed}");
        let certificate = signed["status"]["certificate"].as_str().unwrap().to_owned();
        let mut config = kube::Config::new(format!("https://{}", self.address).parse().unwrap());
        let root =
            rustls_pki_types::pem::PemObject::from_pem_slice(self.authority.certificate_pem().as_bytes());
        let root: rustls_pki_types::CertificateDer<'_> = root.unwrap();
        config.root_cert = Some(vec![root.to_vec()]);
        config.auth_info = AuthInfo {
            client_certificate_data: Some(certificate),
            client_key_data: Some(STANDARD.encode(&request.key_pem).into()),
            ..AuthInfo::default()
        };
        config.default_retry = false;
        Client::try_from(config).unwrap()
    }
}

fn code(error: kube::Error) -> (u16, String) {
    match error {
        kube::Error::Api(status) => (status.code, status.message.clone()),
        other => panic!("{other}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn user_has_the_rights_of_its_groups_until_it_is_deleted_also_on_live_watches() {
    let site = site().await;
    let alice = site.user("alice", &["devs", "ops"]).await;
    let maps: Api<ConfigMap> = Api::namespaced(alice.clone(), "default");
    let (status, message) = code(maps.list(&Default::default()).await.unwrap_err());
    assert_eq!(status, 403);
    assert!(message.contains("User \"alice\" cannot list resource \"configmaps\""), "{message}");
    let bindings = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings";
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "devs"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [{"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": "devs"}]});
    assert_eq!(call(&site.admin, "POST", bindings, &binding.to_string()).await.0, 201);
    maps.list(&Default::default()).await.unwrap();
    let mut watch = maps.watch(&WatchParams::default(), "0").await.unwrap().boxed();
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}}).to_string();
    assert_eq!(call(&site.admin, "POST", crate::raw::CONFIG_MAPS, &map).await.0, 201);
    tokio::time::timeout(LIMIT, watch.next()).await.unwrap().unwrap().unwrap();
    let other = site.user("bob", &["devs"]).await;
    let mut undisturbed = Api::<ConfigMap>::namespaced(other.clone(), "default")
        .watch(&WatchParams::default(), "0")
        .await
        .unwrap()
        .boxed();
    tokio::time::timeout(LIMIT, undisturbed.next()).await.unwrap().unwrap().unwrap();

    assert_eq!(call(&site.admin, "DELETE", &format!("{REQUESTS}/alice"), "").await.0, 200);
    let ended = async { while let Some(Ok(_)) = watch.next().await {} };
    tokio::time::timeout(LIMIT, ended).await.expect("the watch ends with the user");
    assert_eq!(code(maps.list(&Default::default()).await.unwrap_err()).0, 401);
    assert_eq!(call(&site.admin, "DELETE", &format!("{}/m", crate::raw::CONFIG_MAPS), "").await.0, 200);
    let event = tokio::time::timeout(LIMIT, undisturbed.next()).await.unwrap().unwrap().unwrap();
    assert!(matches!(event, kube::api::WatchEvent::Deleted(_)), "the other user's watch continues");
}

#[tokio::test]
async fn request_is_approved_by_approvers_only_and_cannot_be_changed() {
    let site = site().await;
    let request = NewRequest::new("alice", &["devs".into()]).unwrap();
    let (code, _) = call(&site.admin, "POST", REQUESTS, &object("alice", &request).to_string()).await;
    assert_eq!(code, 201);
    let roles = "/apis/rbac.authorization.k8s.io/v1";
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "requester"},
        "rules": [{"apiGroups": ["certificates.k8s.io"], "resources": ["*"], "verbs": ["get", "create", "update", "patch"]}]});
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "requester"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "requester"},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "eve"}]});
    call(&site.admin, "POST", &format!("{roles}/clusterroles"), &role.to_string()).await;
    call(&site.admin, "POST", &format!("{roles}/clusterrolebindings"), &binding.to_string()).await;
    let eve = site.server.router_as(Identity::new("eve", &[]));
    let (code, refused) = typed(&eve, "PATCH", &format!("{REQUESTS}/alice/approval"), MERGE, APPROVED).await;
    let why = "certificatesigningrequests.certificates.k8s.io \"alice\" is forbidden: user not permitted to approve requests with signerName \"kubernetes.io/kube-apiserver-client\"";
    assert_eq!((code.as_u16(), &refused["message"]), (403, &json!(why)));
    let stolen = r#"{"status": {"certificate": "eA=="}, "spec": {"signerName": "example.com/x"}}"#;
    let (_, same) = typed(&eve, "PATCH", &format!("{REQUESTS}/alice"), MERGE, stolen).await;
    assert_eq!(
        (&same["status"], &same["spec"]["signerName"]),
        (&json!({}), &json!("kubernetes.io/kube-apiserver-client"))
    );
    assert_eq!(typed(&eve, "PATCH", &format!("{REQUESTS}/alice/status"), MERGE, stolen).await.0, 405);
    let masters = NewRequest::new("eve", &["system:masters".into()]).unwrap();
    let (code, refused) = call(&eve, "POST", REQUESTS, &object("masters", &masters).to_string()).await;
    assert_eq!(code, 403, "{refused}");
    let mut short = object("short", &request);
    short["spec"]["expirationSeconds"] = 599.into();
    short["spec"]["usages"] = json!(["server auth"]);
    let (code, refused) = call(&eve, "POST", REQUESTS, &short.to_string()).await;
    assert_eq!(
        (code.as_u16(), refused["details"]["causes"].as_array().map(Vec::len)),
        (422, Some(2)),
        "{refused}"
    );
}
