//! The certificates that programs in the Pods of Sandboxes trust: a ConfigMap in each namespace, mounted into every container.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use futures::FutureExt;
use hutch_api::trust::VARIABLES;
use k8s_openapi::api::core::v1::{
    ConfigMap, ConfigMapVolumeSource, Container, EnvVar, PodSpec, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::error::Error;
use crate::patch::Strings;

/// Name of the ConfigMap and of its volume. The roles of `deploy/egress.yaml` name it.
const NAME: &str = hutch_api::trust::CONFIG_MAP;
/// Its key, and the name of the file.
const FILE: &str = "ca.crt";
/// Folder in containers at which it is mounted.
const FOLDER: &str = "/etc/hutch-egress";
/// Maximum bytes: those of a ConfigMap, less its metadata.
const BYTES: usize = 1000 << 10;
/// Time for which a namespace is taken to have its ConfigMap after a write.
const FRESH: Duration = Duration::from_secs(10);
/// Name under which the writes appear in its managed fields.
const FIELD_MANAGER: &str = "sandbox-controller";

/// Certificates, PEM: the authority of the gateway, and the public ones.
#[derive(Debug, Clone)]
pub(super) struct Bundle(String);

impl Bundle {
    /// # Errors
    /// It has no certificate, a key, or more bytes than a ConfigMap.
    pub(super) fn new(pem: String) -> Result<Bundle, String> {
        if pem.contains("PRIVATE KEY") {
            return Err("it must hold certificates alone, and it has a private key".to_owned());
        }
        if !pem.contains("-----BEGIN CERTIFICATE-----") {
            return Err("it has no certificate; it must be PEM".to_owned());
        }
        if pem.len() > BYTES {
            return Err(format!(
                "the certificates have {} bytes; a ConfigMap has at most {BYTES}",
                pem.len()
            ));
        }
        Ok(Bundle(pem))
    }

    fn object(&self) -> ConfigMap {
        let labels = Strings::from([("app".to_owned(), "hutch-egress".to_owned())]);
        let metadata =
            ObjectMeta { name: Some(NAME.to_owned()), labels: Some(labels), ..ObjectMeta::default() };
        let data = BTreeMap::from([(FILE.to_owned(), self.0.clone())]);
        ConfigMap { metadata, data: Some(data), ..ConfigMap::default() }
    }
}

/// Mounts the certificates into every container, with the variables that name them. A Pod or a container that has something
/// else in their place keeps it.
pub(super) fn mount(pod: &mut PodSpec) {
    let volumes = pod.volumes.get_or_insert_default();
    if volumes.iter().any(|volume| volume.name == NAME) {
        return;
    }
    let source = ConfigMapVolumeSource { name: NAME.to_owned(), ..ConfigMapVolumeSource::default() };
    volumes.push(Volume { name: NAME.to_owned(), config_map: Some(source), ..Volume::default() });
    pod.containers.iter_mut().chain(pod.init_containers.iter_mut().flatten()).for_each(mount_into);
}

fn mount_into(container: &mut Container) {
    let mounts = container.volume_mounts.get_or_insert_default();
    if mounts.iter().any(|mount| mount.mount_path.trim_end_matches('/') == FOLDER) {
        return;
    }
    mounts.push(VolumeMount {
        name: NAME.to_owned(),
        mount_path: FOLDER.to_owned(),
        read_only: Some(true),
        ..VolumeMount::default()
    });
    let value = Some(format!("{FOLDER}/{FILE}"));
    let variables =
        VARIABLES.map(|name| EnvVar { name: name.to_owned(), value: value.clone(), value_from: None });
    super::add(container, &variables);
}

/// Writes the ConfigMaps.
pub(crate) struct Bundles {
    client: Client,
    /// Time of the last write in each namespace.
    written: Mutex<HashMap<String, Instant>>,
}

impl Bundles {
    pub(crate) fn new(client: Client) -> Bundles {
        Bundles { client, written: Mutex::default() }
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Writes the ConfigMap of a namespace, without which its Pods would not start. The server ignores a write that changes
    /// nothing. Applying needs no right to read, and the right to create this one name.
    pub(super) async fn write(&self, namespace: &str, bundle: &Bundle) -> Result<(), Error> {
        let mut written = self.written.lock().await;
        written.retain(|_, time| time.elapsed() < FRESH);
        if written.contains_key(namespace) {
            return Ok(());
        }
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), namespace);
        let params = PatchParams::apply(FIELD_MANAGER).force();
        let applied = api.patch(NAME, &params, &Patch::Apply(bundle.object())).boxed().await;
        let failed = |source| Error::Change { kind: "ConfigMap".to_owned(), name: NAME.to_owned(), source };
        applied.map_err(failed)?;
        written.insert(namespace.to_owned(), Instant::now());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----\nAA\n-----END CERTIFICATE-----\n";

    #[test]
    fn bundle_has_certificates_and_no_key() {
        let object = Bundle::new(CERTIFICATE.to_owned()).unwrap().object();
        assert_eq!(object.data.unwrap()[FILE], CERTIFICATE);
        let key = "-----BEGIN PRIVATE KEY-----\nBB\n-----END PRIVATE KEY-----\n";
        for wrong in [String::new(), CERTIFICATE.to_owned() + key, CERTIFICATE.repeat(20_000)] {
            let error = Bundle::new(wrong).unwrap_err();
            assert!(!error.contains("BB"), "{error}");
        }
    }

    #[test]
    fn containers_trust_the_bundle_unless_they_have_something_else_there() {
        let mut pod: PodSpec = serde_json::from_value(json!({
            "containers": [
                {"name": "a", "env": [{"name": "SSL_CERT_FILE", "value": "own"}]},
                {"name": "b", "volumeMounts": [{"name": "own", "mountPath": "/etc/hutch-egress/"}]},
            ],
            "initContainers": [{"name": "c"}],
        }))
        .unwrap();
        mount(&mut pod);
        let names = |container: &Container| -> Vec<String> {
            container.env.iter().flatten().map(|variable| variable.name.clone()).collect()
        };
        let [a, b] = &pod.containers[..] else { panic!("two containers") };
        assert_eq!(names(a), VARIABLES);
        assert_eq!(a.env.as_ref().unwrap()[0].value.as_deref(), Some("own"));
        assert_eq!(a.env.as_ref().unwrap()[1].value.as_deref(), Some("/etc/hutch-egress/ca.crt"));
        assert!(names(b).is_empty() && b.volume_mounts.as_ref().unwrap().len() == 1);
        assert_eq!(names(&pod.init_containers.as_ref().unwrap()[0]), VARIABLES);
        let mounted = &a.volume_mounts.as_ref().unwrap()[0];
        assert_eq!((mounted.mount_path.as_str(), mounted.read_only), (FOLDER, Some(true)));
        assert_eq!(pod.volumes.as_ref().unwrap()[0].config_map.as_ref().unwrap().name, NAME);

        let own = json!({"containers": [{"name": "a"}], "volumes": [{"name": NAME, "emptyDir": {}}]});
        let mut pod: PodSpec = serde_json::from_value(own).unwrap();
        mount(&mut pod);
        assert!(pod.containers[0].env.is_none(), "the volume of the Pod stays");
    }
}
