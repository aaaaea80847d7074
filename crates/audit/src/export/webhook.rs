//! Webhook: the lines of the log in batches, with an HMAC-SHA-256 over time and body.

use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::hmac;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Uri};

use super::Failure;
use super::destination::ExportOptions;
use super::http::Client;
use crate::hex::hex;
use crate::{Entry, Error};

/// Header with the time of a request, in seconds since 1970.
const TIMESTAMP: &str = "hutch-timestamp";
/// Header with the signature: `sha256=` and the HMAC of the time, a dot and the body.
const SIGNATURE: &str = "hutch-signature";
/// Minimum bytes of a secret.
const SECRET_MIN: usize = 16;

pub(super) struct Webhook {
    client: Client,
    key: hmac::Key,
}

impl Webhook {
    pub(super) fn new(uri: &Uri, options: &ExportOptions) -> Result<Webhook, Error> {
        let secret = options.secret.as_deref().unwrap_or_default().trim_ascii();
        if secret.len() < SECRET_MIN {
            let why = format!("a webhook needs a secret of at least {SECRET_MIN} bytes");
            return Err(Error::Destination(why));
        }
        Ok(Webhook { client: Client::new(uri, options)?, key: hmac::Key::new(hmac::HMAC_SHA256, secret) })
    }

    pub(super) async fn send(&mut self, batch: &[Entry]) -> Result<(), Failure> {
        let mut body = Vec::new();
        for entry in batch {
            body.extend_from_slice(&entry.line);
            body.push(b'\n');
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let headers = signature(&self.key, now, &body);
        self.client.post("application/x-ndjson", headers, Bytes::from(body)).await?;
        Ok(())
    }
}

fn signature(key: &hmac::Key, now: u64, body: &[u8]) -> HeaderMap {
    let mut context = hmac::Context::with_key(key);
    context.update(format!("{now}.").as_bytes());
    context.update(body);
    let signature = format!("sha256={}", hex(context.sign().as_ref()));
    let pairs = [(TIMESTAMP, now.to_string()), (SIGNATURE, signature)];
    let value = |text: &str| HeaderValue::from_str(text).ok();
    pairs.iter().filter_map(|(name, text)| Some((HeaderName::from_static(name), value(text)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signature_is_the_published_function_of_time_and_body() {
        let key = hmac::Key::new(hmac::HMAC_SHA256, b"0123456789abcdef");
        let headers = signature(&key, 1_700_000_000, b"{}\n");
        assert_eq!(headers[TIMESTAMP], "1700000000");
        // printf '1700000000.{}\n' | openssl dgst -sha256 -hmac 0123456789abcdef
        assert_eq!(headers[SIGNATURE], EXPECTED);
    }

    const EXPECTED: &str = "sha256=9762b6da9e539b8a12f2592a576916bb7d0e48ef60ccbf1c013f9b7158f9344f";
}
