//! Namespaces: what every one of them holds, and how one is emptied when it is deleted.

mod conditions;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use conditions::Rest;
use hutch_api::Read;
use hutch_reconcile::controller::Controller;
use hutch_reconcile::key::Key;
use hutch_reconcile::outcome::Outcome;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, ServiceAccount};
use kube::api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::sync::watch;

use crate::Error;
use crate::error::{existing_is_fine, gone_is_fine};
use crate::kinds::{Kind, Kinds};
use crate::reader::Reader;
use crate::workload::drive;

/// Finalizer in `spec` that keeps a Namespace until it is empty.
const FINALIZER: &str = "kubernetes";
const ACCOUNT: &str = "default";
const ROOT_CA: &str = "kube-root-ca.crt";
const ROOT_CA_KEY: &str = "ca.crt";
/// Pause between two reconciles of a Namespace whose objects are being deleted: Pods take their time.
const EMPTYING: Duration = Duration::from_millis(200);

/// State of the reconciler besides a Namespace.
pub(crate) struct Context {
    pub(crate) reader: Arc<Reader>,
    pub(crate) kinds: watch::Receiver<Arc<Kinds>>,
    /// Certificate of the authority, PEM.
    pub(crate) root_ca: String,
}

impl Context {
    fn client(&self) -> &Client {
        self.reader.client()
    }
}

/// Reconciles Namespaces until dropped.
pub(crate) async fn run(context: Context) -> Result<(), Error> {
    let client = context.client();
    let namespaces: Api<Read<Namespace>> = Api::all(client.clone());
    let accounts: Api<Read<ServiceAccount>> = Api::all(client.clone());
    let maps: Api<Read<ConfigMap>> = Api::all(client.clone());
    let named = |name: &str| watcher::Config::default().fields(&format!("metadata.name={name}"));
    let controller = Controller::new(namespaces)
        .watches(accounts, named(ACCOUNT), |account| account.namespace().map(|name| Key::new("", &name)))
        .watches(maps, named(ROOT_CA), |map| map.namespace().map(|name| Key::new("", &name)));
    drive(controller, reconcile, Arc::new(context)).await
}

async fn reconcile(Key { name, .. }: Key, context: Arc<Context>) -> Result<Outcome, Error> {
    let found: Api<Read<Namespace>> = Api::all(context.client().clone());
    let Some(namespace) = context.reader.get(&found, &name, &format!("Namespace {name}")).await? else {
        return Ok(Outcome::Settled);
    };
    if namespace.metadata.deletion_timestamp.is_none() {
        give_account(&context, &name).await?;
        give_root_ca(&context, &name).await?;
        return Ok(Outcome::Settled);
    }
    if !holds(&namespace) {
        return Ok(Outcome::Settled);
    }
    let (left, rest) = empty(&context, &name).await;
    let namespaces: Api<Namespace> = Api::all(context.client().clone());
    report(&namespaces, &namespace, &rest).await?;
    if left > 0 {
        return Ok(Outcome::Again(EMPTYING));
    }
    let released = without_finalizer(namespace);
    let answer = namespaces.replace_subresource("finalize", &name, &PostParams::default(), &released).await;
    gone_is_fine(answer).map_err(Error::write(format!("Namespace {name}")))?;
    Ok(Outcome::Settled)
}

/// Writes the conditions of a deletion where they have changed.
async fn report(api: &Api<Namespace>, namespace: &Namespace, rest: &Rest) -> Result<(), Error> {
    let before =
        namespace.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let conditions = conditions::conditions(rest, before, Timestamp::now());
    // One without such objects is gone soon.
    if conditions == before || (before.is_empty() && rest.is_empty()) {
        return Ok(());
    }
    let name = namespace.name_any();
    let patch = Patch::Merge(json!({"status": {"conditions": conditions}}));
    let answer = api.patch_status(&name, &PatchParams::default(), &patch).await;
    gone_is_fine(answer).map_err(Error::write(format!("status of Namespace {name}")))
}

