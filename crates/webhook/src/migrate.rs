//! Steps of an upgrade from the older version, before and after the new definitions are applied.

mod bootstrap;
mod rewrite;

use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, ListParams, ObjectList};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Client, Resource};
use serde::de::DeserializeOwned;

use crate::Error;

/// Objects in one answer to a list.
pub(crate) const PAGE: u32 = 500;
/// How often a list whose pages went out of date is begun anew.
const LISTS: usize = 3;
/// How often a write that failed for a passing reason is tried again.
const RETRIES: u32 = 5;
/// Pause before the first of them; it doubles.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// A migration in two phases, each of which may be run again at any time: [`Migration::bootstrap`] before the upgrade,
/// [`Migration::rewrite`] after it.
#[derive(Clone)]
pub struct Migration {
    /// The cluster, as a user who may list and change the four kinds and their definitions.
    pub client: Client,
    /// Only the objects of this namespace.
    pub namespace: Option<String>,
    /// Only say what would be done.
    pub dry_run: bool,
}

/// Takes one line about what was, or would be, done.
type Say<'a> = &'a mut (dyn FnMut(String) + Send);

impl Migration {
    /// A namespace that is not there is a slip of the pen, not an empty one.
    async fn check_namespace(&self) -> Result<(), Error> {
        let Some(name) = &self.namespace else { return Ok(()) };
        match Api::<Namespace>::all(self.client.clone()).get_metadata_opt(name).await {
            Ok(Some(_)) => Ok(()),
            Ok(None) => Err(Error::Unready(format!("--namespace: there is no namespace {name:?}"))),
            // A user who may only read the namespace's content may continue.
            Err(kube::Error::Api(status)) if status.is_forbidden() => Ok(()),
            Err(error) => Err(Error::api(format!("reading Namespace {name}"))(error)),
        }
    }

    /// The objects of that kind that are meant.
    fn objects(&self, kind: &ApiResource) -> Api<DynamicObject> {
        match &self.namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, kind),
            None => Api::all_with(self.client.clone(), kind),
        }
    }
}

fn resource(group: &str, version: &str, kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
}

/// Returns the results of `keep` for every object, page by page, so that only the results are in memory.
async fn list<K, T>(
    what: &str,
    page: impl AsyncFn(&ListParams) -> kube::Result<ObjectList<K>>,
    keep: impl Fn(K) -> T,
) -> Result<Vec<T>, Error>
where
    K: Resource + Clone + DeserializeOwned,
{
    let mut begun = 0;
    'anew: loop {
        begun += 1;
        let (mut kept, mut params) = (Vec::new(), ListParams::default().limit(PAGE));
        loop {
            match page(&params).await {
                Ok(objects) => {
                    params.continue_token =
                        objects.metadata.continue_.clone().filter(|token| !token.is_empty());
                    kept.extend(objects.items.into_iter().map(&keep));
                    if params.continue_token.is_none() {
                        return Ok(kept);
                    }
                }
                Err(kube::Error::Api(status)) if status.code == 410 && begun < LISTS => continue 'anew,
                Err(error) => return Err(Error::api(format!("listing {what}"))(error)),
            }
        }
    }
}

/// Tries again what failed because of others or of a server that is busy.
async fn patiently<T>(doing: &str, attempt: impl AsyncFn() -> kube::Result<T>) -> Result<T, Error> {
    let mut tried = 0;
    loop {
        let error = match attempt().await {
            Ok(done) => return Ok(done),
            Err(error) => error,
        };
        let conflict = matches!(&error, kube::Error::Api(status) if status.is_conflict());
        let error = Error::api(doing)(error);
        if tried == RETRIES || !(conflict || error.is_passing()) {
            return Err(error);
        }
        tokio::time::sleep(RETRY_PAUSE * 2u32.pow(tried)).await;
        tried += 1;
    }
}
