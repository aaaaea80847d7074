//! Hostile tests of what reads the bytes of programs and of servers.

use std::io::Write;

use bytes::Bytes;
use http::header::HeaderMap;
use hutch_policy::Binding;

use super::body::fill;
use super::encode::{escapes, forms, json, percent};
use super::packed::{Form, Packed, form};
use super::redact::{Pair, Redactor};
use super::sigv4::{Outgoing, Signed, TIME};
use super::{Issued, Secret, contains};

/// Values: one that is a token, and ones with what escapes consist of.
const VALUES: [&str; 3] = ["s%cr/t+t0ken", "a \"real\" value & more", r"\u0041%25&amp;\\"];
const PLACEHOLDER: &str = "ghp_placeholder";

/// Redacts any text, of which the first bytes say where its pieces end. Pieces are redacted as the whole is, nothing is left
/// of a value, and an escape is within the text.
pub(crate) fn redaction(bytes: &[u8]) {
    let (cuts, text) = bytes.split_at(bytes.len().min(8));
    for at in 0..text.len() {
        for escape in escapes(&text[at..]) {
            assert!(escape.length <= text.len() - at && !escape.bytes().is_empty());
        }
    }
    let pairs = |values: &[&str]| -> Vec<Pair> {
        values.iter().flat_map(|value| forms(value, PLACEHOLDER)).collect()
    };
    for values in [&VALUES[..1], &VALUES[1..], &VALUES] {
        let whole = Redactor::new(pairs(values));
        let expected = whole.whole(text).unwrap_or_else(|| text.to_vec());
        let left = values.iter().find(|value| contains(&expected, value));
        assert!(left.is_none(), "{left:?} in {:?}", String::from_utf8_lossy(&expected));
        let (mut redactor, mut rest, mut out) = (Redactor::new(pairs(values)), text, Vec::new());
        for cut in cuts.iter().cycle().map(|cut| usize::from(*cut % 64) + 1) {
            if rest.is_empty() {
                break;
            }
            let (piece, after) = rest.split_at(cut.min(rest.len()));
            out.extend(redactor.push(piece));
            rest = after;
        }
        out.extend(redactor.finish());
        assert_eq!(String::from_utf8_lossy(&out), String::from_utf8_lossy(&expected));
    }
}

/// Puts values into any body. JSON stays JSON, of which only strings change.
pub(crate) fn placing(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    for value in VALUES {
        let one = Issued {
            name: "a".into(),
            placeholder: PLACEHOLDER.into(),
            value: Secret::new(value.into()),
            binding: Binding::default(),
            bounds: None,
            ends: None,
            missing: false,
        };
        let form = fill(text, std::slice::from_ref(&one), percent);
        assert!(!form.contains(PLACEHOLDER) && form.matches('&').count() == text.matches('&').count());
        let filled = fill(text, std::slice::from_ref(&one), json);
        if let Ok(before) = serde_json::from_str::<serde_json::Value>(text) {
            let after: serde_json::Value = serde_json::from_str(&filled).expect("it stays JSON");
            let plain = before.to_string().replace(PLACEHOLDER, &json(value));
            let after = after.to_string();
            // A placeholder in escapes stays one.
            assert!(after == plain || text.contains('\\'), "{text}");
        }
    }
}

/// Reads any header of a signed request. What is made from it is read as the same, and its key is another one.
pub(crate) fn signature(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(signed) = Signed::read(text) else { return };
    assert!(!signed.access_key_id.is_empty() && signed.signature.len() == 64);
    let headers: HeaderMap =
        [(http::HeaderName::from_static(TIME), "20150830T123600Z".parse().expect("a value"))]
            .into_iter()
            .collect();
    let (path, query) = text.split_once('?').unwrap_or((text, text));
    let request = Outgoing { method: "GET", host: "a.example", path, query, headers: &headers, content: "" };
    let Ok((header, made)) = signed.sign(("AKIDEXAMPLE", "secret"), &request) else { return };
    let read = Signed::read(&header).expect("it is a header");
    assert_eq!((read.access_key_id.as_str(), read.signature.as_str()), ("AKIDEXAMPLE", made.as_str()));
    assert!(http::HeaderValue::from_str(&header).is_ok());
}

/// Passes any body in pieces of several lengths. What passes is a beginning of it, in which no value is.
pub(crate) fn packed(bytes: &[u8]) {
    let Form::Packed(compression) = form(bytes) else { return };
    for size in [1, 7, 4096] {
        let redactor = Redactor::new(forms(VALUES[0], PLACEHOLDER));
        let Some(mut packed) = Packed::new(compression, &redactor, &std::sync::Arc::default()) else {
            return;
        };
        let mut out = Vec::new();
        let mut pass = |passed: Result<Vec<u8>, _>| passed.map(|passed| out.extend(passed));
        let whole =
            bytes.chunks(size).try_for_each(|piece| pass(packed.push(&Bytes::copy_from_slice(piece))));
        let whole = whole.and_then(|()| pass(packed.finish()));
        assert!(bytes.starts_with(&out) && (whole.is_err() || out.len() == bytes.len()), "{size}");
        let mut decoder = flate2::write::MultiGzDecoder::new(Vec::new());
        let _ = decoder.write_all(&out).and_then(|()| decoder.flush());
        assert!(!contains(decoder.get_ref(), VALUES[0]), "{size}");
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn redaction_of_hostile_answers_does_not_depend_on_pieces() {
        hutch_testkit::hostile::feed("egress_redaction", crate::hostile::redaction);
    }

    #[test]
    fn values_are_placed_in_hostile_bodies() {
        hutch_testkit::hostile::feed("egress_placing", crate::hostile::placing);
    }

    #[test]
    fn hostile_signatures_are_read() {
        hutch_testkit::hostile::feed("egress_signature", crate::hostile::signature);
    }
}
