//! Secrets of type `kubernetes.io/service-account-token`: they hold a token of their ServiceAccount, the server's
//! certificate authority and the namespace. They are filled as they are written, so that no client has to wait.
//!
//! The token does not expire. It ends with the Secret, and the Secret ends with the ServiceAccount.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hutch_store::Page;
use serde_json::Value;

use super::map;
use crate::core::Core;
use crate::failure::{Cause, Failure};
use crate::kinds::Kind;
use crate::service_token::{AUDIENCE, Bound, Claims, Reference};
use crate::{identity, meta, object};

const TYPE: &str = "kubernetes.io/service-account-token";
/// Annotations that name the ServiceAccount.
const NAME: &str = "kubernetes.io/service-account.name";
const UID: &str = "kubernetes.io/service-account.uid";

fn annotation<'a>(secret: &'a Value, name: &str) -> &'a str {
    secret["metadata"]["annotations"][name].as_str().unwrap_or_default()
}

/// Fills in what is missing. Secrets of other types stay as they are.
pub(super) fn fill(core: &Core, kind: &Kind, secret: &mut Value) -> Result<(), Failure> {
    if secret["type"] != TYPE {
        return Ok(());
    }
    let (namespace, own) =
        (meta::text(secret, "namespace").to_owned(), meta::text(secret, "name").to_owned());
    let name = annotation(secret, NAME).to_owned();
    if name.is_empty() {
        let cause = Cause::required(format!("metadata.annotations[{NAME}]"), "");
        return Err(Failure::invalid(kind, &own, vec![cause]));
    }
    let accounts = Kind { plural: "serviceaccounts".into(), ..Kind::default() };
    let account = core.read("serviceaccounts", &object::key(Some(&namespace), &name));
    let account = account.ok_or_else(|| Failure::not_found(&accounts, &name))?;
    let uid = meta::text(&account, "uid").to_owned();
    if !annotation(secret, UID).is_empty() && annotation(secret, UID) != uid {
        let why = format!("the service account {name:?} has another UID: create another secret");
        return Err(Failure::forbidden(kind, &own, &why, Vec::new()));
    }
    map(&mut secret["metadata"], "annotations").insert(UID.into(), uid.clone().into());
    let token = if secret["data"]["token"].as_str().is_none_or(str::is_empty) {
        Some(token(core, secret, &namespace, Reference { name, uid })?)
    } else {
        None
    };
    let data = map(secret, "data");
    if let Some(token) = token {
        data.insert("token".into(), STANDARD.encode(token).into());
    }
    data.entry("namespace").or_insert_with(|| STANDARD.encode(&namespace).into());
    if let Some(authority) = &core.authority {
        data.insert("ca.crt".into(), STANDARD.encode(authority.certificate_pem()).into());
    }
    Ok(())
}

fn token(core: &Core, secret: &Value, namespace: &str, account: Reference) -> Result<String, Failure> {
    let now = core.ambient.now().as_second();
    let claims = Claims {
        aud: vec![AUDIENCE.into()],
        exp: None,
        iat: now,
        iss: AUDIENCE.into(),
        jti: core.ambient.uuid().to_string(),
        nbf: now,
        sub: identity::service_account_name(namespace, &account.name),
        bound: Bound {
            namespace: namespace.to_owned(),
            serviceaccount: account,
            secret: Some(Reference {
                name: meta::text(secret, "name").to_owned(),
                uid: meta::text(secret, "uid").to_owned(),
            }),
            pod: None,
            node: None,
        },
    };
    core.signer
        .sign(&claims)
        .ok_or_else(|| Failure::internal("the token would be longer than a server accepts"))
}

/// Deletes the token Secrets of a ServiceAccount that is gone.
pub(crate) async fn collect(core: &Core, account: &Value) {
    let prefix = format!("{}/", meta::text(account, "namespace"));
    let page = Page { prefix: &prefix, ..Page::default() };
    for entry in core.store.list("secrets", page).entries {
        let secret = entry.value.value();
        if secret["type"] != TYPE || annotation(&secret, UID) != meta::text(account, "uid") {
            continue;
        }
        if let Err(error) = core.store.delete("secrets", &entry.name, entry.revision, secret).await {
            tracing::warn!(%error, secret = %entry.name, "failed to delete a token secret with its service account");
        }
    }
}
