//! Requests and limits of containers and Pods.

use serde_json::Value;

use crate::failure::Cause;
use crate::json::{quantity, written};

/// Checks the field `resources` of a container or a Pod, which is at this path.
pub(super) fn check(resources: &Value, at: &str, causes: &mut Vec<Cause>) {
    for list in ["limits", "requests"] {
        for (name, value) in entries(resources, list) {
            let field = format!("{at}.{list}[{name}]");
            match quantity(value) {
                None => causes.push(Cause::invalid(field, value, "is out of range")),
                Some(amount) if amount.milli() < 0 => {
                    causes.push(Cause::invalid(field, value, "must be greater than or equal to 0"));
                }
                Some(amount) if is_whole(name) && amount.milli() % 1000 != 0 => {
                    causes.push(Cause::invalid(field, value, "must be an integer"));
                }
                Some(_) => {}
            }
        }
    }
    for (name, value) in entries(resources, "requests") {
        let Some(request) = quantity(value) else { continue };
        let limit = &resources["limits"][name];
        let Some(most) = quantity(limit) else {
            if is_whole(name) && limit.is_null() {
                let why = "Limit must be set for non overcommitable resources";
                causes.push(Cause::required(format!("{at}.limits"), why));
            }
            continue;
        };
        let bound = if is_whole(name) { "equal to" } else { "less than or equal to" };
        if request.milli() > most.milli() || (is_whole(name) && request.milli() != most.milli()) {
            let message = format!("must be {bound} {name} limit of {}", written(limit));
            causes.push(Cause::invalid(format!("{at}.requests"), &written(value).into(), &message));
        }
    }
}

/// Returns true for resources that are given to one Pod in whole units, such as devices.
fn is_whole(name: &str) -> bool {
    name.starts_with("hugepages-")
        || name.split_once('/').is_some_and(|(domain, _)| !domain.ends_with("kubernetes.io"))
}

fn entries<'a>(resources: &'a Value, list: &str) -> impl Iterator<Item = (&'a String, &'a Value)> {
    resources[list].as_object().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn requests_and_limits_that_cannot_be_are_named() {
        let found = |resources: Value| {
            let mut causes = Vec::new();
            check(&resources, "r", &mut causes);
            causes.into_iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect::<Vec<_>>()
        };
        let fine = json!({"limits": {"cpu": 1, "memory": "1Gi", "a.b/c": "1"},
            "requests": {"cpu": "500m", "a.b/c": 1, "ephemeral-storage": "1Gi"}});
        assert!(found(fine).is_empty());
        assert_eq!(
            found(json!({"limits": {"cpu": "-1"}})),
            ["r.limits[cpu]: Invalid value: \"-1\": must be greater than or equal to 0"]
        );
        assert_eq!(
            found(json!({"limits": {"cpu": "1"}, "requests": {"cpu": 2}})),
            ["r.requests: Invalid value: \"2\": must be less than or equal to cpu limit of 1"]
        );
        assert_eq!(
            found(json!({"limits": {"a.b/c": "1"}, "requests": {"a.b/c": "0"}})),
            ["r.requests: Invalid value: \"0\": must be equal to a.b/c limit of 1"]
        );
        assert_eq!(
            found(json!({"requests": {"a.b/c": "1500m"}})),
            [
                "r.requests[a.b/c]: Invalid value: \"1500m\": must be an integer",
                "r.limits: Required value: Limit must be set for non overcommitable resources",
            ]
        );
        assert_eq!(found(json!({"limits": {"cpu": "1e40"}})).len(), 1);
    }
}
