//! Signatures that cosign v3.1.3 made, as registries of both kinds serve them: with the interface for referrers, and with
//! their list under a tag.

use std::collections::BTreeMap;
use std::path::Path;

use base64::Engine as _;
use hutch_registry::{Error, Pulled, Puller, Signers};
use serde_json::{Value, json};

use crate::fixture::{OCI_INDEX, Registry, Seen, blobs, config, limits, pull, reply};

/// Part of the recorded repository that is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Tags,
    ReferrersByTag,
    Referrers,
    None,
}

fn recorded() -> Value {
    serde_json::from_str(include_str!("../cosign/recorded.json")).unwrap()
}

/// Answers of the recorded repository.
fn files(form: Form) -> Files {
    let recorded = recorded();
    let mut files = BTreeMap::new();
    let mut manifests = BTreeMap::new();
    for (digest, text) in recorded["manifests"].as_object().unwrap() {
        let text = text.as_str().unwrap();
        let kind = serde_json::from_str::<Value>(text).unwrap()["mediaType"].as_str().unwrap().to_owned();
        let file = (kind, text.as_bytes().to_vec());
        manifests.insert(digest.as_str(), file.clone());
        files.insert(format!("/v2/org/app/manifests/{digest}"), file);
    }
    for (digest, text) in recorded["blobs"].as_object().unwrap() {
        let bytes = base64::engine::general_purpose::STANDARD.decode(text.as_str().unwrap()).unwrap();
        files.insert(format!("/v2/org/app/blobs/{digest}"), ("application/octet-stream".into(), bytes));
    }
    for (tag, digest) in recorded["tags"].as_object().unwrap() {
        let file = manifests[digest.as_str().unwrap()].clone();
        let is_list = tag.starts_with("sha256-") && !tag.contains('.');
        match form {
            Form::Referrers if is_list => {
                files.insert(format!("/v2/org/app/referrers/{}", tag.replace('-', ":")), file);
            }
            Form::ReferrersByTag if tag.ends_with(".sig") => {}
            Form::Tags | Form::None if is_list => {}
            Form::Referrers | Form::None if tag.ends_with(".sig") => {}
            _ => drop(files.insert(format!("/v2/org/app/manifests/{tag}"), file)),
        }
    }
    files
}

type Files = BTreeMap<String, (String, Vec<u8>)>;

