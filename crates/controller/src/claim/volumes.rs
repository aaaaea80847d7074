//! `volumeClaimTemplates` of a claim, joined with the template's. Pure.

use std::collections::BTreeSet;

use hutch_api::condition::reason;
use hutch_api::{VolumeClaimTemplate, VolumeClaimTemplatesPolicy};

use super::refusal::Refusal;

pub(super) fn merge(
    template: &[VolumeClaimTemplate],
    claim: &[VolumeClaimTemplate],
    policy: VolumeClaimTemplatesPolicy,
) -> Result<Vec<VolumeClaimTemplate>, Refusal> {
    check_names(template)?;
    if claim.is_empty() {
        return Ok(template.to_vec());
    }
    if policy == VolumeClaimTemplatesPolicy::Disallowed {
        return Err(refused("volume claim templates are disallowed by the template"));
    }
    check_names(claim)?;
    let mut merged = template.to_vec();
    for volume in claim {
        match merged.iter_mut().find(|known| known.name() == volume.name()) {
            Some(_) if policy == VolumeClaimTemplatesPolicy::Allowed => {
                return Err(refused(&format!(
                    "overriding volume claim templates is forbidden by the template: cannot override template volume {:?}",
                    volume.name()
                )));
            }
            Some(known) => *known = volume.clone(),
            None => merged.push(volume.clone()),
        }
    }
    Ok(merged)
}

fn check_names(volumes: &[VolumeClaimTemplate]) -> Result<(), Refusal> {
    let mut seen = BTreeSet::new();
    for (at, volume) in volumes.iter().enumerate() {
        if volume.name().is_empty() {
            return Err(refused(&format!("invalid volume claim templates: name at index {at} is empty")));
        }
        if !seen.insert(volume.name()) {
            return Err(refused(&format!(
                "invalid volume claim templates: duplicate name {:?}",
                volume.name()
            )));
        }
    }
    Ok(())
}

fn refused(problem: &str) -> Refusal {
    let text = format!("failed to merge volume claim templates: {problem}");
    Refusal::terminal(reason::VOLUME_CLAIM_TEMPLATES_ERROR, text)
}
