//! Reduced forms of objects in the caches, which save memory.

use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher};
use std::io;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use hutch_api::condition::{ISOLATION_OF_POD, POD_SCHEDULED, POLICY_ENFORCED_OF_POD, READY};
use hutch_api::late_env;
use hutch_api::sleep::FROZEN_OF_POD;
use hutch_api::state::RESTORED_POD;
use k8s_openapi::api::core::v1::{Pod, PodCondition, PodIP, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::core::NamespaceResourceScope;
use serde::{Deserialize, Serialize};

/// Types of the conditions that the controllers read.
const READ_CONDITIONS: [&str; 7] = [
    READY,
    POD_SCHEDULED,
    late_env::CONDITION,
    FROZEN_OF_POD,
    POLICY_ENFORCED_OF_POD,
    ISOLATION_OF_POD,
    RESTORED_POD,
];

/// Pod with its owner, node and status.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct PodView {
    pub(crate) metadata: ObjectMeta,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) spec: Option<PodSpecView>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) status: Option<PodStatusView>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PodSpecView {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) node_name: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PodStatusView {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) phase: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) conditions: Option<Vec<PodCondition>>,
    #[serde(default, rename = "podIPs", skip_serializing_if = "Option::is_none")]
    pub(crate) pod_ips: Option<Vec<PodIP>>,
}

impl PodView {
    /// Conditions of the Pod.
    pub(crate) fn conditions(&self) -> &[PodCondition] {
        self.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default()
    }

    /// Drops the conditions that the controllers do not read.
    pub(crate) fn trim(&mut self) {
        let conditions = self.status.as_mut().and_then(|status| status.conditions.as_mut());
        if let Some(conditions) = conditions {
            conditions.retain(|condition| READ_CONDITIONS.contains(&condition.type_.as_str()));
            conditions.shrink_to_fit();
        }
    }
}

impl Resource for PodView {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        Pod::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        Pod::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        Pod::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        Pod::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// Pod specs of all cached Sandboxes, each kept once: those of one template are mostly equal.
#[derive(Default)]
pub(crate) struct SharedSpecs(Mutex<Shared>);

#[derive(Default)]
struct Shared {
    by_hash: HashMap<u64, Vec<Weak<PodSpec>>>,
    /// Number of hashes after unused ones were last dropped.
    kept: usize,
}

impl SharedSpecs {
    /// Minimum number of hashes before unused ones are dropped.
    const FEW: usize = 64;

    /// Replaces the spec with an equal one that is cached already.
    pub(crate) fn share(&self, spec: &mut Arc<PodSpec>) {
        let hash = json_hash(spec.as_ref());
        let mut shared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = shared.by_hash.entry(hash).or_default();
        known.retain(|spec| spec.strong_count() > 0);
        match known.iter().filter_map(Weak::upgrade).find(|known| known == spec) {
            Some(equal) => *spec = equal,
            None => known.push(Arc::downgrade(spec)),
        }
        if shared.by_hash.len() > 2 * shared.kept.max(Self::FEW) {
            shared.by_hash.retain(|_, specs| specs.iter().any(|spec| spec.strong_count() > 0));
            shared.kept = shared.by_hash.len();
        }
    }
}

fn json_hash(value: &impl Serialize) -> u64 {
    struct Feed(DefaultHasher);
    impl io::Write for Feed {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.write(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut feed = Feed(DefaultHasher::new());
    // A value that is not JSON has a hash too, and equality decides.
    let _ = serde_json::to_writer(&mut feed, value);
    feed.0.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(name: &str) -> Arc<PodSpec> {
        Arc::new(PodSpec { node_name: Some(name.into()), ..PodSpec::default() })
    }

    #[test]
    fn equal_specs_become_one_and_the_unused_are_dropped() {
        let shared = SharedSpecs::default();
        let (mut a, mut b, mut other) = (spec("a"), spec("a"), spec("b"));
        for spec in [&mut a, &mut b, &mut other] {
            shared.share(spec);
        }
        assert!(Arc::ptr_eq(&a, &b) && !Arc::ptr_eq(&a, &other));
        for n in 0..1000 {
            shared.share(&mut spec(&n.to_string()));
        }
        let known = shared.0.lock().unwrap().by_hash.len();
        assert!(known <= 2 * SharedSpecs::FEW + 1, "{known}");
        let mut again = spec("b");
        shared.share(&mut again);
        assert!(Arc::ptr_eq(&again, &other));
    }
}