/// Serves files, and answers with a status for what is missing. As registries do, it filters referrers by their type, which
/// it reads as a form does.
async fn serve(files: Files, missing: u16) -> Registry {
    const BUNDLES: &str = "artifactType=application/vnd.dev.sigstore.bundle.v0.3%2Bjson";
    Registry::serve(move |seen: &Seen| match files.get(&seen.path) {
        Some(_) if seen.path.contains("/referrers/") && seen.query != BUNDLES => {
            let empty = json!({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": []});
            reply(200, &[("content-type", OCI_INDEX)], empty.to_string())
        }
        Some((kind, bytes)) => reply(200, &[("content-type", kind)], bytes.clone()),
        None => reply(missing, &[], ""),
    })
    .await
}

/// Pulls the image where a key is required.
async fn pull_signed(store: &Path, registry: &Registry, key: &str) -> Result<Pulled, Error> {
    let file = store.join("key.pub");
    std::fs::write(&file, recorded()["keys"][key].as_str().unwrap()).unwrap();
    let rule = json!([{"prefix": registry.host, "keys": [file]}]);
    let config = config(&[registry], &format!("signatures: {rule}"));
    let puller = Puller::open(&store.join("images"), config.clone(), limits())?;
    let pulled = pull(&puller, &registry.name()).await?;
    // Another process checks the same.
    let signed = Signers::read(&config)?.check(&registry.name(), pulled.evidence.as_ref().unwrap())?;
    assert_eq!(signed, std::slice::from_ref(&pulled.digest));
    Ok(pulled)
}

#[tokio::test]
async fn image_is_pulled_if_one_of_the_keys_has_signed_it() {
    for form in [Form::Tags, Form::ReferrersByTag, Form::Referrers] {
        let registry = serve(files(form), 404).await;
        for key in ["p256", "p384", "p521", "rsa"] {
            let folder = tempfile::tempdir().unwrap();
            let pulled = pull_signed(folder.path(), &registry, key).await;
            assert_eq!(pulled.unwrap().digest.to_string(), recorded()["tags"]["v1"], "{form:?} {key}");
        }
    }
}

#[tokio::test]
async fn image_without_a_signature_of_the_key_is_not_downloaded() {
    for (form, key, expected) in [
        (Form::Tags, "attester", "none of 5 is of a key for this image and signs it"),
        (Form::ReferrersByTag, "attester", "none of 6 is of a key for this image and signs it"),
        (Form::Referrers, "attester", "none of 6 is of a key for this image and signs it"),
        (Form::None, "p256", "the registry has none"),
    ] {
        let registry = serve(files(form), 404).await;
        let folder = tempfile::tempdir().unwrap();
        let error = pull_signed(folder.path(), &registry, key).await.unwrap_err();
        assert!(matches!(&error, Error::Unsigned { reason, .. } if reason == expected), "{form:?} {error}");
        assert_eq!(blobs(&folder.path().join("images")), Vec::<String>::new());
        assert_eq!(registry.requests("/blobs/").iter().filter(|r| !is_signature(&r.path)).count(), 0);
    }
}

/// Returns `true` for blobs of signatures.
fn is_signature(path: &str) -> bool {
    let digest = path.rsplit('/').next().unwrap();
    let bytes = recorded()["blobs"][digest]
        .as_str()
        .map(|text| base64::engine::general_purpose::STANDARD.decode(text).unwrap());
    bytes.is_some_and(|bytes| bytes.starts_with(b"{\"critical\"") || bytes.starts_with(b"{\"mediaType\""))
}

#[tokio::test]
async fn signature_of_another_image_does_not_count() {
    let mut files = files(Form::Tags);
    // The registry gives the tag, and the list of signatures, to another image.
    let other =
        files[&format!("/v2/org/app/manifests/{}", recorded()["tags"]["arm64"].as_str().unwrap())].clone();
    let index: Value = json!({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [
        {"mediaType": other.0, "digest": hutch_registry::Digest::of(&other.1).to_string(), "size": other.1.len()},
    ]});
    let index = serde_json::to_vec(&index).unwrap();
    let digest = hutch_registry::Digest::of(&index);
    let signatures = files[&format!(
        "/v2/org/app/manifests/{}.sig",
        recorded()["tags"]["v1"].as_str().unwrap().replace(':', "-")
    )]
        .clone();
    files.insert("/v2/org/app/manifests/v1".into(), (OCI_INDEX.into(), index));
    files.insert(format!("/v2/org/app/manifests/sha256-{}.sig", digest.hex()), signatures);
    let registry = serve(files, 404).await;
    let folder = tempfile::tempdir().unwrap();
    let error = pull_signed(folder.path(), &registry, "p256").await.unwrap_err();
    assert!(matches!(error, Error::Unsigned { .. }), "{error}");
}

#[tokio::test]
async fn registry_that_fails_is_not_one_without_signatures() {
    let registry = serve(files(Form::None), 503).await;
    let folder = tempfile::tempdir().unwrap();
    let error = pull_signed(folder.path(), &registry, "p256").await.unwrap_err();
    assert!(error.is_transient(), "{error}");
}

/// Path of the list of referrers of the image, and of the same list under a tag.
fn lists() -> [String; 2] {
    let image = recorded()["tags"]["v1"].as_str().unwrap().to_owned();
    [format!("/v2/org/app/referrers/{image}"), format!("/v2/org/app/manifests/{}", image.replace(':', "-"))]
}

#[tokio::test]
async fn list_under_a_tag_counts_where_referrers_are_answered_with_something_else() {
    for page in ["<html>", "{}", r#"{"schemaVersion":2}"#] {
        let mut files = files(Form::ReferrersByTag);
        let [referrers, tag] = lists();
        assert!(files.contains_key(&tag));
        files.insert(referrers, ("text/html".into(), page.into()));
        let registry = serve(files, 404).await;
        let folder = tempfile::tempdir().unwrap();
        pull_signed(folder.path(), &registry, "p256").await.unwrap();
    }
}

#[tokio::test]
async fn signature_that_the_registry_has_lost_hides_no_other() {
    for form in [Form::Tags, Form::Referrers] {
        let mut files = files(form);
        let [referrers, tag] = lists();
        let (list, field) = match form {
            Form::Tags => (format!("{tag}.sig"), "layers"),
            _ => (referrers, "manifests"),
        };
        let mut listing: Value = serde_json::from_slice(&files[&list].1).unwrap();
        let mut lost = listing[field][0].clone();
        lost["digest"] = format!("sha256:{}", "0".repeat(64)).into();
        listing[field].as_array_mut().unwrap().insert(0, lost);
        files.insert(list, (OCI_INDEX.into(), serde_json::to_vec(&listing).unwrap()));
        let registry = serve(files, 404).await;
        let folder = tempfile::tempdir().unwrap();
        let pulled = pull_signed(folder.path(), &registry, "p256").await;
        assert_eq!(pulled.unwrap().digest.to_string(), recorded()["tags"]["v1"], "{form:?}");
    }
}

#[tokio::test]
async fn registry_with_endless_signatures_is_not_searched_to_the_end() {
    let mut files = files(Form::Tags);
    let tag =
        format!("/v2/org/app/manifests/{}.sig", recorded()["tags"]["v1"].as_str().unwrap().replace(':', "-"));
    let mut manifest: Value = serde_json::from_slice(&files[&tag].1).unwrap();
    let layer = manifest["layers"][0].clone();
    manifest["layers"] = vec![layer; 1000].into();
    files.insert(tag, (String::new(), serde_json::to_vec(&manifest).unwrap()));
    let registry = serve(files, 404).await;
    let folder = tempfile::tempdir().unwrap();
    let error = pull_signed(folder.path(), &registry, "attester").await.unwrap_err();
    assert!(matches!(error, Error::Unsigned { .. }), "{error}");
    assert_eq!(registry.requests("/blobs/").len(), 64);
}
