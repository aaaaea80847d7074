//! A ConversionReview, from the text of the request to the text of the answer.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The versions of ConversionReview; they differ in nothing but their name.
const VERSIONS: [&str; 2] = ["apiextensions.k8s.io/v1", "apiextensions.k8s.io/v1beta1"];
const KIND: &str = "ConversionReview";

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Question {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    request: Option<Request>,
}

#[derive(Deserialize)]
struct Request {
    uid: String,
    #[serde(rename = "desiredAPIVersion")]
    desired_api_version: String,
    objects: Vec<Value>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    api_version: String,
    kind: &'static str,
    response: Response,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Response {
    uid: String,
    converted_objects: Vec<Value>,
    result: Outcome,
}

#[derive(Serialize)]
struct Outcome {
    status: &'static str,
    #[serde(skip_serializing_if = "String::is_empty")]
    message: String,
}

/// Answers a review: all objects converted, or none and why. The error is for a body that is no review.
pub(crate) fn answer(body: &[u8]) -> Result<Vec<u8>, String> {
    let question: Question =
        serde_json::from_slice(body).map_err(|error| format!("the body is no ConversionReview: {error}"))?;
    if !VERSIONS.contains(&question.api_version.as_str()) {
        return Err(format!("apiVersion is {:?}; {} is right", question.api_version, VERSIONS.join(" or ")));
    }
    if question.kind != KIND {
        return Err(format!("kind is {:?}; {KIND} is right", question.kind));
    }
    let Some(request) = question.request else { return Err("request is missing".into()) };
    let (converted_objects, result) = match convert(request.objects, &request.desired_api_version) {
        Ok(objects) => (objects, Outcome { status: "Success", message: String::new() }),
        Err(message) => {
            tracing::warn!(%message, "a conversion failed");
            (Vec::new(), Outcome { status: "Failure", message })
        }
    };
    let response = Response { uid: request.uid, converted_objects, result };
    let answer = Answer { api_version: question.api_version, kind: KIND, response };
    serde_json::to_vec(&answer).map_err(|error| format!("the answer cannot be written: {error}"))
}

fn convert(objects: Vec<Value>, to: &str) -> Result<Vec<Value>, String> {
    let each = objects.into_iter().enumerate().map(|(index, object)| {
        let name = name_of(index, &object);
        hutch_api::convert(object, to).map_err(|error| format!("{name} cannot be converted to {to}: {error}"))
    });
    each.collect()
}

fn name_of(index: usize, object: &Value) -> String {
    let text =
        |pointer: &str| object.pointer(pointer).and_then(Value::as_str).filter(|text| !text.is_empty());
    let kind = text("/kind").unwrap_or("object");
    match (text("/metadata/namespace"), text("/metadata/name")) {
        (Some(namespace), Some(name)) => format!("{kind} {namespace}/{name}"),
        (None, Some(name)) => format!("{kind} {name}"),
        (_, None) => format!("{kind} at objects[{index}]"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn review(version: &str, to: &str, objects: Value) -> Value {
        json!({"apiVersion": version, "kind": "ConversionReview",
            "request": {"uid": "u-1", "desiredAPIVersion": to, "objects": objects}})
    }

    fn ask(review: &Value) -> Result<Value, String> {
        let answer = answer(&serde_json::to_vec(review).unwrap())?;
        Ok(serde_json::from_slice(&answer).unwrap())
    }

    fn claim(name: &str) -> Value {
        json!({"apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxClaim",
            "metadata": {"name": name, "namespace": "default"}, "spec": {"warmPoolRef": {"name": "p"}}})
    }

    #[test]
    fn both_versions_are_answered_in_kind_and_order() {
        for version in VERSIONS {
            let to = "extensions.agents.x-k8s.io/v1alpha1";
            let answer = ask(&review(version, to, json!([claim("a"), claim("b")]))).unwrap();
            assert_eq!(answer["apiVersion"], version);
            assert_eq!(answer["kind"], "ConversionReview");
            assert_eq!(answer["response"]["uid"], "u-1");
            assert_eq!(answer["response"]["result"], json!({"status": "Success"}));
            for (index, name) in ["a", "b"].iter().enumerate() {
                let object = &answer["response"]["convertedObjects"][index];
                assert_eq!(object["apiVersion"], to);
                assert_eq!(object["metadata"]["name"], *name);
                assert_eq!(object["spec"]["warmpool"], "p");
            }
        }
    }

    #[test]
    fn an_object_with_an_unreadable_annotation_does_not_keep_others_from_being_converted() {
        let hostile = [
            ("SandboxClaim", "api.agents.x-k8s.io/v1beta1-volume-claim-templates"),
            ("SandboxClaim", "api.agents.x-k8s.io/v1beta1-warm-pool-ref"),
            ("SandboxClaim", "api.agents.x-k8s.io/v1alpha1-sandboxclaim-state"),
            ("SandboxTemplate", "api.agents.x-k8s.io/v1beta1-volume-claim-templates-policy"),
        ];
        for (kind, key) in hostile {
            for (from, to) in [("v1alpha1", "v1beta1"), ("v1beta1", "v1alpha1")] {
                let [from, to] = [from, to].map(|version| format!("extensions.agents.x-k8s.io/{version}"));
                let bad = json!({"apiVersion": from, "kind": kind, "spec": {},
                    "metadata": {"name": "bad", "annotations": {key: "{"}}});
                let mut good = bad.clone();
                good["metadata"] = json!({"name": "good"});
                let answer = ask(&review(VERSIONS[0], &to, json!([good, bad]))).unwrap();
                assert_eq!(answer["response"]["result"], json!({"status": "Success"}), "{key} {to}");
                assert_eq!(answer["response"]["convertedObjects"][1]["apiVersion"], to);
            }
        }
    }

    #[test]
    fn kinds_and_versions_that_are_not_converted_fail_by_name() {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}});
        for (object, to, expected) in [
            (pod, "v2", "Pod p cannot be converted to v2"),
            (claim("c"), "extensions.agents.x-k8s.io/v2", "SandboxClaim default/c"),
            (claim("c"), "agents.x-k8s.io/v1alpha1", "SandboxClaim default/c"),
            (json!("text"), "v1", "object at objects[0]"),
            (json!({"kind": "Sandbox"}), "v1", "Sandbox at objects[0]"),
        ] {
            let answer = ask(&review(VERSIONS[0], to, json!([object]))).unwrap();
            assert_eq!(answer["response"]["result"]["status"], "Failure");
            let message = answer["response"]["result"]["message"].as_str().unwrap();
            assert!(message.contains(expected), "{message}");
        }
    }

    #[test]
    fn body_that_is_no_review_is_refused_with_the_correction() {
        let good = review(VERSIONS[0], "v1", json!([]));
        assert_eq!(ask(&good).unwrap()["response"]["convertedObjects"], json!([]));
        let without = |pointer: &str, key: &str| {
            let mut review = good.clone();
            review.pointer_mut(pointer).unwrap().as_object_mut().unwrap().remove(key);
            review
        };
        for (review, expected) in [
            (json!([]), "no ConversionReview"),
            (without("", "apiVersion"), "apiextensions.k8s.io/v1 or"),
            (without("", "kind"), "ConversionReview is right"),
            (without("", "request"), "request is missing"),
            (without("/request", "uid"), "uid"),
            (without("/request", "desiredAPIVersion"), "desiredAPIVersion"),
            (without("/request", "objects"), "objects"),
        ] {
            let error = ask(&review).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        assert!(answer(b"{").unwrap_err().contains("no ConversionReview"));
    }
}
