//! Credentials that the policies of Pods offer. Values never come here: the proxy gets them from elsewhere.

use std::sync::Arc;

use hutch_api::label;
use hutch_api::state::CredentialsOfFork;
use hutch_policy::{Level, unambiguous};
use k8s_openapi::api::core::v1::Pod;

use super::known::Known;
use crate::config::{Holder, Offer};
use crate::live::Live;
use crate::trust;

/// Name of the ServiceAccount of a Pod that names none.
const DEFAULT_ACCOUNT: &str = "default";

impl Known {
    /// Returns the credentials that the levels of a Pod offer, and what is wrong with others.
    pub(super) fn offers(&self, levels: &[Arc<Level>]) -> (Vec<Offer>, Vec<String>) {
        let (found, mut mistakes) = unambiguous(levels);
        let mut offers = Vec::with_capacity(found.len());
        for (level, credential) in found {
            let name = credential.provider.clone().unwrap_or_default();
            let provider = self.providers.objects.get(&(String::new(), name.clone()));
            if !matches!(provider, Some(Some(_))) {
                let what = if provider.is_some() { "is invalid" } else { "does not exist" };
                let of = format!("credential {:?} of policy {:?}", credential.name, level.name);
                mistakes.push(format!("{of}: CredentialProvider {name:?} {what}"));
            }
            offers.push(Offer {
                policy: level.name.clone(),
                credential: credential.clone(),
                provider: provider.cloned().flatten(),
            });
        }
        (offers, mistakes)
    }

    /// Returns true if the Sandbox of a Pod waits in a warm pool.
    pub(super) fn is_pooled(&self, pod: &Pod) -> bool {
        let sandbox = self.objects.sandbox(pod);
        sandbox.is_some_and(|sandbox| sandbox.labels.contains_key(label::WARM_POOL_SANDBOX))
    }

    /// Returns the placeholders in the memory of a Pod, if its Sandbox belongs to a fork.
    pub(super) fn fork(&self, pod: &Pod) -> Option<&CredentialsOfFork> {
        self.objects.sandbox(pod)?.fork.as_ref()
    }
}

/// Returns the name of the sandbox whose placeholders a Pod has.
pub(super) fn placeholders(live: &Live, pod: &Pod, fork: Option<&CredentialsOfFork>) -> String {
    let inherited = fork.and_then(CredentialsOfFork::inherited);
    inherited.map_or_else(|| trust::sandbox_of(&live.id, pod), |uid| trust::name(&live.id.namespace, uid))
}

/// Returns the Pod as the holder of credentials.
pub(super) fn holder(known: &Known, live: &Live, pod: &Pod, claimed: bool) -> Holder {
    let account = pod.spec.as_ref().and_then(|spec| spec.service_account_name.clone());
    let fork = known.fork(pod);
    let refused = fork.and_then(CredentialsOfFork::refused);
    Holder {
        pod: live.id.clone(),
        sandbox: trust::sandbox_of(&live.id, pod),
        placeholders: placeholders(live, pod, fork),
        refused: refused.map(|uid| trust::name(&live.id.namespace, uid)),
        account: account.filter(|name| !name.is_empty()).unwrap_or_else(|| DEFAULT_ACCOUNT.to_owned()),
        claimed,
    }
}
