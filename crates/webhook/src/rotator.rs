//! Keeps the Secret and the definitions in step. See the crate's documentation for the order of things.

use std::time::SystemTime;

use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use kube::api::{Api, PostParams};

use crate::definitions::{Definitions, Published};
use crate::key_material::{AUTHORITIES_KEY, KeyMaterial, Standing};
use crate::{Error, Settings, authority};

/// The Secret that all replicas share.
pub(crate) const SECRET: &str = "agent-sandbox-webhook-certs";
/// How often a read and a write that others came between are tried again at once.
const ATTEMPTS: usize = 5;

pub(crate) struct CertificateRotator {
    settings: Settings,
    secrets: Api<Secret>,
    definitions: Definitions,
}

impl CertificateRotator {
    pub(crate) fn new(client: Client, settings: Settings) -> CertificateRotator {
        let secrets = Api::namespaced(client.clone(), &settings.namespace);
        CertificateRotator { settings, secrets, definitions: Definitions::new(client) }
    }

    /// The material to show at that time. When this returns, the Secret holds it and the definitions trust it.
    pub(crate) async fn look(&mut self, now: SystemTime) -> Result<KeyMaterial, Error> {
        for _ in 0..ATTEMPTS {
            // First the definitions, then the Secret: a client that writes the definitions in between wins over us.
            self.definitions.observe().await?;
            let material = self.settle(now).await?;
            let published = self.definitions.publish(&self.settings, &material.authorities).await?;
            if published == Published::Done {
                return Ok(material);
            }
        }
        Err(Error::Contended(ATTEMPTS))
    }

    /// Returns the content of the Secret, created or renewed when that is due.
    async fn settle(&self, now: SystemTime) -> Result<KeyMaterial, Error> {
        let doing = |verb: &str| Error::api(format!("{verb} Secret {}/{SECRET}", self.settings.namespace));
        for _ in 0..ATTEMPTS {
            let stored = self.secrets.get_opt(SECRET).await.map_err(doing("reading"))?;
            let Some(mut secret) = stored else {
                let fresh = authority::issue(&self.settings, now)?;
                match self.secrets.create(&PostParams::default(), &self.secret(&fresh)).await {
                    Ok(_) => {
                        tracing::info!(secret = SECRET, "certificates of the webhook made");
                        return Ok(fresh);
                    }
                    Err(kube::Error::Api(status)) if status.is_already_exists() => continue,
                    Err(error) => return Err(doing("creating")(error)),
                }
            };
            let mut data = secret.data.take().unwrap_or_default();
            let (held, why) = match KeyMaterial::read(&data) {
                Err(why) => (None, why),
                Ok(material) => match material.standing(&self.settings.server_name(), now) {
                    Standing::Good => return Ok(material),
                    Standing::Due(end) => (Some(material), format!("it ends {end}")),
                    Standing::Useless(why) => (None, why),
                },
            };
            let older = data.get(AUTHORITIES_KEY).map(|bytes| bytes.0.clone()).unwrap_or_default();
            let fresh = authority::issue(&self.settings, now)?.trusting_too(&older, now);
            data.extend(fresh.data());
            secret.data = Some(data);
            match self.secrets.replace(SECRET, &PostParams::default(), &secret).await {
                Ok(_) => {
                    tracing::info!(secret = SECRET, why, "certificates of the webhook renewed");
                    return Ok(fresh);
                }
                Err(kube::Error::Api(status)) if status.is_conflict() || status.is_not_found() => {}
                Err(error) => {
                    let error = doing("changing")(error);
                    let Some(held) = held else { return Err(error) };
                    tracing::warn!(%error, why, "the webhook's certificate cannot be renewed; it is used to its end");
                    return Ok(held);
                }
            }
        }
        Err(Error::Contended(ATTEMPTS))
    }

    fn secret(&self, material: &KeyMaterial) -> Secret {
        Secret {
            metadata: ObjectMeta {
                name: Some(SECRET.to_owned()),
                namespace: Some(self.settings.namespace.clone()),
                ..ObjectMeta::default()
            },
            type_: Some("Opaque".to_owned()),
            data: Some(material.data()),
            ..Secret::default()
        }
    }
}
