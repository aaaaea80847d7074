//! Objects that exist from the start.

mod roles;

use std::sync::Arc;

use serde_json::{Value, json};

use crate::admission::definition::{BUILT_IN, BuiltIn};
use crate::core::{Core, DEFINITIONS};
use crate::{Error, admission};

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
            let mut namespace = core.new_object("v1", "Namespace", None, name);
            admission::namespace::create(&mut namespace);
            put(core, "namespaces", name, namespace).await?;
        }
        admission::namespace::furnish(core, name)
            .await
            .map_err(|failure| Error::Bootstrap(failure.message))?;
    }
    service(core).await?;
    roles::run(core, roles).await
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
        core.fill_metadata(&mut definition);
        admission::definition::establish(&mut definition, core.ambient.now());
        return put(core, DEFINITIONS, name, definition).await;
    };
    let mut next = entry.value.value();
    next["spec"] = definition["spec"].take();
    admission::definition::set_mark(&mut next, mark);
    admission::definition::establish(&mut next, core.ambient.now());
    let updated = core.store.update(DEFINITIONS, name, entry.revision, next).await;
    updated.map(|_| ()).map_err(Error::Store)
}

/// The Service by which programs inside find the API.
async fn service(core: &Core) -> Result<(), Error> {
    if core.store.get("services", "default/kubernetes").is_some() {
        return Ok(());
    }
    let mut service = core.new_object("v1", "Service", Some("default"), "kubernetes");
    service["metadata"]["labels"] = json!({"component": "apiserver", "provider": "kubernetes"});
    service["spec"] = json!({
        "type": "ClusterIP",
        "clusterIP": "10.96.0.1",
        "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": 6443}],
    });
    admission::service::create(core, &mut service).map_err(|failure| Error::Bootstrap(failure.message))?;
    put(core, "services", "default/kubernetes", service).await
}

async fn put(core: &Core, collection: &str, key: &str, object: Value) -> Result<(), Error> {
    match core.store.create(collection, key, object).await {
        Ok(_) | Err(hutch_store::Error::Exists) => Ok(()),
        Err(other) => Err(other.into()),
    }
}
