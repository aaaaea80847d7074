//! After the upgrade. What was stored in the older version stays so until it is written again. Once all of it has been, the
//! definition lists the older version as stored no longer, so that a later release may leave it out.

use futures::StreamExt;
use hutch_api::STORED_VERSION;
use hutch_api::annotation::STORAGE_MIGRATED_AT;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, DynamicObject, GetParams, Patch, PatchParams};
use kube::{ResourceExt, core};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Migration, Say, list, patiently, resource};
use crate::Error;
use crate::definitions::{COLLECTION, NAMES};

/// Objects that are written at a time.
const WRITES: usize = 16;

/// A definition without its schemas.
#[derive(Deserialize)]
struct Definition {
    metadata: ObjectMeta,
    spec: Spec,
    #[serde(default)]
    status: Status,
}

#[derive(Deserialize)]
struct Spec {
    group: String,
    names: Names,
    versions: Vec<Version>,
}

#[derive(Deserialize)]
struct Names {
    kind: String,
    plural: String,
}

#[derive(Deserialize)]
struct Version {
    name: String,
    storage: bool,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    #[serde(default)]
    stored_versions: Vec<String>,
}

/// Namespace and name.
struct Named(String, String);

impl Migration {
    /// Writes every object of the four kinds that may be stored in the older version again, by an annotation
    /// `agents.x-k8s.io/storage-migrated-at` of now, and then takes the older version out of the definition's
    /// `status.storedVersions`. A kind of which nothing can be stored in the older version is left alone. With a namespace
    /// set, only its objects are written and the definitions stay as they are.
    ///
    /// # Errors
    /// [`Error::Unready`] when no definition is there, or one does not store `v1beta1` yet; [`Error::Problems`] with the objects
    /// that could not be written, after all others have been; [`Error::Api`].
    pub async fn rewrite(&self, say: Say<'_>) -> Result<(), Error> {
        self.check_namespace().await?;
        let mut definitions = Vec::new();
        for name in NAMES {
            match self.definition(name).await? {
                None => say(format!("CustomResourceDefinition {name} is not there: skipped")),
                Some(definition) => definitions.push((name, definition)),
            }
        }
        if definitions.is_empty() {
            return Err(Error::Unready(
                "the definitions of Agent Sandbox are not there: is this the right cluster?".into(),
            ));
        }
        let stale = definitions.iter().find(|(_, definition)| definition.storage() != Some(STORED_VERSION));
        if let Some((name, definition)) = stale {
            return Err(Error::Unready(format!(
                "CustomResourceDefinition {name} stores {}, not {STORED_VERSION}: apply the new definitions first",
                definition.storage().unwrap_or("no version")
            )));
        }
        let mut problems = Vec::new();
        for (name, definition) in definitions {
            self.rewrite_kind(name, &definition, &mut problems, say).await?;
        }
        if problems.is_empty() { Ok(()) } else { Err(Error::Problems(problems)) }
    }

    async fn definition(&self, name: &str) -> Result<Option<Definition>, Error> {
        let reading = format!("reading CustomResourceDefinition {name}");
        let asked = patiently(&reading, async || {
            let request = core::Request::new(COLLECTION).get(name, &GetParams::default());
            self.client.request(request.map_err(kube::Error::BuildRequest)?).await
        });
        match asked.await {
            Ok(definition) => Ok(Some(definition)),
            Err(Error::Api { source: kube::Error::Api(status), .. }) if status.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn rewrite_kind(
        &self,
        name: &str,
        definition: &Definition,
        problems: &mut Vec<String>,
        say: Say<'_>,
    ) -> Result<(), Error> {
        let Names { kind, plural } = &definition.spec.names;
        if definition.status.stored_versions.iter().all(|version| version == STORED_VERSION) {
            say(format!("{kind}: everything is stored as {STORED_VERSION}"));
            return Ok(());
        }
        let found = resource(&definition.spec.group, STORED_VERSION, kind, plural);
        let objects = self.objects(&found);
        let named = |object: kube::core::PartialObjectMeta<DynamicObject>| {
            Named(object.namespace().unwrap_or_default(), object.name_any())
        };
        let names = list(
            &definition.metadata.name.clone().unwrap_or_default(),
            async |params| objects.list_metadata(params).await,
            named,
        )
        .await?;
        if self.dry_run {
            say(format!("{kind}: {} objects would be written again", names.len()));
            return Ok(());
        }
        let before = problems.len();
        let count = names.len();
        let mut writes = futures::stream::iter(names)
            .map(|object| self.rewrite_one(&found, object))
            .buffer_unordered(WRITES);
        while let Some(written) = writes.next().await {
            if let Err(error) = written {
                problems.push(error.to_string());
            }
        }
        let failed = problems.len() - before;
        say(format!("{kind}: {} of {count} objects written again", count - failed));
        if failed == 0 && self.namespace.is_none() {
            match self.forget_older(name, definition).await {
                Ok(()) => say(format!("{kind}: everything is stored as {STORED_VERSION}")),
                Err(Error::Api { source: kube::Error::Api(status), .. }) if status.is_conflict() => {
                    problems
                        .push(format!("CustomResourceDefinition {name} was changed meanwhile: run it again"));
                }
                Err(error) => problems.push(error.to_string()),
            }
        }
        Ok(())
    }

    async fn rewrite_one(
        &self,
        kind: &core::ApiResource,
        Named(namespace, name): Named,
    ) -> Result<(), Error> {
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &namespace, kind);
        let writing = format!("writing {} {namespace}/{name}", kind.kind);
        patiently(&writing, async || {
            let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
            let patch: Value = json!({"metadata": {"annotations": {STORAGE_MIGRATED_AT: now}}});
            match api.patch_metadata(&name, &PatchParams::default(), &Patch::Merge(&patch)).await {
                Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
                other => other.map(drop),
            }
        })
        .await
    }

    /// Guarded by the revision before the objects were listed: a user may have gone back to storing the older version.
    async fn forget_older(&self, name: &str, definition: &Definition) -> Result<(), Error> {
        let patch = json!({
            "metadata": {"resourceVersion": definition.metadata.resource_version},
            "status": {"storedVersions": [STORED_VERSION]},
        });
        let changing = Error::api(format!("changing the status of CustomResourceDefinition {name}"));
        let request = core::Request::new(COLLECTION)
            .patch_subresource("status", name, &PatchParams::default(), &Patch::Merge(patch))
            .map_err(|error| Error::api("changing definitions")(kube::Error::BuildRequest(error)))?;
        self.client.request::<Definition>(request).await.map(drop).map_err(changing)
    }
}

impl Definition {
    fn storage(&self) -> Option<&str> {
        self.spec.versions.iter().find(|version| version.storage).map(|version| version.name.as_str())
    }
}
