//! Users with client certificates, the Kubernetes way: a CertificateSigningRequest of the signer
//! `kubernetes.io/kube-apiserver-client` that someone with the verb `approve` on the signer approves.
//!
//! The object is the record of the user. A certificate is accepted as long as an object holds it, with the name and the
//! groups of the request in that object. Kubernetes cannot take a certificate back; here deleting the object ends it, and
//! closes the connections on which it was shown. No kind of our own is needed: `kubectl get csr` lists the users, `kubectl
//! certificate approve` makes one.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hutch_serve::{ClientRequest, Connection, Connections};
use hutch_store::{Page, Store};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;

use super::{AUTHENTICATED, Action, MASTERS, decide};
use crate::admission::default;
use crate::call::Call;
use crate::failure::{Cause, Failure};
use crate::object::Object;
use crate::{Identity, meta};

/// API group and resource of the requests.
pub(crate) const GROUP: &str = "certificates.k8s.io";
pub(crate) const REQUESTS: &str = "certificatesigningrequests";
const COLLECTION: &str = "certificatesigningrequests.certificates.k8s.io";
/// The signer whose certificates are accepted.
const SIGNER: &str = "kubernetes.io/kube-apiserver-client";
/// Uses that a certificate of this signer may have.
const USAGES: [&str; 3] = ["client auth", "digital signature", "key encipherment"];
/// Shortest life of a certificate, in seconds.
const SECONDS_MIN: i64 = 600;
/// Life of a certificate by default and at most, in seconds: a year.
const SECONDS_MAX: i64 = 365 * 24 * 3600;

/// The certificates that are accepted now.
#[derive(Debug, Default)]
pub(crate) struct Certificates {
    current: RwLock<Arc<Index>>,
    compiling: Mutex<()>,
}

/// The accepted certificates as of one revision, by fingerprint.
#[derive(Debug, Default)]
struct Index {
    revision: u64,
    holders: HashMap<[u8; 32], Arc<Holder>>,
}

/// User of a certificate.
#[derive(Debug)]
struct Holder {
    identity: Identity,
    /// Unix second of its end.
    end: i64,
    /// Where it was shown.
    connections: Connections,
}

impl Certificates {
    /// The identity of a client certificate (DER) that the listener has verified.
    pub(crate) fn identify(
        &self,
        store: &Store<Object>,
        der: &[u8],
        now: i64,
        connection: Option<&Connection>,
    ) -> Option<Identity> {
        let index = self.refresh(store);
        let fingerprint: [u8; 32] = Sha256::digest(der).into();
        let holder = index.holders.get(&fingerprint).filter(|holder| now < holder.end)?;
        if let Some(connection) = connection {
            connection.closed_by(&holder.connections);
            // It may have been revoked since the index was read: then its connections were closed without this one.
            if !self.refresh(store).holders.contains_key(&fingerprint) {
                return None;
            }
        }
        Some(holder.identity.clone())
    }

    /// Reads the objects anew if they have changed, and closes the connections of certificates that are no longer accepted.
    fn refresh(&self, store: &Store<Object>) -> Arc<Index> {
        let current = || self.current.read().unwrap_or_else(PoisonError::into_inner).clone();
        let (index, revision) = (current(), store.changed(&[COLLECTION]));
        if index.revision == revision {
            return index;
        }
        let _compiling = self.compiling.lock().unwrap_or_else(PoisonError::into_inner);
        let (before, revision) = (current(), store.changed(&[COLLECTION]));
        if before.revision == revision {
            return before;
        }
        let index = Arc::new(Index::read(store, &before, revision));
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = index.clone();
        for (fingerprint, holder) in &before.holders {
            if !index.holders.contains_key(fingerprint) {
                holder.connections.close();
            }
        }
        index
    }
}

