//! Namespaces, and what every one of them holds.

use serde_json::{Value, json};

use crate::core::Core;
use crate::failure::Failure;
use crate::{kinds, meta};

/// The finalizer in `spec` that keeps a namespace until it is empty.
pub(crate) const FINALIZER: &str = "kubernetes";
/// Namespaces that cannot be deleted.
pub(crate) const IMMORTAL: &[&str] = &["default", "kube-system", "kube-public"];

pub(crate) fn create(object: &mut Value) {
    label(object);
    object["spec"] = json!({ "finalizers": [FINALIZER] });
    object["status"] = json!({ "phase": "Active" });
}

/// Every namespace carries its name as a label.
pub(crate) fn label(object: &mut Value) {
    let name = meta::text(object, "name").to_owned();
    let metadata = &mut object["metadata"];
    super::map(metadata, "labels").insert("kubernetes.io/metadata.name".into(), name.into());
}

/// Makes the default service account of a namespace, as a controller does on a cluster. Here it is done with the
/// namespace, so that no client has to wait for it.
pub(crate) async fn furnish(core: &Core, name: &str) -> Result<(), Failure> {
    let key = format!("{name}/default");
    if core.store.latest("serviceaccounts", &key).is_some() {
        return Ok(());
    }
    let account = core.new_object("v1", "ServiceAccount", Some(name), "default");
    match core.store.create("serviceaccounts", &key, account).await {
        Ok(_) | Err(hutch_store::Error::Exists) => Ok(()),
        Err(error) => {
            let kind = kinds::Kind { plural: "serviceaccounts".into(), ..kinds::Kind::default() };
            Err(Failure::of_store(error, &kind, "default"))
        }
    }
}
