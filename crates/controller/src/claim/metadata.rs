//! `additionalPodMetadata`: validates the labels and annotations of a claim, and merges them with the template's. Pure.

use hutch_api::condition::reason;
use hutch_api::metadata::is_reserved_label;
use hutch_api::{PodMetadata, SandboxClaim, SandboxTemplate, annotation, syntax};

use super::refusal::Refusal;
use crate::patch::Strings;

/// Domains whose annotations no claim may set.
const SYSTEM_DOMAINS: [&str; 3] = ["kubernetes.io", "k8s.io", "agents.x-k8s.io"];
/// Label by which the default network rules admit the router. No Sandbox may have it.
const ROUTER_LABEL: (&str, &str) = ("app", "sandbox-router");

/// Validates the metadata of a claim.
pub(super) fn validate(claim: &SandboxClaim, label_domains: &[String]) -> Result<(), Refusal> {
    let Some(metadata) = &claim.spec.additional_pod_metadata else { return Ok(()) };
    let refuse = |kind: &str, key: &str, problem: String| {
        let text = format!("invalid additionalPodMetadata: failed to validate {kind} {key:?}: {problem}");
        Refusal::terminal(reason::INVALID_METADATA, text)
    };
    for (key, value) in metadata.labels.iter().flatten() {
        check_label(key, value, label_domains).map_err(|problem| refuse("label", key, problem))?;
    }
    for key in metadata.annotations.iter().flatten().map(|(key, _)| key) {
        check_annotation(key).map_err(|problem| refuse("annotation", key, problem))?;
    }
    Ok(())
}

/// Joins all problems in one line; an empty list is valid.
fn none(problems: Vec<String>) -> Result<(), String> {
    if problems.is_empty() { Ok(()) } else { Err(problems.join("; ")) }
}

fn check_label(key: &str, value: &str, domains: &[String]) -> Result<(), String> {
    none(syntax::key(key)).map_err(|problem| format!("invalid label key: {key:?}: {problem}"))?;
    let (app, router) = ROUTER_LABEL;
    if key.eq_ignore_ascii_case(app) && value.eq_ignore_ascii_case(router) {
        return Err(format!(
            "restricted system label value: {key:?}={value:?} is not allowed in AdditionalPodMetadata"
        ));
    }
    let Some((domain, _)) = key.split_once('/') else {
        return Err(format!(
            "label {key:?} must have a domain prefix (e.g. 'sandbox.users.io/my-label') to prevent opting into unintended policy domains"
        ));
    };
    let domain = domain.to_lowercase();
    if !domains.iter().any(|allowed| is_within(&domain, &allowed.to_lowercase())) {
        return Err(format!("label domain {domain:?} is not in the allowlist"));
    }
    none(syntax::label_value(value)).map_err(|problem| {
        format!("invalid label value: {value:?} does not match allowed pattern: {problem}")
    })
}

fn check_annotation(key: &str) -> Result<(), String> {
    none(syntax::key(key)).map_err(|problem| format!("invalid annotation key: {key:?}: {problem}"))?;
    let domain = key.split_once('/').map(|(domain, _)| domain.to_lowercase());
    let restricted =
        domain.is_some_and(|domain| SYSTEM_DOMAINS.iter().any(|system| is_within(&domain, system)));
    if (restricted && key != annotation::SAFE_TO_EVICT) || key == annotation::LATE_ENV {
        return Err(format!("restricted system domain: {key:?} is not allowed in AdditionalPodMetadata"));
    }
    Ok(())
}

fn is_within(domain: &str, allowed: &str) -> bool {
    domain == allowed || domain.strip_suffix(allowed).is_some_and(|rest| rest.ends_with('.'))
}

/// Returns the desired labels and annotations of the Pod template of a claim's Sandbox. `fallback` replaces a template
/// that cannot be found. Keys of the project's own domains are left out: the Pod gets them from the Sandbox's labels.
pub(super) fn desired(
    claim: &SandboxClaim,
    template: Option<&SandboxTemplate>,
    fallback: &PodMetadata,
) -> Result<PodMetadata, Refusal> {
    let said = template.map(|template| &template.spec.pod_template.metadata);
    let base = said.unwrap_or(fallback);
    let mut labels = base.labels.clone().unwrap_or_default();
    let mut annotations = base.annotations.clone().unwrap_or_default();
    // Only the template's values can conflict with the claim's; a fallback may hold earlier values of the claim.
    let more = claim.spec.additional_pod_metadata.clone().unwrap_or_default();
    join("label", &mut labels, said.and_then(|said| said.labels.as_ref()), more.labels)?;
    join("annotation", &mut annotations, said.and_then(|said| said.annotations.as_ref()), more.annotations)?;
    labels.retain(|key, _| !is_reserved_label(key));
    let some = |map: Strings| (!map.is_empty()).then_some(map);
    Ok(PodMetadata { labels: some(labels), annotations: some(annotations) })
}

fn join(
    kind: &str,
    into: &mut Strings,
    template: Option<&Strings>,
    more: Option<Strings>,
) -> Result<(), Refusal> {
    for (key, value) in more.into_iter().flatten() {
        if let Some(said) = template.and_then(|template| template.get(&key)).filter(|said| **said != value) {
            return Err(Refusal::error(format!(
                "metadata override conflict: {kind} {key:?} is defined in template with value {said:?}, but claim requests {value:?}"
            )));
        }
        into.insert(key, value);
    }
    Ok(())
}