impl Index {
    fn read(store: &Store<Object>, before: &Index, revision: u64) -> Index {
        let entries = store.list(COLLECTION, Page::default()).entries;
        let mut holders = HashMap::new();
        for entry in entries {
            let Some((fingerprint, holder)) = Holder::read(&entry.value.value()) else { continue };
            let known = before.holders.get(&fingerprint).filter(|known| known.identity == holder.identity);
            holders.insert(fingerprint, known.cloned().unwrap_or_else(|| Arc::new(holder)));
        }
        Index { revision, holders }
    }
}

impl Holder {
    /// Returns the holder of the certificate in an object, if it has one.
    fn read(object: &Value) -> Option<([u8; 32], Holder)> {
        if object["spec"]["signerName"] != SIGNER {
            return None;
        }
        let pem = STANDARD.decode(object["status"]["certificate"].as_str()?).ok()?;
        let der = CertificateDer::from_pem_slice(&pem).ok()?;
        let (_, certificate) = X509Certificate::from_der(&der).ok()?;
        let request = request(object).ok()?;
        let fingerprint: [u8; 32] = Sha256::digest(&der).into();
        let mut groups = request.groups;
        groups.push(AUTHENTICATED.into());
        let hex: String = fingerprint.iter().map(|byte| format!("{byte:02x}")).collect();
        let extra = BTreeMap::from([(
            "authentication.kubernetes.io/credential-id".to_owned(),
            vec![format!("X509SHA256={hex}")],
        )]);
        let identity = Identity { name: request.name, uid: String::new(), groups, extra };
        let end = certificate.validity.not_after.timestamp();
        Some((fingerprint, Holder { identity, end, connections: Connections::default() }))
    }
}

/// The request for a certificate in an object.
fn request(object: &Value) -> Result<ClientRequest, String> {
    let text = object["spec"]["request"].as_str().unwrap_or_default();
    let pem = STANDARD.decode(text).map_err(|error| error.to_string())?;
    ClientRequest::from_pem(&pem).map_err(|error| error.to_string())
}

/// Completes and checks a new object.
pub(crate) fn create(call: &Call, object: &mut Value) -> Result<(), Failure> {
    let Identity { name, uid, groups, extra } = &call.identity;
    for (field, value) in
        [("username", json!(name)), ("uid", json!(uid)), ("groups", json!(groups)), ("extra", json!(extra))]
    {
        let empty = value.as_str() == Some("") || value.as_object().is_some_and(serde_json::Map::is_empty);
        if let Some(spec) = object["spec"].as_object_mut() {
            if empty {
                spec.remove(field)
            } else {
                spec.insert(field.into(), value)
            };
        }
    }
    object["status"] = json!({});
    let own = meta::text(object, "name");
    let (request, causes) = check(object);
    if !causes.is_empty() {
        return Err(Failure::invalid(call.kind(), own, causes));
    }
    let masters = request.is_some_and(|request| request.groups.iter().any(|group| group == MASTERS));
    if masters && object["spec"]["signerName"] == SIGNER {
        let why = format!("use of {SIGNER} signer with system:masters group is not allowed");
        return Err(Failure::forbidden(call.kind(), own, &why, Vec::new()));
    }
    Ok(())
}

fn check(object: &Value) -> (Option<ClientRequest>, Vec<Cause>) {
    let (spec, mut causes) = (&object["spec"], Vec::new());
    let request = request(object);
    if let Err(error) = &request {
        causes.push(Cause::shown("spec.request", "\"\"", error));
    }
    let usages = spec["usages"].as_array().map_or(&[][..], Vec::as_slice);
    if usages.is_empty() {
        causes.push(Cause::required("spec.usages", ""));
    }
    let signer = spec["signerName"].as_str().unwrap_or_default();
    if signer.is_empty() {
        causes.push(Cause::required("spec.signerName", ""));
    }
    if signer == SIGNER {
        for (index, usage) in usages.iter().enumerate() {
            if !USAGES.iter().any(|own| usage == own) {
                let why = format!("the signer {SIGNER} allows {}", USAGES.join(", "));
                causes.push(Cause::invalid(format!("spec.usages[{index}]"), usage, &why));
            }
        }
    }
    if let Some(seconds) = spec["expirationSeconds"].as_i64().filter(|seconds| *seconds < SECONDS_MIN) {
        let why = "may not specify a duration less than 600 seconds (10 minutes)";
        causes.push(Cause::invalid("spec.expirationSeconds", &seconds.into(), why));
    }
    (request.ok(), causes)
}

