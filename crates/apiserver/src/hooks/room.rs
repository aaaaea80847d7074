//! Room for the objects of requests that wait for webhooks.
//!
//! A request without room is refused at once and does not wait: a webhook may itself send requests to this server, which
//! would then wait for the request that waits for the webhook.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;

use crate::failure::Failure;

/// Maximum bytes of the decoded objects of all requests that wait for webhooks. A request holds each object a few times.
const BYTES: usize = 256 << 20;
/// Maximum of the callers outside together: the rest is for the controllers of this server.
const OUTSIDE: usize = BYTES / 4 * 3;
/// Maximum of one caller, so that one leaves room to others. A larger object counts as this: alone it has room. The service
/// accounts of a namespace count as one: with the rights of one, others can be made.
const PART: usize = BYTES / 2;
/// Bytes of a list's item and of a map's entry, besides their texts and what they hold.
const ITEM: usize = size_of::<Value>();
const ENTRY: usize = ITEM + size_of::<String>();
/// Entries that a map allocates at once.
const ENTRIES: usize = 11;

/// The room.
#[derive(Debug, Default)]
pub(crate) struct Room(Mutex<Used>);

#[derive(Debug, Default)]
struct Used {
    all: usize,
    callers: HashMap<String, usize>,
}

/// Bytes that are in use, until this is dropped.
#[derive(Debug)]
pub(crate) struct Kept {
    room: Arc<Room>,
    caller: String,
    bytes: usize,
}

impl Room {
    /// Takes bytes for a request of a caller, who may be outside of this server, or refuses it.
    pub(crate) fn take(self: &Arc<Room>, caller: &str, outside: bool, bytes: usize) -> Result<Kept, Failure> {
        let bytes = bytes.min(PART);
        let caller = owner(caller);
        let mut used = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let own = used.callers.get(caller).copied().unwrap_or_default();
        if own + bytes > PART {
            return Err(Failure::too_many_requests(format!(
                "the requests of {caller:?} that wait for admission webhooks hold the maximum of one user"
            )));
        }
        if used.all + bytes > if outside { OUTSIDE } else { BYTES } {
            return Err(Failure::too_many_requests(
                "the requests that wait for admission webhooks hold the maximum of this server",
            ));
        }
        used.all += bytes;
        used.callers.insert(caller.to_owned(), own + bytes);
        Ok(Kept { room: self.clone(), caller: caller.to_owned(), bytes })
    }
}

/// The one whom a caller counts for.
fn owner(caller: &str) -> &str {
    let of_account = caller.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':'));
    of_account.map_or(caller, |(_, account)| &caller[..caller.len() - account.len()])
}

impl Drop for Kept {
    fn drop(&mut self) {
        let mut used = self.room.0.lock().unwrap_or_else(PoisonError::into_inner);
        used.all -= self.bytes;
        if let Some(own) = used.callers.get_mut(&self.caller) {
            *own -= self.bytes;
            if *own == 0 {
                used.callers.remove(&self.caller);
            }
        }
    }
}

/// Bytes that a decoded value takes, about. It is nested no more deeply than a body may be.
pub(crate) fn memory(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(list) => list.iter().map(|item| ITEM + memory(item)).sum(),
        Value::Object(fields) => {
            let texts: usize = fields.iter().map(|(name, value)| name.len() + memory(value)).sum();
            texts + fields.len().next_multiple_of(ENTRIES) * ENTRY
        }
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::Api;
    use serde_json::json;

    use super::*;
    use crate::{ApiServer, Config, Identity};

    #[tokio::test]
    async fn request_without_room_does_not_wait_for_its_webhook() {
        let server = ApiServer::open(Config::default()).await.unwrap();
        let identity = Identity::admin();
        let client = server.client(identity.clone(), "default");
        let configurations: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
        let configuration = json!({"metadata": {"name": "v"}, "webhooks": [{"name": "v.example.com",
            "clientConfig": {"service": {"namespace": "default", "name": "none"}}, "failurePolicy": "Ignore",
            "sideEffects": "None", "admissionReviewVersions": ["v1"], "rules": [{"operations": ["*"],
            "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}]}]});
        let configuration = serde_json::from_value(configuration).unwrap();
        configurations.create(&Default::default(), &configuration).await.unwrap();
        let full = server.core().hooks.room.take(&identity.name, false, PART).unwrap();
        let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
        let map = serde_json::from_value(json!({"metadata": {"name": "m"}})).unwrap();
        let refused = maps.create(&Default::default(), &map).await.unwrap_err().to_string();
        assert!(refused.contains("hold the maximum of one user"), "{refused}");
        drop(full);
        maps.create(&Default::default(), &map).await.unwrap();
    }

    #[test]
    fn one_caller_leaves_room_to_others_and_gives_its_own_back() {
        let room = Arc::<Room>::default();
        let account = |name: &str| format!("system:serviceaccount:noisy:{name}");
        let first = room.take(&account("a"), true, usize::MAX).unwrap();
        let refused = room.take(&account("b"), true, 1).unwrap_err();
        assert_eq!((refused.code.as_u16(), &*refused.reason), (429, "TooManyRequests"));
        assert_eq!(refused.status()["details"]["retryAfterSeconds"], 1);
        let second = room.take("quiet", true, PART / 2).unwrap();
        assert!(room.take("third", true, 1).unwrap_err().message.ends_with("the maximum of this server"));
        let of_controller = room.take("controller", false, PART / 2).unwrap();
        assert!(room.take("controller", false, 1).is_err());
        drop((first, of_controller));
        drop(room.take(&account("b"), true, PART).unwrap());
        drop(second);
        let used = room.0.lock().unwrap();
        assert!(used.all == 0 && used.callers.is_empty(), "{used:?}");
    }

    #[test]
    fn small_parts_count_as_what_they_allocate() {
        let dense = json!(vec![json!({"a": 1}); 1000]);
        assert!(memory(&dense) > 50 * dense.to_string().len(), "{}", memory(&dense));
        let text = json!({"a": "x".repeat(1 << 20)});
        assert!((1 << 20..2 << 20).contains(&memory(&text)), "{}", memory(&text));
    }
}
