//! Requests for AWS: a program signs with placeholders, and the proxy signs again what it sends.

use std::sync::Arc;

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Method, Uri};
use hutch_policy::Destination;

use super::body::whole;
use super::encode::{forms, without_percent};
use super::place::{Judged, Placed, refusal, sensitive};
use super::sigv4::{CONTENT, FAMILY, Outgoing, Signed, hash};
use super::{Issued, Set, contains};
use crate::refusal::Reason;
use crate::room::{Room, Sent};

/// Maximum bytes of a body that is read for its hash.
const BODY: usize = 10 << 20;
/// Contents of the header with the hash of a body that is not a part of the signature.
const UNSIGNED: [&str; 2] = ["UNSIGNED-PAYLOAD", "STREAMING-UNSIGNED-PAYLOAD-TRAILER"];

/// A signature to be made.
pub(super) struct Signing {
    /// Has the secret access key.
    key: Issued,
    /// Has the access key id.
    id: Issued,
    signed: Signed,
    /// Hash of the body, or what stands for one; `None` until the body was read.
    content: Option<String>,
}

impl Signing {
    /// Returns the signature to be made if the request is signed with placeholders.
    ///
    /// # Errors
    /// The request may not be signed with the key, or is signed in another way.
    pub(super) fn find(
        set: &Set,
        judged: &Judged<'_>,
        (parts, destination): (&Parts, &Destination),
    ) -> Result<Option<Signing>, Reason> {
        for key in &set.issued {
            let Some(aws) = &key.binding.aws else { continue };
            let Some(id) = set.issued.iter().find(|one| one.name == aws.access_key_id) else { continue };
            let query = parts.uri.query().unwrap_or_default();
            if contains(&without_percent(query.as_bytes()), &id.placeholder) {
                let why =
                    "an URL that is signed in advance is not signed again; use the header Authorization";
                return Err(refusal(key, judged.why(key).unwrap_or(why)));
            }
            let uses = |value: &&HeaderValue| {
                value.as_bytes().starts_with(FAMILY.as_bytes()) && contains(value.as_bytes(), &id.placeholder)
            };
            let values = parts.headers.get_all(header::AUTHORIZATION);
            let Some(value) = values.iter().find(uses) else { continue };
            if let Some(why) = judged.why(key) {
                return Err(refusal(key, why));
            }
            if values.iter().nth(1).is_some() {
                return Err(refusal(key, "the request has two headers Authorization"));
            }
            let text = value.to_str().map_err(|_| refusal(key, "the header is not text"))?;
            let signed = Signed::read(text).map_err(|why| refusal(key, why))?;
            if signed.access_key_id != id.placeholder {
                return Err(refusal(key, "its access key id is another one"));
            }
            if parts.headers.contains_key(header::RANGE) && !set.is_of_aws(destination) {
                let why =
                    "a part of an object needs a host whose credentials all belong to a key of AWS, by `aws`";
                return Err(refusal(key, why));
            }
            let content = content(&parts.headers).map_err(|why| refusal(key, why))?.map(str::to_owned);
            return Ok(Some(Signing { key: key.clone(), id: id.clone(), signed, content }));
        }
        Ok(None)
    }
}

/// Returns the content of the header with the hash of the body, if the body is not to be read for it.
fn content(headers: &HeaderMap) -> Result<Option<&str>, &'static str> {
    let mut values = headers.get_all(CONTENT).iter().map(|value| value.to_str().unwrap_or("-"));
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) if UNSIGNED.contains(&value) => Ok(Some(value)),
        (Some(value), None) if value.bytes().all(|byte| byte.is_ascii_hexdigit()) => Ok(None),
        _ => Err("its body has signatures of its own, which are not made again"),
    }
}

/// Reads the body of a request that is to be signed, and returns it.
///
/// # Errors
/// It is too long, or cannot be read.
pub(super) async fn hashed(placed: &mut Placed, body: Sent, room: &Arc<Room>) -> Result<Sent, Reason> {
    let Some(signing) = &mut placed.signing else { return Ok(body) };
    if signing.content.is_some() {
        return Ok(body);
    }
    if body.is_empty() {
        signing.content = Some(hash(&[]));
        return Ok(body);
    }
    let late = || refusal(&signing.key, "the body to sign does not arrive in time");
    let held = whole(body, BODY, room, late).await?;
    let why = "the body to sign is longer than 10 MiB; use UNSIGNED-PAYLOAD";
    let held = held.ok_or_else(|| refusal(&signing.key, why))?;
    signing.content = Some(hash(&held.bytes));
    Ok(Sent::Whole(held, None))
}

impl Placed {
    /// Signs a request as it is sent, if that is to be done.
    ///
    /// # Errors
    /// It cannot be signed.
    pub(crate) fn sign(&mut self, method: &Method, uri: &Uri, headers: &mut HeaderMap) -> Result<(), Reason> {
        let Some(signing) = self.signing.take() else { return Ok(()) };
        let Signing { key, id, signed, content } = *signing;
        let content = content.ok_or_else(|| refusal(&key, "the hash of its body"))?;
        self.used.extend([key.name.clone(), id.name.clone()]);
        if headers.contains_key(CONTENT) {
            let invalid = |_| refusal(&key, "the hash of its body");
            headers.insert(HeaderName::from_static(CONTENT), content.parse().map_err(invalid)?);
        }
        let request = Outgoing {
            method: method.as_str(),
            host: uri.authority().map_or("", |authority| authority.as_str()),
            path: uri.path(),
            query: uri.query().unwrap_or_default(),
            headers,
            content: &content,
        };
        let made = signed.sign((id.value.expose(), key.value.expose()), &request);
        let (header, signature) = made.map_err(|why| refusal(&key, why))?;
        let value = sensitive(&header).ok_or_else(|| refusal(&key, "its value cannot stand in a header"))?;
        headers.insert(header::AUTHORIZATION, value);
        // The same request could be sent again with it.
        self.pairs.extend(forms(&signature, &signed.signature));
        Ok(())
    }
}
