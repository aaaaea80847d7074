//! Files of the volumes that the node writes: ConfigMaps, Secrets, the downward API, and projections of them with tokens.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    ConfigMap, DownwardAPIVolumeFile, KeyToPath, ProjectedVolumeSource, Secret, Volume, VolumeProjection,
};
use kube::Client;

use super::look_up;
use super::publish::Item;
use crate::environment::{self, Facts};
use crate::tokens::Tokens;

/// Mode of files from ConfigMaps, Secrets and the downward API that name none.
const DEFAULT_MODE: i32 = 0o644;
/// The ConfigMap that Kubernetes puts beside a token for its API.
const API_CERTIFICATE: &str = "kube-root-ca.crt";

/// The files of a volume that the node writes.
pub(super) struct Given {
    pub(super) items: Vec<Item>,
    /// `true` if they may be secret, and are kept in memory.
    pub(super) secret: bool,
}

/// Where the files of a volume come from.
pub(super) struct Sources<'a> {
    pub(super) client: &'a Client,
    pub(super) namespace: &'a str,
    pub(super) facts: &'a Facts<'a>,
    pub(super) tokens: &'a Tokens,
}

impl Sources<'_> {
    /// The files of a volume; `None` when a sandbox gets nothing of it.
    pub(super) async fn given(&self, volume: &Volume) -> Result<Option<Given>, String> {
        let disk = |items| Ok(Some(Given { items, secret: false }));
        let memory = |items| Ok(Some(Given { items, secret: true }));
        if let Some(map) = &volume.config_map {
            let mode = map.default_mode.unwrap_or(DEFAULT_MODE);
            disk(self.config_map(&map.name, map.items.as_deref(), mode, map.optional).await?)
        } else if let Some(secret) = &volume.secret {
            let mode = secret.default_mode.unwrap_or(DEFAULT_MODE);
            let name = secret.secret_name.as_deref().unwrap_or("");
            memory(self.secret(name, secret.items.as_deref(), mode, secret.optional).await?)
        } else if let Some(downward) = &volume.downward_api {
            disk(self.downward(downward.items.as_deref(), downward.default_mode.unwrap_or(DEFAULT_MODE))?)
        } else if let Some(projected) = &volume.projected {
            match self.projected(&volume.name, projected).await? {
                Some(items) => memory(items),
                None => Ok(None),
            }
        } else {
            disk(Vec::new())
        }
    }

    async fn config_map(
        &self,
        name: &str,
        items: Option<&[KeyToPath]>,
        mode: i32,
        optional: Option<bool>,
    ) -> Result<Vec<Item>, String> {
        let optional = optional == Some(true);
        let map: ConfigMap = look_up(self.client, self.namespace, name, optional).await?;
        let text = map.data.into_iter().flatten().map(|(key, value)| (key, value.into_bytes()));
        let binary = map.binary_data.into_iter().flatten().map(|(key, value)| (key, value.0));
        choose(&text.chain(binary).collect(), items, mode, optional)
    }

    async fn secret(
        &self,
        name: &str,
        items: Option<&[KeyToPath]>,
        mode: i32,
        optional: Option<bool>,
    ) -> Result<Vec<Item>, String> {
        let optional = optional == Some(true);
        let secret: Secret = look_up(self.client, self.namespace, name, optional).await?;
        let data = secret.data.into_iter().flatten().map(|(key, value)| (key, value.0)).collect();
        choose(&data, items, mode, optional)
    }

    fn downward(&self, items: Option<&[DownwardAPIVolumeFile]>, mode: i32) -> Result<Vec<Item>, String> {
        let content = |item: &DownwardAPIVolumeFile| match (&item.field_ref, &item.resource_field_ref) {
            (Some(field), _) => environment::field_value(&field.field_path, self.facts),
            (None, Some(resource)) => {
                let spec = self.facts.pod.spec.as_ref().ok_or("the Pod has no spec")?;
                let named = resource.container_name.as_deref();
                let container = spec.containers.iter().find(|c| Some(c.name.as_str()) == named);
                let container = container.ok_or("resourceFieldRef names no container of the Pod")?;
                environment::resource_value(resource, container, self.facts)
            }
            (None, None) => Err("a downward API file names no source".into()),
        };
        let items = items.unwrap_or(&[]).iter().map(|item| {
            let content = content(item)?.into_bytes();
            Ok(Item { path: item.path.clone(), content, mode: item.mode.unwrap_or(mode) })
        });
        items.collect()
    }

    /// All but tokens for the API server and the certificate by which it is known: a sandbox does not get them. Nothing, when
    /// nothing else is listed.
    async fn projected(
        &self,
        volume: &str,
        projected: &ProjectedVolumeSource,
    ) -> Result<Option<Vec<Item>>, String> {
        let mode = projected.default_mode.unwrap_or(DEFAULT_MODE);
        let sources = projected.sources.as_deref().unwrap_or(&[]);
        let has_token = sources.iter().any(opens_the_api);
        let wanted = sources.iter().filter(|source| {
            let certificate = source.config_map.as_ref().is_some_and(|map| map.name == API_CERTIFICATE);
            !(opens_the_api(source) || has_token && certificate)
        });
        let wanted: Vec<_> = wanted.collect();
        if has_token && wanted.is_empty() {
            return Ok(None);
        }
        let mut items = Vec::new();
        for source in wanted {
            items.extend(if let Some(map) = &source.config_map {
                self.config_map(&map.name, map.items.as_deref(), mode, map.optional).await?
            } else if let Some(secret) = &source.secret {
                self.secret(&secret.name, secret.items.as_deref(), mode, secret.optional).await?
            } else if let Some(downward) = &source.downward_api {
                self.downward(downward.items.as_deref(), mode)?
            } else if let Some(token) = &source.service_account_token {
                let value = self.tokens.get(self.client, self.facts.pod, volume, token).await?;
                vec![Item { path: token.path.clone(), content: value.into_bytes(), mode }]
            } else {
                return Err(format!("volume {volume:?} has a projected source of an unsupported kind"));
            });
        }
        Ok(Some(items))
    }
}

