//! What is there from the start.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::admission::definition::{BUILT_IN, BuiltIn};
use crate::server::Core;
use crate::{Error, access, admission, meta};

/// Collection of CustomResourceDefinitions.
pub(crate) const DEFINITIONS: &str = "customresourcedefinitions.apiextensions.k8s.io";
/// Namespaces that exist from the start.
const NAMESPACES: &[&str] =
    &["default", "kube-system", "kube-public", "kube-node-lease", "agent-sandbox-system"];

/// Makes the first objects. `roles` are the roles and bindings of the configuration.
pub(crate) async fn run(core: &Arc<Core>, roles: &[Value]) -> Result<(), Error> {
    for builtin in BUILT_IN {
        definition(core, builtin).await?;
    }
    core.reload_definitions();
    for name in NAMESPACES {
        if core.store.get("namespaces", name).is_none() {
            let mut namespace = object(core, "v1", "Namespace", None, name);
            admission::namespace::create(&mut namespace);
            put(core, "namespaces", name, namespace).await?;
        }
        admission::namespace::furnish(core, name)
            .await
            .map_err(|failure| Error::Bootstrap(failure.message))?;
    }
    service(core).await?;
    access::defaults::run(core, roles).await
}

/// Puts a built-in definition, or brings the stored one to this version's state.
async fn definition(core: &Core, builtin: &BuiltIn) -> Result<(), Error> {
    let BuiltIn { name, mark, json } = builtin;
    let stored = core.store.get(DEFINITIONS, name);
    if let Some(entry) = &stored
        && admission::definition::is_marked(&entry.value.value(), mark)
    {
        return Ok(());
    }
    let broken = |cause: String| Error::BuiltIn { name: (*name).to_owned(), cause };
    let mut definition: Value = serde_json::from_str(json).map_err(|error| broken(error.to_string()))?;
    admission::definition::set_mark(&mut definition, mark);
    let Some(entry) = stored else {
        fill_metadata(core, &mut definition);
        admission::definition::establish(&mut definition);
        return put(core, DEFINITIONS, name, definition).await;
    };
    let mut next = entry.value.value();
    next["spec"] = definition["spec"].take();
    admission::definition::set_mark(&mut next, mark);
    admission::definition::establish(&mut next);
    let updated = core.store.update(DEFINITIONS, name, entry.revision, next).await;
    updated.map(|_| ()).map_err(Error::Store)
}

/// The Service by which programs inside find the API.
async fn service(core: &Core) -> Result<(), Error> {
    if core.store.get("services", "default/kubernetes").is_some() {
        return Ok(());
    }
    let mut service = object(core, "v1", "Service", Some("default"), "kubernetes");
    service["metadata"]["labels"] = json!({"component": "apiserver", "provider": "kubernetes"});
    service["spec"] = json!({
        "type": "ClusterIP",
        "clusterIP": "10.96.0.1",
        "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": 6443}],
    });
    admission::service::create(core, &mut service).map_err(|failure| Error::Bootstrap(failure.message))?;
    put(core, "services", "default/kubernetes", service).await
}

/// An object with the metadata that the server gives.
pub(crate) fn object(
    core: &Core,
    api_version: &str,
    kind: &str,
    namespace: Option<&str>,
    name: &str,
) -> Value {
    let mut object = json!({ "apiVersion": api_version, "kind": kind, "metadata": { "name": name } });
    if let Some(namespace) = namespace {
        object["metadata"]["namespace"] = namespace.into();
    }
    fill_metadata(core, &mut object);
    object
}

pub(crate) fn fill_metadata(core: &Core, object: &mut Value) {
    let metadata = meta::metadata(object);
    metadata.insert("uid".into(), core.ambient.uuid().to_string().into());
    metadata.insert("creationTimestamp".into(), meta::seconds(core.ambient.now()).into());
}

async fn put(core: &Core, collection: &str, key: &str, object: Value) -> Result<(), Error> {
    match core.store.create(collection, key, object).await {
        Ok(_) | Err(hutch_store::Error::Exists) => Ok(()),
        Err(other) => Err(other.into()),
    }
}
