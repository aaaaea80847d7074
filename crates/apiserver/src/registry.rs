//! Kinds that are served now: the built-in ones and those of the stored CustomResourceDefinitions.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, RwLock};

use hutch_store::Entry;
use serde_json::Value;

use crate::convert;
use crate::failure::Failure;
use crate::kinds::{self, Kind};
use crate::object::Object;
use crate::schema::{self, Structural};
use crate::{SERVER_VERSION, openapi};

/// One kind in one version, ready to serve.
#[derive(Debug)]
pub(crate) struct Resource {
    pub(crate) kind: Kind,
    /// Collection of the objects in the store; the same for all versions.
    pub(crate) collection: Box<str>,
    structural: OnceLock<Option<Structural>>,
    has_defaults: OnceLock<bool>,
}

impl Resource {
    fn new(kind: Kind) -> Self {
        let collection = match &kind.view_of {
            Some((group, plural)) if group.is_empty() => plural.as_str().into(),
            Some((group, plural)) => format!("{plural}.{group}").into(),
            None => kind.group_resource().into(),
        };
        Resource { kind, collection, structural: OnceLock::new(), has_defaults: OnceLock::new() }
    }

    /// The structural schema of a custom kind, compiled at first use.
    pub(crate) fn structural(&self) -> Option<&Structural> {
        self.structural.get_or_init(|| self.kind.schema.as_ref().map(Structural::compile)).as_ref()
    }

    /// Returns true if a stored object may lack defaults: its kind was defined anew after it was written.
    pub(crate) fn lacks_defaults(&self, entry: &Entry<Object>) -> bool {
        let has_defaults = || self.kind.schema.as_ref().is_some_and(|schema| schema::has_defaults(schema));
        entry.revision < self.kind.defined && *self.has_defaults.get_or_init(has_defaults)
    }

    /// A stored object in the version of this kind, with the defaults of its schema.
    pub(crate) fn shown(&self, entry: &Entry<Object>) -> Result<Value, Failure> {
        let mut object = convert::from_storage(&self.kind, entry.value.value())?;
        if self.lacks_defaults(entry)
            && let Some(structural) = self.structural()
        {
            structural.default(&mut object);
        }
        Ok(object)
    }

    /// Returns true if a stored object is shown as it is stored.
    pub(crate) fn shows_stored(&self, entry: &Entry<Object>) -> bool {
        convert::is_storage_version(&self.kind) && !self.lacks_defaults(entry)
    }

    /// Returns true if this is the built-in kind of that group and plural.
    pub(crate) fn is(&self, group: &str, plural: &str) -> bool {
        self.kind.group == group && self.kind.plural == plural
    }
}

/// A consistent set of served kinds.
#[derive(Debug, Default)]
pub(crate) struct Served {
    resources: Vec<Arc<Resource>>,
    index: HashMap<(String, String, String), usize>,
    old_openapi: OnceLock<openapi::Old>,
}

impl Served {
    fn of(kinds: impl IntoIterator<Item = Kind>) -> Self {
        let mut served = Served::default();
        for kind in kinds {
            let key = (kind.group.clone(), kind.version.clone(), kind.plural.clone());
            // A definition cannot take the place of a built-in kind: the first one stays.
            if !served.index.contains_key(&key) {
                served.index.insert(key, served.resources.len());
                served.resources.push(Arc::new(Resource::new(kind)));
            }
        }
        served
    }

    pub(crate) fn find(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Resource>> {
        let key = (group.to_owned(), version.to_owned(), plural.to_owned());
        self.index.get(&key).map(|index| &self.resources[*index])
    }

    /// The resource of an `apiVersion` and a `kind`.
    pub(crate) fn find_kind(&self, api_version: &str, kind: &str) -> Option<&Arc<Resource>> {
        let (group, version) = kinds::split_api_version(api_version);
        let is = |own: &Kind| own.group == group && own.version == version && own.kind == kind;
        self.resources.iter().find(|resource| is(&resource.kind) && !resource.kind.is_review())
    }

    /// The kinds that show the objects of a collection: its versions, and views of other groups.
    pub(crate) fn showing<'a>(&'a self, collection: &'a str) -> impl Iterator<Item = &'a Arc<Resource>> {
        self.resources.iter().filter(move |resource| *resource.collection == *collection)
    }

    /// The document of OpenAPI v2, made at first use.
    pub(crate) fn old_openapi(&self) -> &openapi::Old {
        self.old_openapi.get_or_init(|| openapi::Old::of(self.kinds(), SERVER_VERSION))
    }

    pub(crate) fn resources(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.resources.iter()
    }

    pub(crate) fn kinds(&self) -> impl Iterator<Item = &Kind> {
        self.resources.iter().map(|resource| &resource.kind)
    }
}

/// The served kinds, replaced as a whole when a CustomResourceDefinition changes.
pub(crate) struct Registry {
    builtin: Vec<Kind>,
    served: RwLock<Arc<Served>>,
}

impl Registry {
    pub(crate) fn new() -> Self {
        let builtin = kinds::builtin();
        let served = Served::of(builtin.iter().cloned());
        Registry { builtin, served: RwLock::new(Arc::new(served)) }
    }

    pub(crate) fn served(&self) -> Arc<Served> {
        self.served.read().expect("a holder of the lock never panics").clone()
    }

    /// Serves these custom kinds besides the built-in ones.
    pub(crate) fn serve(&self, custom: impl IntoIterator<Item = Kind>) {
        let served = Served::of(self.builtin.iter().cloned().chain(custom));
        *self.served.write().expect("a holder of the lock never panics") = Arc::new(served);
    }
}
