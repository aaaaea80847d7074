//! Puts values in the place of placeholders in the head of a request.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use http::HeaderValue;
use http::header::{self, HeaderMap, HeaderName};
use http::request::Parts;
use http::uri::PathAndQuery;
use hutch_policy::{Destination, Level, Moment, PLACE, may_use};
use zeroize::Zeroizing;

use super::encode::{forms, percent, without_percent};
use super::redact::Pair;
use super::sign::Signing;
use super::{Issued, Set};
use crate::refusal::Reason;

/// Head of a request with its values, and what its answer must not contain.
#[derive(Default)]
pub(crate) struct Placed {
    pub(crate) headers: Option<HeaderMap>,
    pub(crate) target: Option<PathAndQuery>,
    pub(super) pairs: Vec<Pair>,
    /// Credentials that may stand in the body.
    pub(super) in_body: Vec<Issued>,
    /// It is signed, and has no secret: its answer may be encoded, and a part.
    pub(super) only_signed: bool,
    /// Signature to be made for AWS.
    pub(super) signing: Option<Box<Signing>>,
    /// Placeholders that end the request where they stand in its body, and the names of their credentials.
    pub(crate) foreign: Vec<(String, String)>,
    /// Names of credentials whose values stand in the request.
    pub(crate) used: BTreeSet<String>,
}

/// Headers by which clients of gRPC and Connect allow a server to compress messages: no value could be found in them.
const OFFERS_OF_COMPRESSION: [&str; 2] = ["grpc-accept-encoding", "connect-accept-encoding"];

/// Credentials that one request may use, and those that it may not, with the reason.
pub(super) struct Judged<'a> {
    open: Vec<&'a Issued>,
    closed: Vec<(&'a Issued, &'static str)>,
    /// Names of those whose values were placed.
    used: RefCell<BTreeSet<String>>,
}

/// Returns the head of a request that is allowed, with the values that it may have.
///
/// # Errors
/// It has a placeholder where the value may not stand.
pub(crate) fn place(
    (set, levels): (&Set, &[Arc<Level>]),
    parts: &Parts,
    destination: &Destination,
    request: &hutch_policy::Request<'_>,
    moment: &Moment<'_>,
) -> Result<Placed, Reason> {
    if set.is_empty() {
        return Ok(Placed::default());
    }
    let mut judged = Judged { open: Vec::new(), closed: Vec::new(), used: RefCell::default() };
    for one in &set.issued {
        let why = one.closed(destination, request.path, request.tls, moment.seconds);
        let why = why.or_else(|| {
            let usable = may_use(levels, &one.name, destination, request, moment);
            (!usable).then_some("a policy excludes it from this request")
        });
        match why.or(request.websocket.then_some("a WebSocket cannot have it")) {
            None => judged.open.push(one),
            Some(why) => judged.closed.push((one, why)),
        }
    }
    let mut placed = Placed::default();
    judged.refuse(set, parts.uri.path().as_bytes(), "a path cannot have it")?;
    placed.signing = Signing::find(set, &judged, (parts, destination))?.map(Box::new);
    placed.target = judged.target(set, parts)?;
    placed.headers = judged.headers(set, parts, &mut placed.pairs)?;
    placed.used = judged.used.take();
    if set.redacts(destination) && request.tls {
        let headers = placed.headers.get_or_insert_with(|| parts.headers.clone());
        headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        OFFERS_OF_COMPRESSION.iter().for_each(|name| drop(headers.remove(*name)));
        placed.only_signed = placed.signing.is_some() && set.is_of_aws(destination);
        if !placed.only_signed {
            // They could split a value.
            headers.remove(header::RANGE);
            headers.remove(header::IF_RANGE);
        }
        set.redacted(destination)
            .for_each(|one| placed.pairs.extend(forms(one.value.expose(), &one.placeholder)));
    }
    if set.redacts(destination) && request.websocket {
        let why = "the host has or had a credential, and frames of a WebSocket cannot be redacted";
        return Err(Reason::Ambiguous(why.to_owned()));
    }
    placed.in_body = judged.open.iter().filter(|one| one.binding.body).map(|one| (*one).clone()).collect();
    // One that is bound to this host but stays in the body arrives as a placeholder, which is worth nothing.
    let foreign = set.issued.iter().filter(|one| !one.covers(destination));
    placed.foreign = foreign.map(|one| (one.placeholder.clone(), one.name.clone())).collect();
    Ok(placed)
}

pub(super) fn refusal(one: &Issued, why: &str) -> Reason {
    Reason::Credential(one.name.clone(), why.to_owned())
}