/// Checks that the caller may approve or deny requests for the signer of this one.
pub(crate) fn may_approve(call: &Call, object: &Value) -> Result<(), Failure> {
    let signer = object["spec"]["signerName"].as_str().unwrap_or_default();
    let domain = signer.split('/').next().unwrap_or_default();
    let all = format!("{domain}/*");
    let allowed = [signer, &all].into_iter().any(|name| {
        decide(&call.core, &call.identity, &Action::on("approve", GROUP, "signers", name)).allowed
    });
    if allowed {
        return Ok(());
    }
    let why = format!("user not permitted to approve requests with signerName {signer:?}");
    Err(Failure::forbidden(call.kind(), &call.name, &why, Vec::new()))
}

/// The next state of an object from the conditions that a caller sets. An approved request for the signer of this server is
/// signed at once.
pub(crate) fn decided(call: &Call, current: &Value, wanted: &Value) -> Result<Value, Failure> {
    let now = meta::seconds(call.core.ambient.now());
    let mut conditions = wanted["status"]["conditions"].as_array().cloned().unwrap_or_default();
    for condition in &mut conditions {
        default(condition, "status", "True");
        default(condition, "lastUpdateTime", now.as_str());
        default(condition, "lastTransitionTime", now.as_str());
    }
    let has = |conditions: &[Value], kind: &str| conditions.iter().any(|condition| condition["type"] == kind);
    let before = current["status"]["conditions"].as_array().map_or(&[][..], Vec::as_slice);
    let mut causes = Vec::new();
    for kind in ["Approved", "Denied"] {
        if has(before, kind) && !has(&conditions, kind) {
            let why = format!("updates may not remove a condition of type {kind:?}");
            causes.push(Cause::forbidden("status.conditions", &why));
        }
    }
    if has(&conditions, "Approved") && has(&conditions, "Denied") {
        let why = "Approved and Denied conditions are mutually exclusive";
        causes.push(Cause::invalid("status.conditions", &"Denied".into(), why));
    }
    if !causes.is_empty() {
        return Err(Failure::invalid(call.kind(), &call.name, causes));
    }
    let mut next = current.clone();
    meta::metadata(&mut next).remove("resourceVersion");
    let approved = has(&conditions, "Approved");
    next["status"]["conditions"] = conditions.into();
    let signed = !next["status"]["certificate"].is_null();
    if approved && !signed && next["spec"]["signerName"] == SIGNER {
        next["status"]["certificate"] = sign(call, &next)?.into();
    }
    Ok(next)
}

fn sign(call: &Call, object: &Value) -> Result<String, Failure> {
    let authority = call.core.authority.as_ref();
    let authority =
        authority.ok_or_else(|| Failure::unavailable("this server has no certificate authority"))?;
    let request = request(object).map_err(Failure::internal)?;
    let seconds = object["spec"]["expirationSeconds"].as_i64().unwrap_or(SECONDS_MAX).min(SECONDS_MAX);
    let life = Duration::from_secs(seconds.max(SECONDS_MIN).unsigned_abs());
    let signed = authority.sign_request(&request, life).map_err(|error| {
        tracing::error!(%error, request = %call.name, "failed to sign a client certificate");
        Failure::internal("the certificate could not be signed")
    })?;
    Ok(STANDARD.encode(signed.certificate_pem))
}

/// Reads the certificates anew after a change of a request.
pub(crate) fn changed(call: &Call) {
    if call.resource.is(GROUP, REQUESTS) {
        call.core.certificates.refresh(&call.core.store);
    }
}
