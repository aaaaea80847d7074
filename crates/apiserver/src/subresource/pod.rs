//! Streams of Pods, binding.

use std::sync::Arc;

use axum::extract::Request;
use axum::response::Response;
use bytes::Bytes;
use http::{Method, StatusCode};
use hutch_kubelet::{Kubelet, PodId};
use serde_json::json;

use super::held::Held;
use crate::access::{self, Action};
use crate::admit::{Admission, Objects, stream_options};
use crate::audit;
use crate::call::Call;
use crate::failure::{Cause, Failure};
use crate::hooks::rule::Operation;
use crate::ownership::Ownership;
use crate::verbs::modify::{Part, modify};
use crate::{body, meta, respond};

/// `log`, `exec`, `attach`, `portforward`: joined to the node that runs the Pod.
pub(crate) async fn stream(call: &Call, name: &str, request: Request) -> Result<Response, Failure> {
    let method_fits = match name {
        "log" => *request.method() == Method::GET,
        _ => matches!(*request.method(), Method::GET | Method::POST),
    };
    if !method_fits {
        return Err(Failure::method_not_allowed());
    }
    if name != "log" && *request.method() == Method::GET {
        // By GET a WebSocket is opened, and what begins in the Pod is the same as by POST.
        let namespace = call.namespace.as_deref().unwrap_or_default();
        let create = Action::on("create", "", "pods", &call.name).inside(namespace).below(name);
        let decision = call.core.access.decide(&call.identity, &create);
        access::record(&call.identity, &create, &decision);
        if !decision.allowed {
            let why = decision.reason.to_string();
            return Err(Failure::forbidden(call.kind(), &call.name, &why, Vec::new()));
        }
    }
    let pod = call.core.read(&call.resource.collection, &call.key(&call.name));
    let pod = pod.ok_or_else(|| Failure::not_found(call.kind(), &call.name))?;
    if pod["spec"]["nodeName"].as_str().is_none_or(str::is_empty) {
        return Err(Failure::bad_request(format!("pod {} does not have a host assigned", call.name)));
    }
    connect(call, name).await?;
    let Some(kubelet) = call.core.kubelet.get() else {
        return Err(Failure::unavailable("no node runs Pods on this server yet"));
    };
    let kubelet = bounded(call, kubelet)?;
    let kubelet = audit::streams(call, &pod, kubelet);
    let id = PodId {
        namespace: meta::text(&pod, "namespace").to_owned(),
        name: call.name.clone(),
        uid: meta::text(&pod, "uid").to_owned(),
    };
    Ok(match name {
        "log" => hutch_remote::logs(request, kubelet, id).await,
        "exec" => hutch_remote::exec(request, kubelet, id).await,
        "attach" => hutch_remote::attach(request, kubelet, id).await,
        _ => hutch_remote::port_forward(request, kubelet, id).await,
    })
}

/// Passes the opening of a stream through webhooks. A log is only read.
async fn connect(call: &Call, name: &str) -> Result<(), Failure> {
    let subresource = call.kind().subresource(name).filter(|_| name != "log");
    let Some(subresource) = subresource else { return Ok(()) };
    let Some(admission) = Admission::of(call, Operation::Connect, name, &call.name, false) else {
        return Ok(());
    };
    let options = stream_options(&subresource.body.2, &call.query);
    admission.pass(Objects { new: Some(&options), ..Objects::default() }).await
}

/// The node, with a place for this stream among those of a caller from outside.
fn bounded(call: &Call, kubelet: &Arc<dyn Kubelet>) -> Result<Arc<dyn Kubelet>, Failure> {
    if !call.external {
        return Ok(kubelet.clone());
    }
    let place = Arc::new(call.core.streams.take(&call.identity)?);
    Ok(Arc::new(Held { kubelet: kubelet.clone(), place }))
}

pub(super) fn success(code: StatusCode) -> Response {
    let status = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": code.as_u16() });
    respond::json_value(code, &status)
}

/// Assigns a Pod to a node, once.
pub(crate) async fn bind(call: &Call, bytes: &Bytes, media_type: &str) -> Result<Response, Failure> {
    let binding = body::decode(bytes, media_type)?.value;
    let node = binding["target"]["name"].as_str().unwrap_or_default().to_owned();
    if node.is_empty() {
        return Err(Failure::invalid(call.kind(), &call.name, vec![Cause::required("target.name", "")]));
    }
    modify(call, Part::Server, Ownership::Settled, &mut |pod| {
        let own = pod["spec"]["nodeName"].as_str().unwrap_or_default();
        if !own.is_empty() {
            let why = format!("pod {} is already assigned to node \"{own}\"", call.name);
            return Err(Failure::conflict(call.kind(), &call.name, &why));
        }
        let mut next = pod.clone();
        meta::metadata(&mut next).remove("resourceVersion");
        next["spec"]["nodeName"] = node.as_str().into();
        let scheduled = json!({
            "type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": meta::seconds(call.core.ambient.now()),
        });
        let mut conditions = next["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.retain(|condition| condition["type"] != "PodScheduled");
        conditions.push(scheduled);
        next["status"]["conditions"] = conditions.into();
        Ok(next)
    })
    .await?;
    Ok(success(StatusCode::CREATED))
}
