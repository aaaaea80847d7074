//! Fields with which a Pod would share the machine. The node refuses them too, when a Pod starts that was stored before.

use serde_json::Value;

use crate::failure::Cause;

/// Refuses fields of a new Pod that runs as a sandbox.
pub(super) fn of_pod(spec: &Value) -> Vec<Cause> {
    let shares = "is not supported: a sandbox shares nothing with the machine";
    let fields = [
        ("hostNetwork", shares),
        ("hostPID", shares),
        ("hostIPC", shares),
        ("hostUsers", "true is not supported: ids inside are never ids of the machine"),
    ];
    let set = fields.into_iter().filter(|(field, _)| spec[*field] == true);
    set.map(|(field, why)| Cause::forbidden(format!("spec.{field}"), why)).collect()
}

/// Refuses a container, at this path, that would have the rights of the machine.
pub(super) fn of_container(container: &Value, at: &str) -> Option<Cause> {
    let is_privileged = container["securityContext"]["privileged"] == true;
    is_privileged.then(|| {
        let why = "is not supported: a sandbox has no rights of the machine";
        Cause::forbidden(format!("{at}.securityContext.privileged"), why)
    })
}
