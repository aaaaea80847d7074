//! Pod templates: their fingerprint, and Pods made from them.

use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

/// Label of what was made from one state of a Deployment's template.
pub(super) const HASH_LABEL: &str = "pod-template-hash";
/// Letters that form no words, as Kubernetes uses for generated names.
const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// A short name for a state of a template. The same template and number give the same name.
pub(super) fn fingerprint(template: &PodTemplateSpec, number: i32) -> String {
    // Every template serializes: it came as JSON.
    let text = serde_json::to_vec(template).unwrap_or_default();
    let bytes = text.iter().copied().chain(number.to_le_bytes());
    // FNV-1a: fast, and stable between versions of this program.
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let mut rest = hash;
    let letter = |_| {
        let letter = LETTERS[(rest % LETTERS.len() as u64) as usize];
        rest /= LETTERS.len() as u64;
        char::from(letter)
    };
    (0..10).map(letter).collect()
}

/// A Pod from a template; `name` makes its own name.
pub(super) fn pod(
    template: &PodTemplateSpec,
    namespace: &str,
    owner: OwnerReference,
    name: ObjectMeta,
) -> Pod {
    let metadata = template.metadata.clone().unwrap_or_default();
    Pod {
        metadata: ObjectMeta {
            namespace: Some(namespace.to_owned()),
            labels: metadata.labels,
            annotations: metadata.annotations,
            finalizers: metadata.finalizers,
            owner_references: Some(vec![owner]),
            ..name
        },
        spec: template.spec.clone(),
        status: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fingerprint_follows_the_template() {
        let template = PodTemplateSpec::default();
        let mut other = template.clone();
        other.metadata =
            Some(ObjectMeta { labels: Some([("a".into(), "b".into())].into()), ..ObjectMeta::default() });
        assert_eq!(fingerprint(&template, 0), fingerprint(&template.clone(), 0));
        assert_ne!(fingerprint(&template, 0), fingerprint(&template, 1));
        assert_ne!(fingerprint(&template, 0), fingerprint(&other, 0));
        assert_eq!(fingerprint(&template, 0).len(), 10);
    }
}
