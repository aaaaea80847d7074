//! Answers of Vault.

use std::collections::BTreeMap;

use hutch_egress::Secret;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Stands for the token in a message.
const HIDDEN: &str = "***";
/// Maximum time of a lease that counts, in seconds.
const LEASE: u64 = 365 * 24 * 60 * 60;
/// Maximum bytes of the id of a lease; Vault would not find a longer one again.
const ID: usize = 4 << 10;
/// Maximum characters of a message of Vault in a log or an event.
const MESSAGE: usize = 200;
/// Maximum bytes of a value, and of all values of a secret; what is longer is no credential.
const VALUE: usize = 8 << 10;
const VALUES: usize = 32 << 10;

/// Secret of Vault.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Lease {
    /// Texts of its fields.
    pub(crate) fields: BTreeMap<String, Secret>,
    /// Id of the lease; `None` for one that is only stored.
    pub(crate) id: Option<String>,
    /// Time for which the lease lasts.
    pub(crate) seconds: u64,
}

/// Returns the messages of an answer that refuses, without the token of the request.
pub(super) fn messages(body: &[u8], token: &Secret) -> String {
    #[derive(Deserialize)]
    struct Refusal {
        errors: Vec<String>,
    }
    let Ok(refusal) = serde_json::from_slice::<Refusal>(body) else { return String::new() };
    let text: String = refusal.errors.join(", ").chars().filter(|c| !c.is_control()).collect();
    // What a server repeats must not be in a log.
    let text: String = text.replace(token.expose(), HIDDEN).chars().take(MESSAGE).collect();
    if text.is_empty() { text } else { format!(": {text}") }
}

/// Reads a secret, of any engine: version 2 of the engine of keys and values has its fields one level deeper.
pub(super) fn read(body: &[u8]) -> Option<Lease> {
    #[derive(Deserialize)]
    struct Read {
        #[serde(default)]
        lease_id: String,
        #[serde(default)]
        lease_duration: u64,
        #[serde(default)]
        data: Option<serde_json::Map<String, Value>>,
    }
    let Read { lease_id, lease_duration, data } = serde_json::from_slice(body).ok()?;
    let mut data = data.unwrap_or_default();
    if data.get("metadata").is_some_and(Value::is_object)
        && let Some(Value::Object(inner)) = data.get_mut("data")
    {
        data = std::mem::take(inner);
    }
    let mut left = VALUES;
    let texts = data.into_iter().filter_map(|(name, value)| match value {
        Value::String(text) if text.len() <= VALUE => {
            left = left.checked_sub(name.len() + text.len())?;
            Some((name, Secret::new(text)))
        }
        _ => None,
    });
    let fields = texts.collect();
    if lease_id.len() > ID {
        return None;
    }
    let id = (!lease_id.is_empty()).then_some(lease_id);
    Some(Lease { fields, id, seconds: lease_duration.min(LEASE) })
}

/// Reads any answer. Its values and the messages of a refusal are bounded, and the messages have no token.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn any_answer(bytes: &[u8]) {
    let token = Secret::new("hvs.token".to_owned());
    let refused = messages(bytes, &token);
    assert!(refused.chars().count() <= MESSAGE + 2 && !refused.contains(token.expose()), "{refused:?}");
    assert!(!refused.contains(char::is_control), "{refused:?}");
    let Some(lease) = read(bytes) else { return };
    let values = lease.fields.iter().map(|(name, value)| name.len() + value.expose().len());
    assert!(values.sum::<usize>() <= VALUES && lease.seconds <= LEASE);
    assert!(lease.fields.values().all(|value| value.expose().len() <= VALUE));
    assert!(lease.id.is_none_or(|id| !id.is_empty() && id.len() <= ID));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_are_taken() {
        hutch_testkit::hostile::feed("hutch_vault", any_answer);
    }

    #[test]
    fn fields_are_found_in_secrets_of_every_engine() {
        let fields = |body: &str| {
            let lease = read(body.as_bytes()).unwrap();
            let names: Vec<_> = lease.fields.keys().cloned().collect();
            (names.join(","), lease.id, lease.seconds)
        };
        let stored = r#"{"lease_id": "", "lease_duration": 0, "data": {"data": {"token": "a"}, "metadata": {"version": 1}}}"#;
        assert_eq!(fields(stored), ("token".into(), None, 0));
        assert_eq!(fields(r#"{"data": {"token": "a", "number": 1}}"#), ("token".into(), None, 0));
        let issued = r#"{"lease_id": "database/creds/a/x", "lease_duration": 60, "data": {"username": "u", "password": "p"}}"#;
        assert_eq!(fields(issued), ("password,username".into(), Some("database/creds/a/x".into()), 60));
        let endless = r#"{"lease_id": "a", "lease_duration": 18446744073709551615, "data": {"token": "a"}}"#;
        assert_eq!(fields(endless).2, LEASE, "a time of any length can be waited for");
        assert!(read(b"<html>").is_none());
    }

    #[test]
    fn refusal_has_the_messages_of_vault_without_control_characters_and_the_token() {
        let token = Secret::new("hvs.token-of-the-root".into());
        let repeated = br#"{"errors": ["bad token hvs.token-of\n-the-root", "no"]}"#;
        assert_eq!(messages(repeated, &token), ": bad token ***, no");
        assert_eq!(messages(br#"{"errors": ["permission denied\n"]}"#, &token), ": permission denied");
        assert_eq!(messages(b"<html>", &token), "");
    }
}
