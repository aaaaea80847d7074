//! Expiry of a claim.

use super::*;

#[test]
fn claim_ends_at_the_earlier_time() {
    let finished = json!({"conditions": [{"type": "Finished", "status": "True", "reason": "PodSucceeded", "message": "", "lastTransitionTime": "2026-01-01T00:08:00Z"}]});
    for (lifecycle, status, end) in [
        (json!(null), finished.clone(), None),
        (json!({}), finished.clone(), None),
        (json!({"shutdownTime": "2026-01-01T00:09:00Z"}), json!(null), Some("2026-01-01T00:09:00Z")),
        (json!({"ttlSecondsAfterFinished": 30}), json!(null), None),
        (json!({"ttlSecondsAfterFinished": 30}), finished.clone(), Some("2026-01-01T00:08:30Z")),
        (
            json!({"ttlSecondsAfterFinished": 90, "shutdownTime": "2026-01-01T00:09:00Z"}),
            finished,
            Some("2026-01-01T00:09:00Z"),
        ),
    ] {
        let claim = claim(json!({"spec": {"lifecycle": lifecycle}, "status": status}));
        assert_eq!(super::expiry::end(&claim).map(|end| end.to_string()).as_deref(), end, "{lifecycle}");
    }
}