fn holds(namespace: &Namespace) -> bool {
    let finalizers = namespace.spec.as_ref().and_then(|spec| spec.finalizers.as_ref());
    finalizers.is_some_and(|finalizers| finalizers.iter().any(|name| name == FINALIZER))
}

fn without_finalizer(mut namespace: Namespace) -> Namespace {
    if let Some(finalizers) = namespace.spec.as_mut().and_then(|spec| spec.finalizers.as_mut()) {
        finalizers.retain(|name| name != FINALIZER);
    }
    namespace
}

/// Deletes everything in a Namespace; returns how many objects there were, and those of them that were being deleted
/// before.
async fn empty(context: &Context, name: &str) -> (usize, Rest) {
    let kinds = Arc::clone(&context.kinds.borrow());
    let (mut left, mut rest) = (0, Rest::default());
    for kind in kinds.preferred.iter().chain(&kinds.events).filter(|kind| kind.namespaced) {
        match empty_kind(context, name, kind, &mut rest).await {
            Ok(found) => left += found,
            Err(error) => {
                // The other kinds are emptied all the same.
                tracing::warn!(%error, namespace = name, "failed to empty a namespace; will try again");
                left += 1;
                rest.fail(&error);
            }
        }
    }
    (left, rest)
}

/// Deletes the objects of one kind in a Namespace; returns how many there were.
async fn empty_kind(context: &Context, name: &str, kind: &Kind, rest: &mut Rest) -> Result<usize, Error> {
    let api = kind.api(context.client(), Some(name));
    let what = || format!("{} in Namespace {name}", kind.resource.plural);
    let objects = api.list_metadata(&ListParams::default()).await.map_err(Error::read(what()))?;
    let found = objects.items.len();
    for object in objects.items {
        if object.metadata.deletion_timestamp.is_some() {
            rest.add(&kind.resource, object.finalizers());
        } else {
            let answer = api.delete(&object.name_any(), &DeleteParams::background()).await;
            gone_is_fine(answer).map_err(Error::write(what()))?;
        }
    }
    Ok(found)
}

async fn give_account(context: &Context, namespace: &str) -> Result<(), Error> {
    let accounts: Api<ServiceAccount> = Api::namespaced(context.client().clone(), namespace);
    let what = || format!("ServiceAccount {namespace}/{ACCOUNT}");
    if accounts.get_metadata_opt(ACCOUNT).await.map_err(Error::read(what()))?.is_some() {
        return Ok(());
    }
    let metadata = ObjectMeta { name: Some(ACCOUNT.into()), ..ObjectMeta::default() };
    let account = ServiceAccount { metadata, ..ServiceAccount::default() };
    existing_is_fine(accounts.create(&PostParams::default(), &account).await).map_err(Error::write(what()))
}

async fn give_root_ca(context: &Context, namespace: &str) -> Result<(), Error> {
    let maps: Api<ConfigMap> = Api::namespaced(context.client().clone(), namespace);
    let what = || format!("ConfigMap {namespace}/{ROOT_CA}");
    let data = BTreeMap::from([(ROOT_CA_KEY.to_owned(), context.root_ca.clone())]);
    match maps.get_opt(ROOT_CA).await.map_err(Error::read(what()))? {
        Some(map) if map.data.as_ref() == Some(&data) => Ok(()),
        Some(_) => {
            let patch = Patch::Merge(json!({"data": data}));
            let answer = maps.patch(ROOT_CA, &PatchParams::default(), &patch).await;
            gone_is_fine(answer).map_err(Error::write(what()))
        }
        None => {
            let metadata = ObjectMeta { name: Some(ROOT_CA.into()), ..ObjectMeta::default() };
            let map = ConfigMap { metadata, data: Some(data), ..ConfigMap::default() };
            existing_is_fine(maps.create(&PostParams::default(), &map).await).map_err(Error::write(what()))
        }
    }
}
