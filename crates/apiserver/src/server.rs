//! The API server: opens its store and offers it to callers.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};

use axum::extract::{Request, State};
use axum::{Extension, Router, middleware};
use hutch_kubelet::Kubelet;
use hutch_serve::{Ambient, Authority};
use hutch_store::Store;
use serde_json::Value;

use crate::access::Access;
use crate::authentication::{Ahead, Unhooked, authenticate, caller};
use crate::bounds::Bound;
use crate::certificates::Certificates;
use crate::core::Core;
use crate::credentials::Credentials;
use crate::hooks::{Connector, Hooks};
use crate::journal::{Audit, Refusals};
use crate::locks::NamespaceLocks;
use crate::registry::Registry;
use crate::service_token::Signer;
use crate::{Error, Identity, bootstrap, dispatch};

/// Configuration of an API server.
#[derive(Debug, Clone, Default)]
pub struct Config {
    /// Folder of the objects (`<data>/store`) and of the key of ServiceAccount tokens (`<data>/ca`). `None` keeps them
    /// in memory only.
    pub data: Option<PathBuf>,
    /// The node to which Pods are bound when they are created without one.
    pub default_node: Option<String>,
    /// Host and port under which clients reach the server; discovery reports it.
    pub address: String,
    /// Roles and bindings that exist from the start, besides those of Kubernetes. They are kept up to date at each start in the
    /// same way.
    pub roles: Vec<Value>,
    /// The authority of the server's certificate. It signs those of users, and its certificate is in the Secrets of tokens.
    pub authority: Option<Arc<Authority>>,
    /// Source of the times, uids and generated names of objects.
    pub ambient: Ambient,
}

/// The API server. Clones share it.
#[derive(Clone)]
pub struct ApiServer(Arc<Core>);

impl ApiServer {
    /// Opens the store, serves the CustomResourceDefinitions in it, and makes what is there from the start:
    /// namespaces, service accounts, the definitions of Agent Sandbox and its policies.
    ///
    /// # Errors
    /// When the store or the credentials cannot be opened or the first objects cannot be written.
    pub async fn open(config: Config) -> Result<ApiServer, Error> {
        let store = match &config.data {
            Some(data) => Store::open(&data.join("store"))?,
            None => Store::volatile()?,
        };
        let private = config.data.as_ref().map(|data| data.join("ca"));
        let signer = Signer::open(private.as_deref())?;
        let core = Arc::new(Core {
            reloading: Mutex::default(),
            access: Access::new(store.clone()),
            certificates: Certificates::new(store.clone()),
            hooks: Hooks::new(store.clone()),
            connector: OnceLock::new(),
            store,
            registry: Registry::new(),
            credentials: Credentials::default(),
            creates: NamespaceLocks::default(),
            signer,
            default_node: config.default_node,
            authority: config.authority,
            address: OnceLock::new(),
            kubelet: OnceLock::new(),
            audit: OnceLock::new(),
            refusals: Refusals::default(),
            ambient: config.ambient,
            watches: Bound::of_watches(),
            streams: Bound::of_streams(),
            requests: Bound::of_requests(),
        });
        if !config.address.is_empty() {
            // Set once, here, before anyone else has the core.
            let _ = core.address.set(config.address);
        }
        bootstrap::run(&core, &config.roles).await?;
        Ok(ApiServer(core))
    }

    /// Sets the node that streams go to. The first one stays.
    pub fn set_kubelet(&self, kubelet: Arc<dyn Kubelet>) {
        if self.0.kubelet.set(kubelet).is_err() {
            tracing::warn!("the API server has a kubelet already");
        }
    }

    /// Sets what connects to the hosts of webhooks. Without it, webhooks are reached as Services only. The first one stays.
    pub fn set_connector(&self, connector: Arc<dyn Connector>) {
        if self.0.connector.set(connector).is_err() {
            tracing::warn!("the API server has a connector already");
        }
    }

    /// Sets the log that receives the requests. The first one stays.
    pub fn set_audit(&self, audit: Arc<dyn Audit>) {
        if self.0.audit.set(audit).is_err() {
            tracing::warn!("the API server has an audit log already");
        }
    }

    /// Sets host and port under which clients reach the server, once they are known. The first one stays.
    pub fn set_address(&self, address: &str) {
        if self.0.address.set(address.to_owned()).is_err() {
            tracing::debug!("the API server has an address already");
        }
    }

    /// Accepts a bearer token as long as this server lives.
    pub fn accept_token(&self, token: &str, identity: Identity) {
        self.0.credentials.grant(token.as_bytes(), identity);
    }

    /// The identity of an accepted token.
    pub fn identify_token(&self, token: &str) -> Option<Identity> {
        caller(&self.0, token.as_bytes())
    }

    /// The server for callers of this process, whose requests all have this identity.
    pub fn router_as(&self, identity: Identity) -> Router {
        app().layer(Extension(identity)).with_state(self.0.clone())
    }

