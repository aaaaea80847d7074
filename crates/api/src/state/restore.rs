//! A Pod that begins with a snapshot, or cannot.

use k8s_openapi::api::core::v1::PodCondition;

use crate::annotation;
use crate::condition::{FALSE, TRUE};

/// Condition of a Pod that names a snapshot. True, from the first time on at which it is Ready after all of its containers have
/// begun with the snapshot; the message is uid and name of the snapshot: clients of GKE's API look for the name. False with the
/// reason [`RESTORE_FAILED`] while it waits for the snapshot, and with [`STARTED_ANEW`] if it has begun without.
pub const RESTORED_POD: &str = "PodRestored";
/// Condition of a Sandbox whose Pod has begun without its snapshot: False, with the reason [`STARTED_ANEW`].
pub const RESTORED: &str = "Restored";
/// Reason of a Pod, its containers and its Sandbox that wait because the snapshot cannot be restored.
pub const RESTORE_FAILED: &str = "RestoreFailed";
/// Start of the message about a snapshot that cannot be restored yet; its state follows in parentheses.
pub const NOT_COMPLETE: &str = "it is not complete";
/// State of a snapshot on which no work has begun, in that message.
pub const NOT_BEGUN: &str = "not begun";
/// Reason of a Pod and its Sandbox that began without the snapshot.
pub const STARTED_ANEW: &str = "StartedAnew";

/// Handling of a Pod whose snapshot cannot be restored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RestorePolicy {
    /// It waits.
    #[default]
    Required,
    /// It begins without the snapshot, and says so.
    BestEffort,
}

impl RestorePolicy {
    /// Reads the annotation [`annotation::RESTORE_POLICY`].
    ///
    /// # Errors
    /// It has another value.
    pub fn read(value: Option<&str>) -> Result<RestorePolicy, String> {
        match value {
            None | Some("Required") => Ok(RestorePolicy::Required),
            Some("BestEffort") => Ok(RestorePolicy::BestEffort),
            Some(_) => {
                Err(format!("annotation {}: must be `Required` or `BestEffort`", annotation::RESTORE_POLICY))
            }
        }
    }
}

/// Returns the message of the condition [`RESTORED_POD`] of a Pod that has begun with this snapshot.
pub fn beginning(uid: &str, name: &str) -> String {
    format!("{uid} {name}")
}

/// Returns the name of the snapshot in that message.
pub fn name_in_beginning(message: &str) -> Option<&str> {
    message.split_once(' ').map(|(_, name)| name)
}

/// Returns the message of a Pod with these conditions that has begun with a snapshot.
pub fn begun_with(conditions: &[PodCondition]) -> Option<&str> {
    let restored = conditions.iter().find(|one| one.type_ == RESTORED_POD && one.status == TRUE)?;
    restored.message.as_deref()
}

/// Returns the uid of the snapshot with which a Pod with these conditions has begun.
pub fn restored_from(conditions: &[PodCondition]) -> Option<&str> {
    begun_with(conditions)?.split(' ').next()
}

/// Returns why a Pod with these conditions has begun without its snapshot.
pub fn started_anew(conditions: &[PodCondition]) -> Option<&str> {
    unrestored(conditions, STARTED_ANEW)
}

/// Returns why a Pod with these conditions cannot begin with its snapshot.
pub fn waits(conditions: &[PodCondition]) -> Option<&str> {
    unrestored(conditions, RESTORE_FAILED)
}

fn unrestored<'a>(conditions: &'a [PodCondition], reason: &str) -> Option<&'a str> {
    let found = conditions.iter().find(|one| one.type_ == RESTORED_POD && one.status == FALSE)?;
    (found.reason.as_deref() == Some(reason)).then(|| found.message.as_deref().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policy_has_two_values_and_a_default() {
        assert_eq!(RestorePolicy::read(None), Ok(RestorePolicy::Required));
        assert_eq!(RestorePolicy::read(Some("BestEffort")), Ok(RestorePolicy::BestEffort));
        for bad in ["", "required", "Best effort"] {
            let why = RestorePolicy::read(Some(bad)).unwrap_err();
            assert!(why.contains(annotation::RESTORE_POLICY) && why.contains("`BestEffort`"), "{why}");
        }
    }

    #[test]
    fn condition_says_whether_a_pod_began_with_its_snapshot() {
        let condition = |status: &str, reason: Option<&str>| PodCondition {
            type_: RESTORED_POD.into(),
            status: status.into(),
            reason: reason.map(str::to_owned),
            message: Some("m".into()),
            ..PodCondition::default()
        };
        let all = |one: PodCondition| {
            let all = [one];
            [restored_from(&all), waits(&all), started_anew(&all)].map(|found| found.is_some())
        };
        assert_eq!(all(condition(TRUE, None)), [true, false, false]);
        assert_eq!(all(condition(FALSE, Some(RESTORE_FAILED))), [false, true, false]);
        assert_eq!(all(condition(FALSE, Some(STARTED_ANEW))), [false, false, true]);
        assert_eq!(all(condition(FALSE, None)), [false; 3]);
    }
}
