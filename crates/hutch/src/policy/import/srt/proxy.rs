//! `network.parentProxy`: the proxy outside through which everything goes.
//!
//! In srt, requests without TLS have a proxy of their own, and some hosts none. Here one proxy has everything, and loopback
//! is the sandbox itself.

use std::collections::BTreeMap;
use std::net::IpAddr;

use anyhow::Context;
use serde_json::Value;

use super::super::Notes;
use crate::upstream_proxy::ProxyUrl;

const FIELD: &str = "network.parentProxy";

/// Takes the proxy out of the keys.
pub(super) fn parse(
    found: &mut BTreeMap<String, Value>,
    notes: &mut Notes,
) -> anyhow::Result<Option<ProxyUrl>> {
    let is_there = found.remove(FIELD).is_some();
    let mut text = |name: &str| match found.remove(&format!("{FIELD}.{name}")) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        // Without the value: it may have a password.
        Some(_) => Err(anyhow::anyhow!("not a text")).with_context(|| format!("{FIELD}.{name}")),
    };
    let (http, https, without) = (text("http")?, text("https")?, text("noProxy")?);
    if !is_there {
        return Ok(None);
    }
    for entry in without.iter().flat_map(|list| list.split(',')).map(str::trim) {
        if !(entry.is_empty() || is_loopback(entry)) {
            notes.refuse(
                &format!("{FIELD}.noProxy"),
                format!("`{}`: everything goes through the proxy", entry.escape_debug()),
            );
        }
    }
    let (field, url) = match (http, https) {
        (Some(http), None) => ("http", http),
        (Some(http), Some(https)) if http == https => ("http", http),
        (Some(_), Some(_)) => {
            notes.refuse(&format!("{FIELD}.https"), "another proxy than `http`; everything goes through one");
            return Ok(None);
        }
        (None, Some(_)) => {
            let why = "requests without TLS would go around the proxy; name the same one in `http`";
            notes.refuse(&format!("{FIELD}.https"), why);
            return Ok(None);
        }
        (None, None) => {
            notes.refuse(FIELD, "names no proxy; HUTCH_UPSTREAM_PROXY takes the place of HTTP_PROXY");
            return Ok(None);
        }
    };
    let proxy = ProxyUrl::with_default_port(&url);
    if let Err(error) = proxy.check() {
        notes.refuse(&format!("{FIELD}.{field}"), error);
    }
    Ok(Some(proxy))
}

/// Returns true for hosts of loopback, which srt reaches without the proxy, and which are the sandbox itself here.
fn is_loopback(entry: &str) -> bool {
    let plain = entry.trim_start_matches('[').trim_end_matches(']');
    entry.eq_ignore_ascii_case("localhost")
        || entry == "127.0.0.0/8"
        || plain.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::super::Settings;
    use super::*;

    fn parent(fields: &str) -> (Option<ProxyUrl>, Vec<String>) {
        let mut notes = Notes::default();
        let text = format!(r#"{{"network": {{"parentProxy": {fields}}}}}"#);
        let settings = Settings::parse(&text, &mut notes).unwrap();
        (settings.network.parent, notes.refusals)
    }

    #[test]
    fn one_proxy_for_everything_is_taken() {
        for (fields, url) in [
            (r#"{"http": "http://proxy.example:3128"}"#, "http://proxy.example:3128"),
            (r#"{"http": "http://proxy.example"}"#, "http://proxy.example:80"),
            (r#"{"http": "http://u:p@[::1]/"}"#, "http://u:p@[::1]:80"),
            (
                r#"{"http": "http://a:1", "https": "http://a:1", "noProxy": "localhost, 127.0.0.1,[::1],"}"#,
                "http://a:1",
            ),
        ] {
            assert_eq!(parent(fields), (Some(url.parse().unwrap()), Vec::new()), "{fields}");
        }
    }

    #[test]
    fn what_one_proxy_cannot_do_is_refused_without_its_password() {
        for (fields, named) in [
            ("{}", "network.parentProxy: names no proxy"),
            (r#"{"https": "http://u:secret@a:1"}"#, "network.parentProxy.https: requests without TLS"),
            (
                r#"{"http": "http://a:1", "https": "http://u:secret@b:1"}"#,
                "network.parentProxy.https: another",
            ),
            (r#"{"http": "https://u:secret@a:1"}"#, "network.parentProxy.http: write it like"),
            (r#"{"http": "http://u:secret@a:1/x"}"#, "network.parentProxy.http: write it like"),
            (
                r#"{"http": "http://a:1", "noProxy": "localhost,.corp.example"}"#,
                "network.parentProxy.noProxy: `.corp",
            ),
            (r#"{"http": "http://a:1", "noProxy": "*"}"#, "network.parentProxy.noProxy: `*`"),
        ] {
            let (_, refusals) = parent(fields);
            assert!(refusals.len() == 1 && refusals[0].starts_with(named), "{fields}: {refusals:?}");
            assert!(!refusals[0].contains("secret"), "{refusals:?}");
        }
    }
}
