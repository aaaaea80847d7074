//! `volumeClaimTemplates` of a claim, merged with the template's. Pure.

use std::collections::BTreeSet;

use hutch_api::condition::reason;
use hutch_api::{VolumeClaimTemplate, VolumeClaimTemplatesPolicy};

use super::refusal::Refusal;

pub(super) fn merge(
    template: &[VolumeClaimTemplate],
    claim: &[VolumeClaimTemplate],
    policy: VolumeClaimTemplatesPolicy,
) -> Result<Vec<VolumeClaimTemplate>, Refusal> {
    if claim.is_empty() {
        let problem = "invalid volume claim templates in template";
        check_names(template).map_err(|wrong| terminal(format!("{problem}: {wrong}")))?;
        return Ok(template.to_vec());
    }
    if policy == VolumeClaimTemplatesPolicy::Disallowed {
        return Err(refused("volume claim templates are disallowed by the template"));
    }
    for (whose, volumes) in [("template", template), ("claim", claim)] {
        check_names(volumes).map_err(|wrong| refused(&format!("{whose}: {wrong}")))?;
    }
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

fn check_names(volumes: &[VolumeClaimTemplate]) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    for (at, volume) in volumes.iter().enumerate() {
        if volume.name().is_empty() {
            return Err(format!("invalid volume claim templates: name at index {at} is empty"));
        }
        if !seen.insert(volume.name()) {
            return Err(format!("invalid volume claim templates: duplicate name {:?}", volume.name()));
        }
    }
    Ok(())
}

fn refused(problem: &str) -> Refusal {
    terminal(format!("failed to merge volume claim templates: {problem}"))
}

fn terminal(text: String) -> Refusal {
    Refusal::terminal(reason::VOLUME_CLAIM_TEMPLATES_ERROR, text)
}
