//! Substitutes values that a script cannot contain: `${uid Kind/name}`, `${now+3s}`, `${sandbox of CLAIM}`, `${member N of POOL}`
//! (counted from 0, oldest first).

use anyhow::{Context, bail};
use hutch_api::Sandbox;
use kube::core::DynamicObject;
use kube::{Api, Client, ResourceExt};
use serde_json::Value;

use super::kind;

pub(crate) struct Substitute<'a> {
    pub(crate) client: &'a Client,
    pub(crate) namespace: &'a str,
}

impl Substitute<'_> {
    /// The value with every string in it filled in.
    pub(crate) async fn value(&self, value: &Value) -> anyhow::Result<Value> {
        Ok(match value {
            Value::String(text) => self.text(text).await?.into(),
            Value::Array(items) => {
                let mut filled = Vec::new();
                for item in items {
                    filled.push(Box::pin(self.value(item)).await?);
                }
                filled.into()
            }
            Value::Object(map) => {
                let mut filled = serde_json::Map::new();
                for (key, value) in map {
                    filled.insert(key.clone(), Box::pin(self.value(value)).await?);
                }
                filled.into()
            }
            other => other.clone(),
        })
    }

    pub(crate) async fn text(&self, text: &str) -> anyhow::Result<String> {
        let (mut rest, mut filled) = (text, String::new());
        while let Some((before, after)) = rest.split_once("${") {
            let (word, behind) =
                after.split_once('}').with_context(|| format!("{text:?}: no closing brace"))?;
            filled.push_str(before);
            filled.push_str(&self.word(word).await.with_context(|| format!("${{{word}}}"))?);
            rest = behind;
        }
        filled.push_str(rest);
        Ok(filled)
    }

    async fn word(&self, word: &str) -> anyhow::Result<String> {
        if word == "namespace" {
            return Ok(self.namespace.to_owned());
        }
        if let Some(shift) = word.strip_prefix("now") {
            let seconds: i64 = shift.trim_end_matches('s').parse().context("seconds, as in now+3s")?;
            let time = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(seconds);
            return Ok(format!("{time:.0}"));
        }
        if let Some(object) = word.strip_prefix("uid ") {
            let (kind, name) = object.split_once('/').context("Kind/name")?;
            let api: Api<DynamicObject> =
                Api::namespaced_with(self.client.clone(), self.namespace, &kind::resource(kind)?);
            return api.get(name).await?.uid().context("a uid");
        }
        if let Some(claim) = word.strip_prefix("sandbox of ") {
            let api: Api<hutch_api::SandboxClaim> = Api::namespaced(self.client.clone(), self.namespace);
            let status = api.get(claim).await?.status.and_then(|status| status.sandbox);
            return status.and_then(|sandbox| sandbox.name).context("no Sandbox is bound");
        }
        if let Some((number, pool)) = word.strip_prefix("member ").and_then(|rest| rest.split_once(" of ")) {
            return self.member(number.parse()?, pool).await;
        }
        bail!("not known")
    }

    async fn member(&self, number: usize, pool: &str) -> anyhow::Result<String> {
        let api: Api<Sandbox> = Api::namespaced(self.client.clone(), self.namespace);
        let mut members = api.list(&Default::default()).await?.items;
        members.retain(|sandbox| {
            sandbox
                .owner_references()
                .iter()
                .any(|owner| owner.kind == "SandboxWarmPool" && owner.name == pool)
        });
        members.sort_by_key(|sandbox| (sandbox.creation_timestamp(), sandbox.name_any()));
        members.get(number).map(ResourceExt::name_any).with_context(|| format!("there are {}", members.len()))
    }
}
