//! Numbers and continue tokens in the parameters of a request.

use super::cases::{CONFIG_MAPS, Case, NAMESPACES};
use serde_json::json;

/// As they stand in the query.
const NUMBERS: &[&str] = &[
    "",
    "1",
    "+1",
    "%2B1",
    "-1",
    "-0",
    "01",
    "1e0",
    "1.0",
    "0x1",
    "1_0",
    "%201",
    "1%20",
    "%D9%A1",
    "one",
    "-9223372036854775809",
    "18446744073709551616",
];

/// Requests with a numeric parameter: the method, the path, and the parameter.
const PLACES: &[(&str, &str, &str)] = &[
    ("GET", CONFIG_MAPS, "limit"),
    ("GET", CONFIG_MAPS, "resourceVersion"),
    ("GET", CONFIG_MAPS, "timeoutSeconds"),
    ("GET", "/api/v1/namespaces/default/configmaps/there", "resourceVersion"),
    ("DELETE", "/api/v1/namespaces/default/configmaps/there", "gracePeriodSeconds"),
    ("GET", "/api/v1/namespaces/default/configmaps?watch=true&timeoutSeconds=1", "resourceVersion"),
];

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (method, path, parameter) in PLACES {
        let joint = if path.contains('?') { '&' } else { '?' };
        for number in NUMBERS {
            // A watch from a true revision lasts for a while.
            if path.contains("watch") && ["", "1", "01", "-0"].contains(number) {
                continue;
            }
            let path = format!("{path}{joint}{parameter}={number}");
            cases.push(Case::new(format!("{method} {path}"), method, &path, ""));
        }
    }
    for path in [CONFIG_MAPS, "/api/v1/namespaces/default/configmaps/there"] {
        let path = format!("{path}?resourceVersion=1000000000");
        cases.push(Case::new(format!("GET {path}"), "GET", &path, ""));
    }
    for token in ["x", "e30", "W10", "bnVsbA", "e30="] {
        let path = format!("{NAMESPACES}?limit=1&continue={token}");
        cases.push(Case::new(format!("a token that is {token}"), "GET", &path, ""));
    }
    for grace in [-1, i64::MIN] {
        let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": grace, "dryRun": ["All"]});
        let path = "/api/v1/namespaces/default/configmaps/there";
        cases.push(Case::new(format!("a grace period of {grace} in the options"), "DELETE", path, options));
    }
    let path = format!("{NAMESPACES}?limit=1");
    for change in [
        json!({}),
        json!({"rv": 1_000_000_000}),
        json!({"rv": i64::MAX}),
        json!({"rv": i64::MIN}),
        json!({"rv": 0}),
        json!({"rv": -1}),
        json!({"rv": "1"}),
        json!({"rv": null}),
        json!({"v": "v"}),
        json!({"v": null}),
        json!({"start": ""}),
        json!({"start": null}),
        json!({"start": "../a"}),
        json!({"start": "/a"}),
        json!({"start": "a/../../b"}),
        json!({"start": 1}),
        json!({"other": 1}),
    ] {
        cases.push(Case::new(format!("a token changed by {change}"), "GET", &path, change));
    }
    cases
}
