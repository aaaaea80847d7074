//! Content of a Lease. Pure functions.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};

/// Duration in the record of a Lease that was given back.
const GIVEN_BACK_SECONDS: i32 = 1;

/// Returns the holder of the Lease, if it has one.
pub(crate) fn holder(lease: &Lease) -> Option<&str> {
    let holder = lease.spec.as_ref()?.holder_identity.as_deref()?;
    Some(holder).filter(|holder| !holder.is_empty())
}

/// Returns how long the record is valid, from the moment at which a process sees it change.
pub(crate) fn validity(lease: &Lease) -> Duration {
    let seconds = lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds).unwrap_or_default();
    Duration::from_secs(u64::try_from(seconds).unwrap_or_default())
}

/// The Lease as its new or old holder writes it. What else is in it stays.
pub(crate) fn held(
    known: Option<&Lease>,
    name: &str,
    identity: &str,
    lasts: Duration,
    now: Timestamp,
) -> Lease {
    let mut lease = known.cloned().unwrap_or_else(|| Lease {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
        ..Lease::default()
    });
    let anew = known.is_none_or(|known| holder(known) != Some(identity));
    let before = known.and_then(|known| known.spec.as_ref());
    let transitions = before.and_then(|spec| spec.lease_transitions).unwrap_or_default();
    let acquired = before.and_then(|spec| spec.acquire_time.clone()).filter(|_| !anew);
    lease.spec = Some(LeaseSpec {
        holder_identity: Some(identity.to_owned()),
        lease_duration_seconds: Some(i32::try_from(lasts.as_secs()).unwrap_or(i32::MAX)),
        acquire_time: Some(acquired.unwrap_or(MicroTime(now))),
        renew_time: Some(MicroTime(now)),
        lease_transitions: Some(if anew && known.is_some() {
            transitions.saturating_add(1)
        } else {
            transitions
        }),
        ..before.cloned().unwrap_or_default()
    });
    lease
}

/// The Lease as its holder gives it back.
pub(crate) fn given_back(known: &Lease, now: Timestamp) -> Lease {
    let mut lease = known.clone();
    let spec = lease.spec.get_or_insert_default();
    spec.holder_identity = Some(String::new());
    spec.lease_duration_seconds = Some(GIVEN_BACK_SECONDS);
    spec.acquire_time = Some(MicroTime(now));
    spec.renew_time = Some(MicroTime(now));
    lease
}

#[cfg(test)]
mod tests {
    use super::*;

    const LASTS: Duration = Duration::from_secs(15);

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn facts(lease: &Lease) -> (Option<&str>, Option<i32>, Option<i32>, i64, i64) {
        let spec = lease.spec.as_ref().unwrap();
        (
            spec.holder_identity.as_deref(),
            spec.lease_duration_seconds,
            spec.lease_transitions,
            spec.acquire_time.as_ref().unwrap().0.as_second(),
            spec.renew_time.as_ref().unwrap().0.as_second(),
        )
    }

    #[test]
    fn the_record_through_two_holders() {
        let first = held(None, "l", "a", LASTS, at(1));
        assert_eq!(facts(&first), (Some("a"), Some(15), Some(0), 1, 1));
        let renewed = held(Some(&first), "l", "a", LASTS, at(3));
        assert_eq!(facts(&renewed), (Some("a"), Some(15), Some(0), 1, 3));
        let back = given_back(&renewed, at(5));
        assert_eq!(facts(&back), (Some(""), Some(1), Some(0), 5, 5));
        assert_eq!(holder(&back), None);
        let second = held(Some(&back), "l", "b", LASTS, at(6));
        assert_eq!(facts(&second), (Some("b"), Some(15), Some(1), 6, 6));
        assert_eq!(validity(&second), LASTS);
    }

    #[test]
    fn what_others_wrote_into_the_lease_stays() {
        let mut known = held(None, "l", "a", LASTS, at(1));
        known.metadata.resource_version = Some("7".into());
        known.metadata.labels = Some([("k".to_owned(), "v".to_owned())].into());
        known.spec.as_mut().unwrap().strategy = Some("OldestEmulationVersion".into());
        let taken = held(Some(&known), "l", "b", LASTS, at(2));
        assert_eq!(taken.metadata, known.metadata);
        assert_eq!(taken.spec.unwrap().strategy.as_deref(), Some("OldestEmulationVersion"));
    }
}
