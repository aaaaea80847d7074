//! Pods that hold no process because the service of their image runs in this process already.

use k8s_openapi::api::core::v1::PodSpec;

use crate::config::ServiceKind;

/// Image names without tag, and what they hold. Exactly these: another registry's image of the same name is not ours.
const REPOSITORIES: [(&str, ServiceKind); 6] = [
    ("registry.k8s.io/agent-sandbox/agent-sandbox-controller", ServiceKind::Controller),
    (
        "us-central1-docker.pkg.dev/k8s-staging-images/agent-sandbox/agent-sandbox-controller",
        ServiceKind::Controller,
    ),
    ("us-central1-docker.pkg.dev/k8s-staging-images/agent-sandbox/sandbox-router", ServiceKind::Router),
    ("us-central1-docker.pkg.dev/k8s-staging-images/agent-sandbox/sandbox-router-go", ServiceKind::Router),
    ("registry.k8s.io/agent-sandbox/sandbox-router", ServiceKind::Router),
    ("registry.k8s.io/agent-sandbox/sandbox-router-go", ServiceKind::Router),
];
/// Longest tag, as registries have it.
const MAX_TAG_BYTES: usize = 128;

/// The service that a Pod stands for: all of its containers have images of the same one.
pub fn service_of(spec: &PodSpec) -> Option<ServiceKind> {
    if spec.init_containers.as_ref().is_some_and(|init| !init.is_empty()) {
        return None;
    }
    let mut kinds = spec.containers.iter().map(|c| c.image.as_deref().and_then(service_of_image));
    let first = kinds.next()??;
    kinds.all(|kind| kind == Some(first)).then_some(first)
}

fn service_of_image(image: &str) -> Option<ServiceKind> {
    match image.strip_suffix(":latest").unwrap_or(image) {
        "hutch/controller" => return Some(ServiceKind::Controller),
        "hutch/router" => return Some(ServiceKind::Router),
        _ => {}
    }
    let (repository, tag) = image.rsplit_once(':')?;
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let valid = tag.len() <= MAX_TAG_BYTES
        && tag.starts_with(word)
        && tag.chars().all(|c| word(c) || c == '.' || c == '-');
    let known = REPOSITORIES.iter().find(|(name, _)| *name == repository);
    known.filter(|_| valid).map(|(_, kind)| *kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_published_names_are_ours() {
        use ServiceKind::{Controller, Router};
        for (image, expected) in [
            ("registry.k8s.io/agent-sandbox/agent-sandbox-controller:v0.1.0", Some(Controller)),
            (
                "us-central1-docker.pkg.dev/k8s-staging-images/agent-sandbox/sandbox-router:v20251124-v0.1.0-10-ge26ddb2",
                Some(Router),
            ),
            ("registry.k8s.io/agent-sandbox/sandbox-router-go:v1", Some(Router)),
            ("hutch/router", Some(Router)),
            ("hutch/controller:latest", Some(Controller)),
            ("registry.k8s.io/agent-sandbox/agent-sandbox-controller", None),
            ("registry.k8s.io/agent-sandbox/agent-sandbox-controller:", None),
            ("registry.k8s.io/agent-sandbox/agent-sandbox-controller@sha256:0", None),
            ("evil.example/agent-sandbox/agent-sandbox-controller:v0.1.0", None),
            ("registry.k8s.io/agent-sandbox/agent-sandbox-controller-x:v1", None),
            ("registry.k8s.io/agent-sandbox/sandbox-router:v1/../x", None),
            ("hutch/routers", None),
        ] {
            assert_eq!(service_of_image(image), expected, "{image}");
        }
    }
}
