//! Files of the volumes that the node writes: ConfigMaps, Secrets, the downward API, and projections of them with tokens.

use std::collections::BTreeMap;

use hutch_api::API_AUDIENCE;
use k8s_openapi::api::core::v1::{
    ConfigMap, DownwardAPIVolumeFile, KeyToPath, ProjectedVolumeSource, Secret, Volume, VolumeProjection,
};
use kube::Client;

use super::look_up;
use super::publish::{Item, Room};
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
        // Before contents are copied: a Pod can name one of them many times.
        let mut room = Room::default();
        let disk = |items| Ok(Some(Given { items, secret: false }));
        let memory = |items| Ok(Some(Given { items, secret: true }));
        if let Some(map) = &volume.config_map {
            let mode = map.default_mode.unwrap_or(DEFAULT_MODE);
            disk(self.config_map(&map.name, map.items.as_deref(), mode, map.optional, &mut room).await?)
        } else if let Some(secret) = &volume.secret {
            let mode = secret.default_mode.unwrap_or(DEFAULT_MODE);
            let name = secret.secret_name.as_deref().unwrap_or("");
            memory(self.secret(name, secret.items.as_deref(), mode, secret.optional, &mut room).await?)
        } else if let Some(downward) = &volume.downward_api {
            let mode = downward.default_mode.unwrap_or(DEFAULT_MODE);
            disk(self.downward(downward.items.as_deref(), mode, &mut room)?)
        } else if let Some(projected) = &volume.projected {
            match self.projected(&volume.name, projected, &mut room).await? {
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
        room: &mut Room,
    ) -> Result<Vec<Item>, String> {
        let optional = optional == Some(true);
        let map: ConfigMap = look_up(self.client, self.namespace, name, optional).await?;
        let text = map.data.into_iter().flatten().map(|(key, value)| (key, value.into_bytes()));
        let binary = map.binary_data.into_iter().flatten().map(|(key, value)| (key, value.0));
        choose(&text.chain(binary).collect(), items, mode, optional, room)
    }

    async fn secret(
        &self,
        name: &str,
        items: Option<&[KeyToPath]>,
        mode: i32,
        optional: Option<bool>,
        room: &mut Room,
    ) -> Result<Vec<Item>, String> {
        let optional = optional == Some(true);
        let secret: Secret = look_up(self.client, self.namespace, name, optional).await?;
        let data = secret.data.into_iter().flatten().map(|(key, value)| (key, value.0)).collect();
        choose(&data, items, mode, optional, room)
    }

    fn downward(
        &self,
        items: Option<&[DownwardAPIVolumeFile]>,
        mode: i32,
        room: &mut Room,
    ) -> Result<Vec<Item>, String> {
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
            room.take(content.len())?;
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
        room: &mut Room,
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
                self.config_map(&map.name, map.items.as_deref(), mode, map.optional, room).await?
            } else if let Some(secret) = &source.secret {
                self.secret(&secret.name, secret.items.as_deref(), mode, secret.optional, room).await?
            } else if let Some(downward) = &source.downward_api {
                self.downward(downward.items.as_deref(), mode, room)?
            } else if let Some(token) = &source.service_account_token {
                let value = self.tokens.get(self.client, self.facts.pod, volume, token).await?;
                room.take(value.len())?;
                vec![Item { path: token.path.clone(), content: value.into_bytes(), mode }]
            } else {
                return Err(format!("volume {volume:?} has a projected source of an unsupported kind"));
            });
        }
        Ok(Some(items))
    }
}

/// Returns true for a token for the API server: one that names no audience, or its audience.
fn opens_the_api(source: &VolumeProjection) -> bool {
    let token = source.service_account_token.as_ref();
    token.is_some_and(|token| matches!(token.audience.as_deref(), None | Some("" | API_AUDIENCE)))
}

/// All keys under their own names, or those that are listed under theirs.
fn choose(
    data: &BTreeMap<String, Vec<u8>>,
    items: Option<&[KeyToPath]>,
    mode: i32,
    optional: bool,
    room: &mut Room,
) -> Result<Vec<Item>, String> {
    let Some(items) = items.filter(|items| !items.is_empty()) else {
        let all = data.iter().map(|(key, value)| {
            room.take(value.len())?;
            Ok(Item { path: key.clone(), content: value.clone(), mode })
        });
        return all.collect();
    };
    let mut chosen = Vec::new();
    for item in items {
        match data.get(&item.key) {
            Some(value) => {
                room.take(value.len())?;
                let mode = item.mode.unwrap_or(mode);
                chosen.push(Item { path: item.path.clone(), content: value.clone(), mode });
            }
            None if optional => {}
            None => return Err(format!("references non-existent key: {}", item.key)),
        }
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ServiceAccountTokenProjection;

    use super::*;

    #[test]
    fn listed_keys_must_be_there_unless_they_are_optional() {
        let data = BTreeMap::from([("a".to_owned(), b"1".to_vec()), ("b".to_owned(), b"2".to_vec())]);
        let item = |key: &str| vec![KeyToPath { key: key.into(), path: "x/y".into(), mode: None }];
        let paths = |items: Vec<Item>| items.into_iter().map(|item| item.path).collect::<Vec<_>>();
        assert_eq!(paths(choose(&data, None, 0o644, false, &mut Room::default()).unwrap()), ["a", "b"]);
        assert_eq!(
            paths(choose(&data, Some(&item("b")), 0o644, false, &mut Room::default()).unwrap()),
            ["x/y"]
        );
        assert!(choose(&data, Some(&item("c")), 0o644, false, &mut Room::default()).is_err());
        assert_eq!(choose(&data, Some(&item("c")), 0o644, true, &mut Room::default()).unwrap().len(), 0);
    }

    #[test]
    fn contents_that_are_named_many_times_are_not_copied_beyond_the_bound() {
        let data = BTreeMap::from([("a".to_owned(), vec![0; 1 << 20])]);
        let item = KeyToPath { key: "a".into(), path: "p".into(), mode: None };
        let copied = |count: usize| {
            choose(&data, Some(&vec![item.clone(); count]), 0o644, false, &mut Room::default())
        };
        assert_eq!(copied(32).unwrap().len(), 32);
        assert_eq!(copied(33).unwrap_err(), "more than 33554432 bytes");
        let mut room = Room::default();
        assert!((0..10_000).all(|_| room.take(0).is_ok()) && room.take(0).is_err());
    }

    #[test]
    fn token_for_the_api_server_is_left_out_by_any_name() {
        let opens = |audience: Option<&str>| {
            let token = ServiceAccountTokenProjection {
                audience: audience.map(str::to_owned),
                ..ServiceAccountTokenProjection::default()
            };
            opens_the_api(&VolumeProjection {
                service_account_token: Some(token),
                ..VolumeProjection::default()
            })
        };
        assert!(opens(None) && opens(Some("")) && opens(Some(API_AUDIENCE)) && !opens(Some("vault")));
    }
}
