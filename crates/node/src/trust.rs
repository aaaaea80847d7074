//! The certificates that programs in a sandbox trust: one file with the public authorities and that of the sandbox, over the
//! files in which distributions keep theirs, and variables for programs that look elsewhere.

use std::path::{Path, PathBuf};

use hutch_api::trust::VARIABLES;
use hutch_image::Resolved;
use hutch_kubelet::PodId;
use k8s_openapi::api::core::v1::{Container, Pod};

/// Files in which distributions keep the authorities.
const FILES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];
/// Maximum bytes of the uid of a Sandbox in the name of an authority.
const UID: usize = 64;

/// Returns the paths inside over which the file is mounted: every file of the image in which a distribution keeps its
/// authorities, or the usual one if the image has no such file. Nothing is mounted at or below `taken`.
pub fn targets(image: &Resolved, taken: &[&Path]) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = FILES.iter().filter_map(|file| image.find_file(Path::new(file))).collect();
    if found.is_empty() {
        found.push(FILES[0].into());
    }
    found.sort();
    found.dedup();
    found.retain(|target| !taken.iter().any(|taken| target.starts_with(taken)));
    found
}

/// Returns the environment of an image with the variables that name the file at one of the targets.
pub fn environment(image: &[(String, String)], targets: &[PathBuf]) -> Vec<(String, String)> {
    let mut environment = image.to_vec();
    if let Some(file) = targets.first() {
        environment.retain(|(name, _)| !VARIABLES.contains(&name.as_str()));
        environment.extend(VARIABLES.map(|name| (name.to_owned(), file.display().to_string())));
    }
    environment
}

/// As [`targets`], for a container, which may have volumes in these places.
pub(crate) fn targets_of(image: &Resolved, container: &Container) -> Vec<PathBuf> {
    let mounts = container.volume_mounts.iter().flatten();
    let taken: Vec<&Path> = mounts.map(|mount| Path::new(mount.mount_path.as_str())).collect();
    targets(image, &taken)
}

/// Returns the name of the authority of a Pod: that of its Sandbox, whose next Pod has the same one.
pub(crate) fn sandbox_of(id: &PodId, pod: &Pod) -> String {
    // An owner reference is text of the Pod's author, who may claim a Sandbox of the same namespace only.
    let plain = |uid: &str| uid.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    let owner = hutch_api::owner::sandbox(pod).map(|owner| owner.uid.as_str());
    let owner = owner.filter(|uid| !uid.is_empty() && uid.len() <= UID && plain(uid));
    name(&id.namespace, owner.unwrap_or(&id.uid))
}

/// Returns the name of the authority of a Sandbox.
pub(crate) fn name(namespace: &str, uid: &str) -> String {
    format!("{namespace}.{uid}")
}

#[cfg(test)]
mod tests {
    use hutch_image::ImageConfig;

    use super::*;

    fn image(folder: &Path) -> Resolved {
        Resolved {
            id: String::new(),
            layers: vec![folder.to_owned()],
            mounts: Vec::new(),
            config: ImageConfig::default(),
            substituted: None,
            wants_sandboxd: false,
            hold: hutch_image::Hold::default(),
        }
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "constant names in a temporary folder")]
    fn file_is_mounted_where_the_image_has_one_and_nothing_else_is_mounted() {
        let folder = tempfile::tempdir().unwrap();
        let image = image(folder.path());
        assert_eq!(targets(&image, &[]), [Path::new(FILES[0])], "an image without any");
        let at = |path: &str| folder.path().join(&path[1..]);
        std::fs::create_dir_all(at("/etc/pki/tls/certs")).unwrap();
        std::fs::create_dir_all(at("/etc/ssl")).unwrap();
        std::fs::write(at(FILES[1]), "").unwrap();
        std::os::unix::fs::symlink(FILES[1], at(FILES[2])).unwrap();
        assert_eq!(targets(&image, &[]), [Path::new(FILES[1])], "a link leads to the same one");
        assert_eq!(targets(&image, &[Path::new("/etc/ssl")]), [Path::new(FILES[1])]);
        assert!(targets(&image, &[Path::new("/etc")]).is_empty());
        // Where Alpine and others have it.
        std::fs::remove_file(at(FILES[2])).unwrap();
        std::fs::write(at("/etc/ssl/cert.pem"), "").unwrap();
        let both = ["/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"].map(Path::new);
        assert_eq!(targets(&image, &[]), both);
    }

    #[test]
    fn variables_replace_those_of_the_image_and_need_the_file() {
        let image = [("PATH", "/bin"), ("SSL_CERT_FILE", "/nix/certs")];
        let image = image.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(environment(&image, &[]), image);
        let with = environment(&image, &["/file".into()]);
        let named: Vec<&str> = with.iter().skip(1).map(|(name, _)| name.as_str()).collect();
        let all = [
            "SSL_CERT_FILE",
            "REQUESTS_CA_BUNDLE",
            "CURL_CA_BUNDLE",
            "NODE_EXTRA_CA_CERTS",
            "GIT_SSL_CAINFO",
            "PIP_CERT",
            "CARGO_HTTP_CAINFO",
            "AWS_CA_BUNDLE",
            "DENO_CERT",
        ];
        assert_eq!(named, all);
        assert!(with.iter().skip(1).all(|(_, value)| value == "/file"), "{with:?}");
    }

    #[test]
    fn pod_has_the_authority_of_its_sandbox_in_its_namespace() {
        let id = PodId { namespace: "n".into(), name: "p".into(), uid: "own".into() };
        let pod = |uid: &str| {
            let owner = serde_json::json!({"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "name": "s",
                "uid": uid, "controller": true});
            serde_json::from_value(serde_json::json!({"metadata": {"ownerReferences": [owner]}})).unwrap()
        };
        assert_eq!(sandbox_of(&id, &pod("of-sandbox")), "n.of-sandbox");
        for uid in ["", "../x", "a.b", &"a".repeat(65)] {
            assert_eq!(sandbox_of(&id, &pod(uid)), "n.own", "{uid}");
        }
        assert_eq!(sandbox_of(&id, &Pod::default()), "n.own");
    }
}
