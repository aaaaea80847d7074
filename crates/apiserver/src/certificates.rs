//! Users with client certificates, the Kubernetes way: a CertificateSigningRequest of the signer
//! `kubernetes.io/kube-apiserver-client` that someone with the verb `approve` on the signer approves.
//!
//! The object is the record of the user. A certificate is accepted as long as an object holds it, with the name and the
//! groups of the request in that object. Kubernetes cannot take a certificate back; here deleting the object ends it, and
//! closes the connections on which it was shown. No kind of our own is needed: `kubectl get csr` lists the users, `kubectl
//! certificate approve` makes one.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hutch_serve::{ClientRequest, Connection, Connections, IssuedCertificate};
use hutch_store::{Page, Store};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::identity::{AUTHENTICATED, Identity};
use crate::object::Object;

/// API group and resource of the requests.
pub(crate) const GROUP: &str = "certificates.k8s.io";
pub(crate) const REQUESTS: &str = "certificatesigningrequests";
const COLLECTION: &str = "certificatesigningrequests.certificates.k8s.io";
/// The signer whose certificates are accepted.
pub(crate) const SIGNER: &str = "kubernetes.io/kube-apiserver-client";
/// The certificates that are accepted now.
pub(crate) struct Certificates {
    store: Store<Object>,
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
    /// Connections on which it was shown.
    connections: Connections,
}

impl Certificates {
    /// Accepts the certificates in the requests of a store.
    pub(crate) fn new(store: Store<Object>) -> Certificates {
        Certificates { store, current: RwLock::default(), compiling: Mutex::default() }
    }

    /// The identity of a client certificate (DER) that the listener has verified.
    pub(crate) fn identify(&self, der: &[u8], now: i64, connection: Option<&Connection>) -> Option<Identity> {
        let index = self.index();
        let fingerprint: [u8; 32] = Sha256::digest(der).into();
        let holder = index.holders.get(&fingerprint).filter(|holder| now < holder.end)?;
        if let Some(connection) = connection {
            connection.closed_by(&holder.connections);
            // It may have been revoked since the index was read: then its connections were closed without this one.
            if !self.index().holders.contains_key(&fingerprint) {
                return None;
            }
        }
        Some(holder.identity.clone())
    }

    /// Brings the accepted certificates up to date with the stored requests.
    pub(crate) fn refresh(&self) {
        self.index();
    }

    /// Reads the objects anew if they have changed, and closes the connections of certificates that are no longer accepted.
    fn index(&self) -> Arc<Index> {
        let current = || self.current.read().unwrap_or_else(PoisonError::into_inner).clone();
        let (index, revision) = (current(), self.store.changed(&[COLLECTION]));
        if index.revision == revision {
            return index;
        }
        let _compiling = self.compiling.lock().unwrap_or_else(PoisonError::into_inner);
        let (before, revision) = (current(), self.store.changed(&[COLLECTION]));
        if before.revision == revision {
            return before;
        }
        let index = Arc::new(Index::read(&self.store, &before, revision));
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
        let certificate = IssuedCertificate::from_pem(&pem).ok()?;
        // An object that holds the certificate of another request must not give that one its groups.
        let request = request(object).ok().filter(|request| request.has_key_of(&certificate))?;
        let fingerprint: [u8; 32] = Sha256::digest(&certificate.der).into();
        let mut groups = request.groups;
        groups.push(AUTHENTICATED.into());
        let hex: String = fingerprint.iter().map(|byte| format!("{byte:02x}")).collect();
        let extra = BTreeMap::from([(
            "authentication.kubernetes.io/credential-id".to_owned(),
            vec![format!("X509SHA256={hex}")],
        )]);
        let identity = Identity { name: request.name, uid: String::new(), groups, extra };
        let holder = Holder { identity, end: certificate.end, connections: Connections::default() };
        Some((fingerprint, holder))
    }
}

/// The request for a certificate in an object.
pub(crate) fn request(object: &Value) -> Result<ClientRequest, String> {
    let text = object["spec"]["request"].as_str().unwrap_or_default();
    let pem = STANDARD.decode(text).map_err(|error| error.to_string())?;
    ClientRequest::from_pem(&pem).map_err(|error| error.to_string())
}
