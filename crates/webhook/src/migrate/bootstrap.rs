//! Before the upgrade. A claim of the older version may name a template alone; as a claim of the newer one it names the pool
//! `shadow-pool-<template>`. These pools are made while the claims can still be seen as they were written.

use std::collections::BTreeMap;

use hutch_api::annotation::{MIGRATION_SHADOW, MIGRATION_SOURCE};
use hutch_api::{DEPRECATED_VERSION, EXTENSIONS_GROUP, SHADOW_POOL_PREFIX, STORED_VERSION};
use kube::ResourceExt;
use kube::api::{Api, DynamicObject, PostParams};
use serde_json::{Value, json};

use super::{Migration, Say, list, patiently, resource};
use crate::Error;

/// Longest name that a pool may have: it becomes the value of a label.
const POOL_NAME_BYTES: usize = 63;

/// Need of one claim.
enum Need {
    /// Its pool has its name in the claim.
    Nothing,
    /// The pool that stands for this template.
    Shadow {
        namespace: String,
        template: String,
    },
    Problem(String),
}

impl Migration {
    /// Makes an empty SandboxWarmPool `shadow-pool-<template>` for each template, in each namespace, that claims of the older
    /// version name without a pool. An existing pool is left as it is, with any owner. Nothing is created as long as
    /// there is a problem with any of them.
    ///
    /// # Errors
    /// [`Error::Problems`] with the claims and templates that a user has to change first; [`Error::Unready`] when the
    /// namespace or the kind of the pools is missing; [`Error::Api`].
    pub async fn bootstrap(&self, say: Say<'_>) -> Result<(), Error> {
        self.check_namespace().await?;
        let version = format!("{EXTENSIONS_GROUP}/{DEPRECATED_VERSION}");
        let plurals = match self.client.list_api_group_resources(&version).await {
            Ok(found) => found.resources.into_iter().map(|resource| resource.name).collect(),
            Err(kube::Error::Api(status)) if status.is_not_found() => Vec::new(),
            Err(error) => return Err(Error::api(format!("asking what {version} has"))(error)),
        };
        if !plurals.iter().any(|plural| plural == "sandboxclaims") {
            say(format!("{version} has no SandboxClaim here: nothing to prepare"));
            return Ok(());
        }
        if !plurals.iter().any(|plural| plural == "sandboxwarmpools") {
            return Err(Error::Unready(format!(
                "{version} has SandboxClaim but not SandboxWarmPool: apply the definitions of one release"
            )));
        }
        let needed = self.needed().await?;
        if needed.is_empty() {
            say("no SandboxClaim names a template alone: nothing to prepare".to_owned());
        }
        for ((namespace, template), claims) in &needed {
            say(self.make(namespace, template, *claims).await?);
        }
        Ok(())
    }

    /// Namespaces and templates, with the number of claims.
    async fn needed(&self) -> Result<BTreeMap<(String, String), usize>, Error> {
        let kind = resource(EXTENSIONS_GROUP, DEPRECATED_VERSION, "SandboxClaim", "sandboxclaims");
        let claims = self.objects(&kind);
        let needs = list("SandboxClaims", async |params| claims.list(params).await, need).await?;
        let (mut needed, mut problems) = (BTreeMap::new(), Vec::new());
        for need in needs {
            match need {
                Need::Nothing => {}
                Need::Problem(problem) => problems.push(problem),
                Need::Shadow { namespace, template } => {
                    *needed.entry((namespace, template)).or_default() += 1;
                }
            }
        }
        for (namespace, template) in needed.keys() {
            let longest = POOL_NAME_BYTES - SHADOW_POOL_PREFIX.len();
            if template.len() > longest {
                problems.push(format!(
                    "SandboxTemplate {namespace}/{template}: {SHADOW_POOL_PREFIX}{template} would be longer than \
                     {POOL_NAME_BYTES} characters; give the template's claims a warmpool, or a template whose name has at \
                     most {longest}"
                ));
            }
        }
        if problems.is_empty() { Ok(needed) } else { Err(Error::Problems(problems)) }
    }