    /// The server for callers from outside, who show a bearer token or a client certificate. An invalid credential gets
    /// 401; a request without one is that of `system:anonymous`.
    pub fn authenticated(&self) -> Router {
        app().layer(middleware::from_fn_with_state(self.0.clone(), authenticate)).with_state(self.0.clone())
    }

    /// A `kube::Client` of this process under an identity.
    pub fn client(&self, identity: Identity, default_namespace: &str) -> hutch_serve::memory::Client {
        hutch_serve::memory::client(self.router_as(identity), default_namespace)
    }

    /// A client for a caller whose every act is a write to this server: it sees writes that are not on disk yet, and is
    /// answered before its own are. A claim's chain of writes then waits for the disk once or twice; no other caller sees
    /// any of them earlier than that.
    pub fn client_ahead(&self, identity: Identity, default_namespace: &str) -> hutch_serve::memory::Client {
        let router = self.router_as(identity).layer(Extension(Ahead));
        hutch_serve::memory::client(router, default_namespace)
    }

    /// The server for the node, whose requests call no webhook: see [`Unhooked`].
    pub fn router_of_node(&self, identity: Identity) -> Router {
        self.router_as(identity).layer(Extension(Unhooked))
    }

    /// A client for what must be there before a webhook can run. Its requests call no webhook: see [`Unhooked`].
    pub fn client_unhooked(
        &self,
        identity: Identity,
        default_namespace: &str,
    ) -> hutch_serve::memory::Client {
        hutch_serve::memory::client(self.router_of_node(identity), default_namespace)
    }

    /// The shared state, for tests of single parts.
    #[cfg(test)]
    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.0
    }

    /// Revision of the last change.
    pub fn revision(&self) -> u64 {
        self.0.store.current_revision()
    }

    /// Waits until everything is on disk and the store is closed. Later writes fail.
    pub async fn close(&self) {
        self.0.store.close().await;
    }
}

fn app() -> Router<Arc<Core>> {
    Router::new().fallback(handle)
}

async fn handle(State(core): State<Arc<Core>>, request: Request) -> axum::response::Response {
    dispatch::handle(core, request).await
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
    use kube::Api;
    use kube::api::{Patch, PatchParams, PostParams};
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn value_stored_before_its_rule_stays_until_it_is_changed() {
        let server = ApiServer::open(Config::default()).await.unwrap();
        let mut pod = server.0.new_object("v1", "Pod", Some("default"), "old");
        pod["metadata"]["finalizers"] = json!(["example.com/kept"]);
        let container =
            |memory: &str| json!([{"name": "c", "image": "i", "resources": {"limits": {"memory": memory}}}]);
        pod["spec"] = json!({"containers": container("..")});
        crate::admission::pod::template_defaults(&mut pod["spec"]);
        server.0.store.create("pods", "default/old", pod).await.unwrap();
        let pods: Api<Pod> = Api::default_namespaced(server.client(Identity::admin(), "default"));
        let patch = async |change: Value| {
            let patched = pods.patch("old", &PatchParams::default(), &Patch::Merge(change)).await;
            patched.map_err(|error| error.to_string())
        };
        let patched = patch(json!({"metadata": {"finalizers": null}})).await.unwrap();
        assert_eq!(patched.metadata.finalizers, None);
        let refused = patch(json!({"spec": {"overhead": {"memory": ".."}}})).await.unwrap_err();
        assert!(refused.contains("spec.overhead.memory: must be of type quantity"), "{refused}");
    }

    /// Regression: after a `kill -9` amid the removal of a definition, a new one served the objects that were left.
    #[tokio::test]
    async fn new_definition_does_not_serve_what_an_earlier_one_left_behind() {
        let server = ApiServer::open(Config::default()).await.unwrap();
        let store = &server.0.store;
        for (collection, key) in [("kinds.example.com", "default/old"), ("deployments.apps", "default/kept")]
        {
            let object = server.0.new_object("example.com/v1", "Kind", Some("default"), "old");
            store.create(collection, key, object).await.unwrap();
        }
        let definitions: Api<CustomResourceDefinition> =
            Api::all(server.client(Identity::admin(), "default"));
        let schema = json!({"openAPIV3Schema": {"type": "object"}});
        let version = json!({"name": "v1", "served": true, "storage": true, "schema": schema});
        for (plural, group) in [("kinds", "example.com"), ("deployments", "apps")] {
            let definition = json!({"metadata": {"name": format!("{plural}.{group}")}, "spec": {"group": group,
                "scope": "Namespaced", "names": {"plural": plural, "kind": "Kind"}, "versions": [version]}});
            let definition = serde_json::from_value(definition).unwrap();
            let _refused_for_apps = definitions.create(&PostParams::default(), &definition).await;
        }
        assert_eq!(store.count("kinds.example.com", ""), 0);
        // That collection is of a kind that the server defines itself.
        assert_eq!(store.count("deployments.apps", ""), 1);
    }
}