/// Returns true for a token for the API server: one that names no audience.
fn opens_the_api(source: &VolumeProjection) -> bool {
    let token = source.service_account_token.as_ref();
    token.is_some_and(|token| token.audience.as_deref().unwrap_or("").is_empty())
}

/// All keys under their own names, or those that are listed under theirs.
fn choose(
    data: &BTreeMap<String, Vec<u8>>,
    items: Option<&[KeyToPath]>,
    mode: i32,
    optional: bool,
) -> Result<Vec<Item>, String> {
    let Some(items) = items.filter(|items| !items.is_empty()) else {
        let all = data.iter().map(|(key, value)| Item { path: key.clone(), content: value.clone(), mode });
        return Ok(all.collect());
    };
    let mut chosen = Vec::new();
    for item in items {
        match data.get(&item.key) {
            Some(value) => chosen.push(Item {
                path: item.path.clone(),
                content: value.clone(),
                mode: item.mode.unwrap_or(mode),
            }),
            None if optional => {}
            None => return Err(format!("references non-existent key: {}", item.key)),
        }
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listed_keys_must_be_there_unless_they_are_optional() {
        let data = BTreeMap::from([("a".to_owned(), b"1".to_vec()), ("b".to_owned(), b"2".to_vec())]);
        let item = |key: &str| vec![KeyToPath { key: key.into(), path: "x/y".into(), mode: None }];
        let paths = |items: Vec<Item>| items.into_iter().map(|item| item.path).collect::<Vec<_>>();
        assert_eq!(paths(choose(&data, None, 0o644, false).unwrap()), ["a", "b"]);
        assert_eq!(paths(choose(&data, Some(&item("b")), 0o644, false).unwrap()), ["x/y"]);
        assert!(choose(&data, Some(&item("c")), 0o644, false).is_err());
        assert_eq!(choose(&data, Some(&item("c")), 0o644, true).unwrap().len(), 0);
    }
}
