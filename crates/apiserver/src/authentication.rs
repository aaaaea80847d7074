//! Authentication: from the credential of a request to the identity of its caller.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header;
use hutch_serve::{Connection, PeerCertificate};
use serde_json::Value;

use crate::access::impersonation::impersonated;
use crate::audit;
use crate::core::Core;
use crate::failure::Failure;
use crate::identity::Identity;
use crate::journal::{External, Impersonator};
use crate::service_token::{AUDIENCE, Bound};
use crate::{meta, object};

/// Request extension: the caller is a part of this process that may see writes before they are on disk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ahead;

/// Request extension: the request calls no webhook.
///
/// It is that of the node and of the objects of a new server: a webhook that matches everything and cannot be reached would
/// keep the server from starting, and then nothing could remove its configuration. All other parts of this process, the
/// controllers among them, pass through admission as in Kubernetes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unhooked;

/// The bearer of a token and the audiences of the token, if this server accepts it for any audience.
pub(crate) fn bearer(core: &Core, token: &[u8]) -> Option<(Identity, Vec<String>)> {
    let owner = core.credentials.identify(token).map(|owner| (owner, vec![AUDIENCE.into()]));
    owner.or_else(|| service_account(core, token))
}

/// The caller with this token, which must be one for this server.
pub(crate) fn caller(core: &Core, token: &[u8]) -> Option<Identity> {
    let (identity, audiences) = bearer(core, token)?;
    audiences.iter().any(|audience| audience == AUDIENCE).then_some(identity)
}

/// Finds out who calls: the bearer of a token, the holder of a client certificate, or `system:anonymous`. A credential
/// that is not valid gets 401. Then applies impersonation.
pub(crate) async fn authenticate(
    State(core): State<Arc<Core>>,
    mut request: Request,
    next: Next,
) -> Response {
    let Some(identity) = credential(&core, &request) else {
        audit::refuse_login(&core, &request);
        return Failure::unauthorized().into_response();
    };
    if identity.is_master()
        && let Some(connection) = request.extensions().get::<Connection>()
    {
        connection.trust();
    }
    let caller = identity.clone();
    let identity = match impersonated(&core.access, identity, &mut request) {
        Ok(identity) => identity,
        Err(failure) => {
            audit::refuse(&core, &request, &caller, &failure).await;
            return failure.into_response();
        }
    };
    if identity != caller {
        request.extensions_mut().insert(Impersonator(caller.name));
    }
    request.headers_mut().remove(header::AUTHORIZATION);
    request.extensions_mut().insert(identity);
    request.extensions_mut().insert(External);
    next.run(request).await
}

/// The identity of a request's credential; `None` when the credential is not valid.
fn credential(core: &Core, request: &Request) -> Option<Identity> {
    if let Some(value) = request.headers().get(header::AUTHORIZATION) {
        // Another scheme is a credential that is not known.
        let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
        return scheme
            .eq_ignore_ascii_case("bearer")
            .then(|| caller(core, token.trim().as_bytes()))
            .flatten();
    }
    match request.extensions().get::<PeerCertificate>() {
        Some(certificate) => {
            let (now, connection) =
                (core.ambient.now().as_second(), request.extensions().get::<Connection>());
            core.certificates.identify(&certificate.0, now, connection)
        }
        None => Some(Identity::anonymous()),
    }
}

/// Returns the account of a token and the token's audiences, as long as all objects exist that it is bound to.
fn service_account(core: &Core, token: &[u8]) -> Option<(Identity, Vec<String>)> {
    let now = core.ambient.now();
    let claims = core.signer.verify(token, now.as_second())?;
    let Bound { namespace, serviceaccount, pod, secret, node } = &claims.bound;
    if core.read("namespaces", namespace).is_none_or(|namespace| meta::is_terminating(&namespace)) {
        return None;
    }
    let place = Some(namespace.as_str());
    let objects = [
        ("serviceaccounts", place, Some(serviceaccount)),
        ("pods", place, pod.as_ref()),
        ("secrets", place, secret.as_ref()),
        ("nodes", None, node.as_ref()),
    ];
    for (collection, namespace, reference) in objects {
        let Some(reference) = reference else { continue };
        let object = core.read(collection, &object::key(namespace, &reference.name))?;
        if meta::text(&object, "uid") != reference.uid || is_over(&object, now) {
            return None;
        }
    }
    let mut identity = Identity::service_account(namespace, &serviceaccount.name);
    identity.uid.clone_from(&serviceaccount.uid);
    identity.extra.insert(extra("credential-id"), vec![format!("JTI={}", claims.jti)]);
    for (kind, reference) in [("pod", pod), ("node", node)] {
        if let Some(reference) = reference {
            identity.extra.insert(extra(&format!("{kind}-name")), vec![reference.name.clone()]);
            identity.extra.insert(extra(&format!("{kind}-uid")), vec![reference.uid.clone()]);
        }
    }
    Some((identity, claims.aud))
}

/// Key of what a token says of its bearer.
fn extra(name: &str) -> String {
    format!("authentication.kubernetes.io/{name}")
}

/// Returns true if an object is being deleted and its grace period has ended.
fn is_over(object: &Value, now: jiff::Timestamp) -> bool {
    let end = meta::text(object, "deletionTimestamp");
    !end.is_empty() && end.parse::<jiff::Timestamp>().is_ok_and(|end| end <= now)
}
