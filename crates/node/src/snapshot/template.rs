//! Templates of Sandboxes: their policies hold for memory and files, wherever these are restored.

use hutch_api::Sandbox;
use hutch_api::annotation::TEMPLATE_REF;
use kube::{Api, ResourceExt};

use crate::shared::Shared;

/// Returns the template from which the controller made a Sandbox, if it is from one.
///
/// # Errors
/// The Sandbox has been deleted, or cannot be read.
pub(super) async fn of(
    node: &Shared,
    namespace: &str,
    (name, uid): (&str, &str),
) -> Result<Option<String>, String> {
    let api: Api<Sandbox> = Api::namespaced(node.client.clone(), namespace);
    let found = api.get_opt(name).await.map_err(|error| error.to_string())?;
    let found = found.filter(|sandbox| sandbox.uid().as_deref() == Some(uid));
    let sandbox = found.ok_or_else(|| format!("Sandbox {name:?} has been deleted"))?;
    Ok(sandbox.annotations().get(TEMPLATE_REF).cloned())
}
