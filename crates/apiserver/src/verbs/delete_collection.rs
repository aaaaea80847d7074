//! Removing all objects that selectors match.

use axum::response::Response;
use bytes::Bytes;
use hutch_store::Page;
use serde_json::Map;

use super::delete::{Options, remove};
use crate::call::Call;
use crate::failure::Failure;
use crate::filter::Filter;
use crate::respond;

pub(crate) async fn delete_collection(
    call: &Call,
    bytes: &Bytes,
    media_type: &str,
) -> Result<Response, Failure> {
    let options = Options::of(call, bytes, media_type)?;
    let filter = Filter::of(call)?;
    let prefix = call.prefix();
    let page = Page { prefix: &prefix, ..Page::default() };
    let list = call.store.list(&call.resource.collection, page);
    let entries: Vec<_> = list.entries.into_iter().filter(|entry| filter.matches(entry)).collect();
    for entry in &entries {
        // A list over all namespaces cannot be deleted, so what follows the prefix is the name.
        let name = entry.name.strip_prefix(&*prefix).unwrap_or(&entry.name);
        match remove(call, name, &options).await {
            Err(failure) if !failure.is("NotFound") => return Err(failure),
            _ => {}
        }
    }
    let mut metadata = Map::new();
    metadata.insert("resourceVersion".into(), call.store.current_revision().to_string().into());
    respond::list(call, &entries, metadata)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio::time::{Duration, Instant};

    use super::*;
    use crate::accept::Form;
    use crate::call::{Caller, Target};
    use crate::hooks::policy::{BINDINGS, POLICIES};
    use crate::query::Query;
    use crate::{ApiServer, Config};

    #[tokio::test]
    async fn time_for_policies_is_that_of_the_whole_request() {
        let server = ApiServer::open(Config::default()).await.unwrap();
        let store = &server.core().store;
        let rule = json!({"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]});
        let policy =
            json!({"matchConstraints": {"resourceRules": [rule]}, "validations": [{"expression": "true"}]});
        let bound = json!({"policyName": "p", "validationActions": ["Deny"]});
        for (collection, spec) in [(POLICIES, policy), (BINDINGS, bound)] {
            let object = json!({"kind": "x", "apiVersion": "v1", "metadata": {"name": "p"}, "spec": spec});
            store.create(collection, "p", object).await.unwrap();
        }
        for name in ["a", "b"] {
            let map = server.core().new_object("v1", "ConfigMap", Some("default"), name);
            store.create("configmaps", &format!("default/{name}"), map).await.unwrap();
        }
        let path = "api/v1/namespaces/default/configmaps";
        let target = Target::of(path, &server.core().registry.served()).unwrap();
        let delete = async |late: Duration| {
            let call =
                Call::new(server.core().clone(), Caller::admin(), &target, Query::default(), Form::Json);
            // As if objects before these had taken the time.
            call.admitted_until.set(Instant::now() + Duration::from_secs(60) - late).unwrap();
            delete_collection(&call, &Bytes::new(), "application/json").await
        };
        let count = || store.list("configmaps", Page { prefix: "default/", ..Page::default() }).entries.len();
        let before = count();
        assert_eq!(delete(Duration::from_secs(60)).await.unwrap_err().code.as_u16(), 504);
        assert_eq!(count(), before);
        delete(Duration::ZERO).await.unwrap();
        assert_eq!(count(), 0);
    }
}
