//! Reading one object.

use axum::response::Response;
use http::StatusCode;

use crate::call::Call;
use crate::failure::Failure;
use crate::respond;

pub(crate) fn get(call: &Call) -> Result<Response, Failure> {
    let entry = call.store.get(&call.resource.collection, &call.key(&call.name));
    let entry = entry.ok_or_else(|| {
        warn_if_suspended(call);
        Failure::not_found(call.kind(), &call.name)
    })?;
    if let Some(asked) = call.query.revision().map_err(Failure::unexplained)? {
        super::list::not_of_the_future(call, asked)?;
    }
    respond::entry(call, StatusCode::OK, &entry)
}

/// Collection of the Sandboxes.
const SANDBOXES: &str = "sandboxes.agents.x-k8s.io";

/// Warns a client that requests the Pod of a suspended Sandbox, as exec and port-forward do first. The error stays the
/// one that clients know.
fn warn_if_suspended(call: &Call) {
    if call.kind().group_resource() != "pods" {
        return;
    }
    let sandbox = call.core.read(SANDBOXES, &call.key(&call.name));
    if sandbox.is_some_and(|sandbox| sandbox["spec"]["operatingMode"] == "Suspended") {
        let name = &call.name;
        call.warn(format!(
            "the Sandbox {name} is suspended and has no Pod; what wakes it: a request through the router (with the \
             annotation hutch.dev/wake-on-connect), an SDK's resume, or kubectl patch sandbox {name} --type=merge \
             -p '{{\"spec\":{{\"operatingMode\":\"Running\"}}}}'"
        ));
    }
}
