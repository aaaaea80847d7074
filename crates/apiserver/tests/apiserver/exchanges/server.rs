//! The server that receives the requests: this one, or a real one.

use std::path::PathBuf;
use std::time::Duration;

use http::Request;
use http_body_util::BodyExt;
use hutch_apiserver::{ApiServer, Config, Identity};
use hutch_serve::{Authority, Listener, Shutdown};
use hutch_testkit::cluster::Cluster;
use kube::Client;
use kube::client::Body;
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};

use super::{Answer, Caller, Exchange};

const ADMIN: &str = "the-token-of-the-admin";
/// Maximum time until the authorizer of a real server knows a new role.
const LAG: Duration = Duration::from_millis(800);

pub(super) struct Server {
    /// Sends what it is given, without a credential of its own.
    client: Client,
    admin: String,
    bot: std::sync::OnceLock<String>,
    real: bool,
    /// Of the admin, for kubectl.
    kubeconfig: PathBuf,
    /// The folder of the kubeconfig and the listener, of a server of this process.
    site: Option<(tempfile::TempDir, Shutdown)>,
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some((_, shutdown)) = &self.site {
            shutdown.trigger();
        }
    }
}

impl Server {
    pub(super) async fn embedded() -> Server {
        let server = ApiServer::open(Config::default()).await.expect("a server");
        server.accept_token(ADMIN, Identity::admin());
        let client = hutch_serve::memory::client(server.authenticated(), "default");
        let (site, kubeconfig) = listen(&server).await;
        Server {
            client,
            admin: ADMIN.into(),
            bot: Default::default(),
            real: false,
            kubeconfig,
            site: Some(site),
        }
    }

    pub(super) async fn of_cluster(cluster: &Cluster) -> Server {
        let kubeconfig = Kubeconfig::read_from(cluster.kubeconfig()).expect("a kubeconfig");
        let text = std::fs::read_to_string(cluster.kubeconfig()).expect("a kubeconfig");
        let text: Value = serde_json::from_str(&text).expect("the kubeconfig is JSON");
        let admin = text.pointer("/users/0/user/token").and_then(Value::as_str).expect("a token").to_owned();
        let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
            .await
            .expect("a configuration");
        config.auth_info = AuthInfo::default();
        config.default_retry = false;
        let client = Client::try_from(config).expect("a client");
        let kubeconfig = cluster.kubeconfig().to_owned();
        Server { client, admin, bot: Default::default(), real: true, kubeconfig, site: None }
    }

    /// Returns what `kubectl auth can-i --list` prints for a user, sorted.
    pub(super) async fn can_i(&self, user: &str, namespace: &str) -> Vec<String> {
        let kubectl = hutch_testkit::tool("kubectl").expect("kubectl");
        let mut command = tokio::process::Command::new(kubectl);
        command.arg("--kubeconfig").arg(&self.kubeconfig);
        command.args(["auth", "can-i", "--list", "--as", user, "--namespace", namespace]);
        let output = command.output().await.expect("kubectl runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let mut lines: Vec<String> =
            String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
        lines.sort();
        lines
    }

    /// Sends a request of the admin and gives code and body.
    pub(super) async fn admin(&self, method: &'static str, path: &str, body: Value) -> (u16, Value) {
        self.raw(&Exchange::new(Caller::Admin, method, path, body)).await
    }

    pub(super) fn set_bot(&self, token: &str) {
        self.bot.set(token.to_owned()).expect("one token");
    }

    pub(super) fn bot(&self) -> &str {
        self.bot.get().expect("the token of the bot")
    }

    /// Waits until a real server's caches know of roles that were written.
    pub(super) async fn settle(&self) {
        if self.real {
            tokio::time::sleep(LAG).await;
        }
    }

    pub(super) async fn send(&self, exchange: &Exchange) -> Answer {
        if exchange.settles {
            self.settle().await;
        }
        let (code, body) = self.raw(exchange).await;
        if exchange.settles {
            self.settle().await;
        }
        if exchange.method != "GET" && exchange.path.contains("rbac.authorization.k8s.io") && code < 300 {
            self.settle().await;
        }
        let body = match code {
            0..300 if exchange.place.is_empty() => Value::Null,
            0..300 => body.pointer(exchange.place).cloned().unwrap_or_default(),
            _ => body,
        };
        Answer { code, body: in_order(body) }
    }

    async fn raw(&self, exchange: &Exchange) -> (u16, Value) {
        let media = match exchange.method {
            "PATCH" => "application/merge-patch+json",
            "APPLY" => "application/apply-patch+yaml",
            _ => "application/json",
        };
        let method = if exchange.method == "APPLY" { "PATCH" } else { exchange.method };
        let mut request = Request::builder().method(method).uri(&exchange.path).header("content-type", media);
        let token = match exchange.caller {
            Caller::Admin | Caller::User(..) => Some(self.admin.as_str()),
            Caller::Bot => Some(self.bot()),
            Caller::Stranger => Some("not-a-token"),
            Caller::Anonymous => None,
        };
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        if let Caller::User(name, groups) = exchange.caller {
            request = request.header("impersonate-user", name);
            for group in groups {
                request = request.header("impersonate-group", *group);
            }
        }
        for (name, value) in &exchange.headers {
            request = request.header(*name, value);
        }
        let body = if exchange.body.is_null() { String::new() } else { exchange.body.to_string() };
        let body = body.replace("TOKEN-OF-THE-BOT", self.bot.get().map_or("", String::as_str));
        let answer = self.client.send(request.body(Body::from(body.into_bytes())).expect("a request"));
        let answer = answer.await.expect("an answer");
        let code = answer.status().as_u16();
        if code < 300 && exchange.path.contains("watch=") {
            return (code, Value::Null);
        }
        let bytes = answer.into_body().collect().await.expect("all of it").to_bytes();
        (code, serde_json::from_slice(&bytes).unwrap_or_default())
    }
}

/// Serves over TLS and writes a kubeconfig of the admin.
async fn listen(server: &ApiServer) -> ((tempfile::TempDir, Shutdown), PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let authority = Authority::open(folder.path()).expect("an authority");
    let listener = Listener::bind(([127, 0, 0, 1], 0).into()).await.expect("a port");
    let (address, shutdown) = (listener.address(), Shutdown::new());
    let tls = authority.server_config(&[]).expect("a certificate");
    tokio::spawn(listener.serve_tls(server.authenticated(), tls, shutdown.clone()));
    let file = folder.path().join("kubeconfig");
    let cluster = json!({"server": format!("https://{address}"), "certificate-authority": folder.path().join("ca.crt")});
    let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": "a",
        "clusters": [{"name": "a", "cluster": cluster}], "users": [{"name": "a", "user": {"token": ADMIN}}],
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}]});
    std::fs::write(&file, config.to_string()).expect("the kubeconfig is written");
    ((folder, shutdown), file)
}

/// Rules in an order of their own: a real server lists them in none.
fn in_order(mut body: Value) -> Value {
    for list in ["resourceRules", "nonResourceRules"] {
        if let Some(rules) = body.get_mut(list).and_then(Value::as_array_mut) {
            rules.sort_by_key(Value::to_string);
        }
    }
    body
}