impl Judged<'_> {
    /// Refuses a text that has any placeholder, as sent or with percent codes.
    fn refuse(&self, set: &Set, text: &[u8], why: &str) -> Result<(), Reason> {
        let found = set.found_in(text).or_else(|| set.found_in(&without_percent(text)));
        found.map_or(Ok(()), |one| Err(refusal(one, self.why(one).unwrap_or(why))))
    }

    /// Returns why a credential may not be used.
    pub(super) fn why(&self, one: &Issued) -> Option<&'static str> {
        self.closed.iter().find(|(closed, _)| closed.name == one.name).map(|(_, why)| *why)
    }

    /// Returns a text with its values in this form. `header` is where it stands.
    fn replace(
        &self,
        set: &Set,
        text: &str,
        header: Option<&HeaderName>,
        form: impl Fn(&str) -> String,
    ) -> Result<Option<Zeroizing<String>>, Reason> {
        let mut replaced: Option<Zeroizing<String>> = None;
        while let Some(one) = set.found_in(replaced.as_deref().map_or(text, String::as_str).as_bytes()) {
            if let Some(why) = self.why(one) {
                return Err(refusal(one, why));
            }
            if one.binding.aws.is_some() {
                return Err(refusal(one, "it only signs requests for AWS"));
            }
            let bound = one.binding.header.as_deref();
            if bound
                .is_some_and(|bound| header.is_none_or(|header| !header.as_str().eq_ignore_ascii_case(bound)))
            {
                return Err(refusal(one, "it is bound to another place of the request"));
            }
            let before = replaced.as_deref().map_or(text, String::as_str);
            let value = Zeroizing::new(form(one.value.expose()));
            if value.contains(&one.placeholder) {
                return Err(refusal(one, "its value has the placeholder in it"));
            }
            replaced = Some(Zeroizing::new(before.replace(&one.placeholder, &value)));
            self.used.borrow_mut().insert(one.name.clone());
        }
        Ok(replaced)
    }

    /// Returns the path and the query with their values, if there are any.
    fn target(&self, set: &Set, parts: &Parts) -> Result<Option<PathAndQuery>, Reason> {
        let Some(query) = parts.uri.query() else { return Ok(None) };
        let Some(found) = self.replace(set, query, None, percent)? else {
            // A client that encodes letters hides what it sends.
            return self.refuse(set, query.as_bytes(), "it is encoded").map(|()| None);
        };
        let target = Zeroizing::new(format!("{}?{}", parts.uri.path(), *found));
        let invalid = |error: http::uri::InvalidUri| Reason::Ambiguous(error.to_string());
        target.parse().map(Some).map_err(invalid)
    }

    /// Returns the headers with their values, if there are any.
    fn headers(&self, set: &Set, parts: &Parts, pairs: &mut Vec<Pair>) -> Result<Option<HeaderMap>, Reason> {
        let mut headers: Option<HeaderMap> = None;
        for name in parts.headers.keys() {
            // It arrives in small letters.
            if let Some(one) = set.named_in(name.as_str()) {
                return Err(refusal(one, self.why(one).unwrap_or("the name of a header cannot have it")));
            }
            let values = parts.headers.get_all(name);
            let found = values.iter().map(|value| self.value(set, name, value, pairs));
            let found: Vec<Option<HeaderValue>> = found.collect::<Result<_, Reason>>()?;
            if found.iter().all(Option::is_none) {
                continue;
            }
            let headers = headers.get_or_insert_with(|| parts.headers.clone());
            headers.remove(name);
            for (old, new) in values.iter().zip(found) {
                headers.append(name, new.unwrap_or_else(|| old.clone()));
            }
        }
        for one in &self.open {
            let Some(name) = one.binding.header.as_ref().and_then(|name| name.parse::<HeaderName>().ok())
            else {
                continue;
            };
            if !parts.headers.contains_key(&name) {
                let text = Zeroizing::new(one.binding.format().replace(PLACE, one.value.expose()));
                headers.get_or_insert_with(|| parts.headers.clone()).insert(name, secret(one, &text)?);
                self.used.borrow_mut().insert(one.name.clone());
            }
        }
        Ok(headers)
    }

    fn value(
        &self,
        set: &Set,
        name: &HeaderName,
        value: &HeaderValue,
        pairs: &mut Vec<Pair>,
    ) -> Result<Option<HeaderValue>, Reason> {
        let Ok(text) = value.to_str() else {
            return self.refuse(set, value.as_bytes(), "the header is not text").map(|()| None);
        };
        let basic = text.split_once(' ').filter(|(scheme, _)| scheme.eq_ignore_ascii_case("basic"));
        let decoded = basic.and_then(|(_, encoded)| in_base64(encoded.trim()));
        if let Some(decoded) = decoded.and_then(|bytes| String::from_utf8(bytes).ok())
            && let Some(found) = self.replace(set, &decoded, Some(name), str::to_owned)?
        {
            let encoded = Zeroizing::new(STANDARD.encode(found.as_bytes()));
            let placeholder = basic.map_or(text, |(_, encoded)| encoded.trim());
            pairs.push(pair(&encoded, placeholder));
            let text = Zeroizing::new(format!("Basic {}", *encoded));
            return sensitive(&text)
                .map(Some)
                .ok_or_else(|| Reason::Ambiguous("its header Basic".to_owned()));
        }
        let Some(found) = self.replace(set, text, Some(name), str::to_owned)? else { return Ok(None) };
        let invalid =
            || Reason::Ambiguous(format!("its header {name} cannot have the value of a credential"));
        sensitive(&found).map(Some).ok_or_else(invalid)
    }
}

/// Returns what a text in base64 says, with or without padding, also with the letters of URLs.
fn in_base64(text: &str) -> Option<Vec<u8>> {
    let text = Zeroizing::new(text.trim_end_matches('=').replace('-', "+").replace('_', "/"));
    STANDARD_NO_PAD.decode(text.as_bytes()).ok()
}

fn secret(one: &Issued, text: &str) -> Result<HeaderValue, Reason> {
    sensitive(text).ok_or_else(|| refusal(one, "its value cannot stand in a header"))
}

pub(super) fn sensitive(text: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

fn pair(value: &str, placeholder: &str) -> Pair {
    Pair { value: Zeroizing::new(value.as_bytes().to_vec()), placeholder: placeholder.as_bytes().to_vec() }
}
