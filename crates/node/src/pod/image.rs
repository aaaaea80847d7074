//! Images of containers: found on this machine, or pulled, with the events and reasons of a kubelet.

use std::path::PathBuf;
use std::time::Instant;

use hutch_image::{Reference, Resolved};
use hutch_registry::ImageName;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{LocalObjectReference, Secret, ServiceAccount};

use super::start::Setback;
use super::state::Life;
use super::{Worker, outcome_of};
use crate::config::{ImagePuller, PullFailure, PullSecret};
use crate::{trust, volumes};

/// First wait before an image is tried again; it doubles with each failure.
const FIRST_RETRY: SignedDuration = SignedDuration::from_secs(10);
/// Longest wait.
const MAX_RETRY: SignedDuration = SignedDuration::from_secs(300);
/// Maximum Secrets of a Pod that are read for its images.
const MAX_SECRETS: usize = 32;

/// The image cannot be had.
const PULL: &str = "ErrImagePull";
/// It cannot be had again.
const BACK_OFF: &str = "ImagePullBackOff";
/// It is not there, and must not be pulled.
const NEVER: &str = "ErrImageNeverPull";
/// Its name is invalid.
const INVALID: &str = "InvalidImageName";
/// It has no valid signature.
const UNSIGNED: &str = "SignatureValidationFailed";

/// Where an image comes from.
enum Origin {
    /// It is built in, or a folder.
    Local,
    /// It is or was pulled.
    Pulled(ImageName),
}

/// Returns the wait after so many failures.
fn retry_after(failures: u32) -> SignedDuration {
    let doublings = failures.saturating_sub(1).min(10);
    FIRST_RETRY.checked_mul(1 << doublings).unwrap_or(MAX_RETRY).min(MAX_RETRY)
}

impl Worker {
    /// Records why a container cannot be made now.
    pub(super) fn set_back(&mut self, index: usize, setback: Setback) {
        let Setback { mut reason, mut message, mut retry } = setback;
        let of_image = [PULL, UNSIGNED, NEVER, INVALID].contains(&reason);
        let (name, image) = (self.states[index].name.clone(), self.states[index].image.clone());
        if of_image {
            let failures = self.states[index].image_failures.saturating_add(1);
            self.states[index].image_failures = failures;
            retry = retry_after(failures);
            let was_waiting = matches!(self.states[index].life, Life::Waiting { .. });
            if [PULL, UNSIGNED].contains(&reason) && failures > 1 && was_waiting {
                let text = format!("Back-off pulling image {image:?}");
                self.node.events.container(&self.pod, &name, false, "BackOff", text.clone());
                message = format!("{text}: {reason}: {message}");
                reason = BACK_OFF;
            }
        }
        let text = format!("Error: {}", if of_image { reason } else { &message });
        self.node.events.container(&self.pod, &name, true, "Failed", text);
        let until = Timestamp::now().checked_add(retry).unwrap_or(Timestamp::MAX);
        self.states[index].wait(reason, message, until);
    }

    /// Resolves the image of a container. Returns also where its certificates are mounted, if it has a proxy.
    pub(super) async fn image(&mut self, index: usize) -> Result<(Resolved, Vec<PathBuf>), Setback> {
        let image = match self.origin(index)? {
            Origin::Local => self.local(index).await?,
            Origin::Pulled(name) => self.pulled(index, &name).await?,
        };
        self.states[index].image_failures = 0;
        let Some(container) = self.node.config.egress.is_some().then(|| self.containers[index].clone())
        else {
            return Ok((image, Vec::new()));
        };
        let found = tokio::task::spawn_blocking(move || {
            let trusted = trust::targets_of(&image, &container);
            (image, trusted)
        });
        found.await.map_err(|e| self.not_pulled(index, &e.to_string()))
    }

    /// Decides where an image comes from. A built-in image answers for a published one that may not be pulled.
    fn origin(&self, index: usize) -> Result<Origin, Setback> {
        let text = &self.states[index].image;
        let config = &self.node.config;
        let covered = |name: &ImageName| config.puller.as_ref().is_some_and(|p| p.check(name).is_ok());
        let name = ImageName::parse(text);
        match (Reference::parse(text), name) {
            (Ok(Reference::BuiltIn(_) | Reference::Layout(_)), _) => Ok(Origin::Local),
            (Ok(Reference::Published(_)), Ok(name)) if config.substitute_images && !covered(&name) => {
                Ok(Origin::Local)
            }
            (_, Ok(name)) => Ok(Origin::Pulled(name)),
            (_, Err(error)) => {
                let why = format!(
                    "Failed to apply default image tag {text:?}: couldn't parse image name {text:?}: {error}"
                );
                self.tell(index, true, "InspectFailed", why.clone());
                Err(Setback { reason: INVALID, message: why, retry: MAX_RETRY })
            }
        }
    }