    /// Creates the pool if it is missing; returns a line about it.
    async fn make(&self, namespace: &str, template: &str, claims: usize) -> Result<String, Error> {
        let kind = resource(EXTENSIONS_GROUP, DEPRECATED_VERSION, "SandboxWarmPool", "sandboxwarmpools");
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), namespace, &kind);
        let name = format!("{SHADOW_POOL_PREFIX}{template}");
        let pool = format!("SandboxWarmPool {namespace}/{name}");
        let known = patiently(&format!("reading {pool}"), async || api.get_opt(&name).await).await?;
        if let Some(known) = known {
            return Ok(described(&pool, &known, template));
        }
        let why = format!(
            "{claims} {} template {template} alone",
            if claims == 1 { "claim names" } else { "claims name" }
        );
        if self.dry_run {
            return Ok(format!("{pool} would be made: {why}"));
        }
        let mut fresh = DynamicObject::new(&name, &kind).within(namespace).data(json!({
            "spec": {"replicas": 0, "sandboxTemplateRef": {"name": template}},
        }));
        fresh.annotations_mut().extend([
            (MIGRATION_SHADOW.to_owned(), "true".to_owned()),
            (MIGRATION_SOURCE.to_owned(), template.to_owned()),
        ]);
        let making = format!("making {pool}");
        let made = patiently(&making, async || {
            match api.create(&PostParams::default(), &fresh).await {
                // Of another owner, or our own whose response was lost.
                Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(false),
                other => other.map(|_| true),
            }
        });
        Ok(if made.await? { format!("{pool} made: {why}") } else { format!("{pool} is there") })
    }
}

fn described(pool: &str, known: &DynamicObject, template: &str) -> String {
    if known.annotations().get(MIGRATION_SHADOW).is_some_and(|mark| mark == "true") {
        return format!("{pool} is there");
    }
    let of = known.data.pointer("/spec/sandboxTemplateRef/name").and_then(Value::as_str).unwrap_or_default();
    let warning = if of == template {
        String::new()
    } else {
        format!(
            "; warning: it makes Sandboxes of template {of}, and claims of template {template} will get those"
        )
    };
    format!("{pool} is there and is no pool of a migration: left alone{warning}")
}

fn need(claim: DynamicObject) -> Need {
    let namespace = claim.namespace().unwrap_or_default();
    if claim.metadata.deletion_timestamp.is_some() {
        return Need::Nothing;
    }
    let name = claim.name_any();
    let text =
        |pointer: &str| claim.data.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (template, warmpool) = (text("/spec/sandboxTemplateRef/name"), text("/spec/warmpool"));
    let shadow = format!("{SHADOW_POOL_PREFIX}{template}");
    // The conversion itself says which pool the claim will have.
    let wanted = format!("{EXTENSIONS_GROUP}/{STORED_VERSION}");
    let mut object = match serde_json::to_value(&claim) {
        Ok(object) => object,
        Err(error) => return Need::Problem(format!("SandboxClaim {namespace}/{name}: {error}")),
    };
    // Items of a list need not say what they are.
    object["apiVersion"] = format!("{EXTENSIONS_GROUP}/{DEPRECATED_VERSION}").into();
    object["kind"] = "SandboxClaim".into();
    let converted = match hutch_api::convert(object, &wanted) {
        Ok(converted) => converted,
        Err(error) => {
            return Need::Problem(format!(
                "SandboxClaim {namespace}/{name} cannot be converted to {STORED_VERSION}: {error}"
            ));
        }
    };
    if converted["spec"]["warmPoolRef"]["name"] == shadow.as_str() && warmpool != shadow {
        if template.is_empty() {
            return Need::Problem(format!(
                "SandboxClaim {namespace}/{name}: spec.sandboxTemplateRef.name is empty"
            ));
        }
        return Need::Shadow { namespace, template };
    }
    Need::Nothing
}