    /// Resolves an image that is built in or a folder.
    async fn local(&self, index: usize) -> Result<Resolved, Setback> {
        let (images, name) = (self.node.images.clone(), self.states[index].image.clone());
        let resolved = tokio::task::spawn_blocking(move || images.resolve(&name)).await;
        let resolved = resolved.map_err(|e| self.not_pulled(index, &e.to_string()))?;
        let image = resolved.map_err(|e| self.not_pulled(index, &e.to_string()))?;
        let text = match image.substituted {
            Some(built_in) => {
                let image = &self.states[index].image;
                format!("Image {image:?} is answered by the built-in image {built_in}")
            }
            None => self.present(index),
        };
        self.tell(index, false, "Pulled", text);
        Ok(image)
    }

    /// Resolves an image that the administrator has pulled, or pulls it with the credentials of the Pod.
    ///
    /// An image that was pulled for a Pod is used without a request only if the same credentials have pulled it.
    async fn pulled(&mut self, index: usize, name: &ImageName) -> Result<Resolved, Setback> {
        let policy = self.containers[index].image_pull_policy.as_deref().unwrap_or("IfNotPresent");
        let always = policy == "Always";
        let imported = name.is_imported();
        let puller = self.node.config.puller.clone();
        let allowed = match &puller {
            _ if imported => Err(format!("image {name} was not imported: hutch image import imports it")),
            Some(puller) => puller.check(name),
            None => Err(format!(
                "image {name} is not on this machine, and this server pulls none: hutch up --pull-from {} allows it",
                name.registry()
            )),
        };
        // What the administrator has pulled is for all Pods, unless it needs a signature, which nothing has checked. What was
        // imported has none.
        let needs_signature = !imported && puller.as_ref().is_some_and(|puller| puller.needs_signature(name));
        if (!always || allowed.is_err())
            && !needs_signature
            && let Some(image) = self.find(index, self.node.config.pulled.clone(), name).await?
        {
            self.tell(index, false, "Pulled", self.present(index));
            return Ok(image);
        }
        let secrets = if allowed.is_ok() { self.pull_secrets().await } else { Vec::new() };
        if let (Some(puller), Ok(()), false) = (&puller, &allowed, always)
            && let Some(stored) = puller.has_pulled(name, &secrets)
            && let Some(image) = self.find(index, puller.folder().to_owned(), &stored).await?
        {
            self.tell(index, false, "Pulled", self.present(index));
            return Ok(image);
        }
        if policy == "Never" || imported {
            let image = &self.states[index].image;
            let why = match &allowed {
                Err(why) if imported => why.clone(),
                _ => format!("Container image {image:?} is not present with pull policy of Never"),
            };
            self.tell(index, true, NEVER, why.clone());
            return Err(Setback { reason: NEVER, message: why, retry: MAX_RETRY });
        }
        allowed.map_err(|why| self.not_pulled(index, &why))?;
        match puller {
            Some(puller) => self.pull(index, &*puller, name, secrets).await,
            None => Err(self.not_pulled(index, "this server pulls no images")),
        }
    }

    async fn pull(
        &mut self,
        index: usize,
        puller: &dyn ImagePuller,
        name: &ImageName,
        secrets: Vec<PullSecret>,
    ) -> Result<Resolved, Setback> {
        let text = self.states[index].image.clone();
        self.tell(index, false, "Pulling", format!("Pulling image {text:?}"));
        let started = Instant::now();
        let mut updates = self.updates.clone();
        let ended = async {
            while outcome_of(&mut updates).is_none() {
                if updates.changed().await.is_err() {
                    return;
                }
            }
        };
        let pulled = tokio::select! {
            pulled = puller.pull(name, secrets) => pulled,
            () = ended => Err(PullFailure::Failed("the pod has ended".into())),
            () = self.node.shutdown.wait() => Err(PullFailure::Failed("the server stops".into())),
        };
        let (stored, bytes) = pulled.map_err(|failure| match failure {
            PullFailure::Failed(why) => self.not_pulled(index, &why),
            PullFailure::Unsigned(why) => Setback { reason: UNSIGNED, ..self.not_pulled(index, &why) },
        })?;
        let found = self.find(index, puller.folder().to_owned(), &stored).await?;
        let image = found.ok_or_else(|| self.not_pulled(index, "it was pulled and is not there"))?;
        let took = started.elapsed().as_millis();
        let took = if took < 1000 { format!("{took}ms") } else { format!("{:.3}s", took as f64 / 1e3) };
        let text = format!(
            "Successfully pulled image {text:?} in {took} ({took} including waiting). Image size: {bytes} bytes."
        );
        self.tell(index, false, "Pulled", text);
        Ok(image)
    }

    /// Finds an image in a folder of pulled images, and unpacks it if necessary.
    async fn find(
        &self,
        index: usize,
        folder: PathBuf,
        name: &ImageName,
    ) -> Result<Option<Resolved>, Setback> {
        let (images, name) = (self.node.images.clone(), name.to_string());
        let found = tokio::task::spawn_blocking(move || images.find_pulled(&folder, &name)).await;
        let found = found.map_err(|e| self.not_pulled(index, &e.to_string()))?;
        found.map_err(|e| self.not_pulled(index, &e.to_string()))
    }

    /// Returns the references of the Pod, or if it has none those of its ServiceAccount.
    async fn pull_references(&self) -> Vec<LocalObjectReference> {
        let own = self.spec.image_pull_secrets.clone().unwrap_or_default();
        if !own.is_empty() {
            return own;
        }
        let name = self.spec.service_account_name.as_deref().filter(|name| !name.is_empty());
        let (name, namespace) = (name.unwrap_or("default"), &self.live.id.namespace);
        let account: Result<Option<ServiceAccount>, String> =
            volumes::find(&self.node.client, namespace, name).await;
        let account = account.unwrap_or_else(|error| {
            tracing::warn!(
                account = name,
                error,
                "failed to read the image pull secrets of a service account"
            );
            None
        });
        account.and_then(|account| account.image_pull_secrets).unwrap_or_default()
    }

    /// Reads the Secrets of `imagePullSecrets`. Missing ones are reported, and the pull is tried without them.
    async fn pull_secrets(&self) -> Vec<PullSecret> {
        let (mut found, mut missing) = (Vec::new(), Vec::new());
        let references = self.pull_references().await;
        for reference in references.iter().take(MAX_SECRETS) {
            let read = volumes::find(&self.node.client, &self.live.id.namespace, &reference.name).await;
            let secret: Option<Secret> = read.unwrap_or_else(|error| {
                tracing::warn!(secret = reference.name, error, "failed to read an image pull secret");
                None
            });
            match secret.and_then(|secret| PullSecret::of(&reference.name, &secret)) {
                Some(secret) => found.push(secret),
                None => missing.push(reference.name.as_str()),
            }
        }
        if !missing.is_empty() {
            let text = format!(
                "Unable to retrieve some image pull secrets ({}); attempting to pull the image may not succeed.",
                missing.join(", ")
            );
            self.node.events.warning(&self.pod, "FailedToRetrieveImagePullSecret", text);
        }
        found
    }

    fn present(&self, index: usize) -> String {
        format!("Container image {:?} already present on machine", self.states[index].image)
    }

    fn tell(&self, index: usize, warning: bool, reason: &'static str, text: String) {
        self.node.events.container(&self.pod, &self.states[index].name, warning, reason, text);
    }

    /// Reports that an image cannot be had.
    fn not_pulled(&self, index: usize, why: &str) -> Setback {
        let message = format!("Failed to pull image {:?}: {why}", self.states[index].image);
        self.tell(index, true, "Failed", message.clone());
        Setback { reason: PULL, message, retry: FIRST_RETRY }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pulls_are_retried_after_ten_seconds_and_at_last_every_five_minutes() {
        let waits: Vec<i64> = (1..8).map(|failures| retry_after(failures).as_secs()).collect();
        assert_eq!(waits, [10, 20, 40, 80, 160, 300, 300]);
    }
}
