use std::path::Path;
use std::time::SystemTime;

use super::*;
use crate::authority::{LIFE, issue};
use crate::{Error, start};

const NAME: &str = "agent-sandbox-webhook-service.agent-sandbox-system.svc";

fn given(folder: &tempfile::TempDir) -> Settings {
    let settings = Settings { manage_certs: false, ..settings(folder) };
    std::fs::create_dir_all(&settings.cert_dir).expect("a folder");
    settings
}

fn put(settings: &Settings, material: &KeyMaterial) {
    write(&settings.cert_dir.join(&settings.cert_name), &material.certificate);
    write(&settings.cert_dir.join(&settings.key_name), &material.key);
}

fn write(path: &Path, text: &str) {
    std::fs::write(path, text).expect("written");
}

/// A client that must not be needed.
async fn no_client() -> Client {
    refusing(&api_server().await, StatusCode::FORBIDDEN, |_| true)
}

async fn refusal(settings: &Settings) -> String {
    match start(no_client().await, settings.clone()).await {
        Err(Error::Files(text)) => text,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("started"),
    }
}

#[tokio::test]
async fn files_are_shown_and_read_again_when_they_change() {
    let folder = tempfile::tempdir().expect("tempdir");
    let settings = Settings { cert_name: "my.crt".into(), key_name: "my.key".into(), ..given(&folder) };
    let (first, second) = (
        issue(&settings, SystemTime::now()).expect("one"),
        issue(&settings, SystemTime::now()).expect("two"),
    );
    put(&settings, &first);
    let running = run(start(no_client().await, settings.clone()).await.expect("no API server is needed"));
    let (shown, _) = dial(&running, &first.authorities, NAME).await.expect("an answer");
    assert_eq!(shown, first_certificate(&first.certificate));

    // Halfway: a certificate without its key leaves what was there.
    write(&settings.cert_dir.join("my.crt"), &second.certificate);
    tokio::time::sleep(BRISK.files * 5).await;
    dial(&running, &first.authorities, NAME).await.expect("the first one is still shown");
    put(&settings, &second);
    until("the second one is shown", async || dial(&running, &second.authorities, NAME).await.ok()).await;
}

#[tokio::test]
async fn one_file_with_both_is_taken_when_the_default_names_are_not_there() {
    let folder = tempfile::tempdir().expect("tempdir");
    let settings = given(&folder);
    let material = issue(&settings, SystemTime::now()).expect("material");
    write(&settings.cert_dir.join("cert.pem"), &format!("{}{}", material.key, material.certificate));
    let running = run(start(no_client().await, settings.clone()).await.expect("a start"));
    dial(&running, &material.authorities, NAME).await.expect("an answer");

    let named = Settings { cert_name: "my.crt".into(), ..settings };
    assert!(refusal(&named).await.contains("my.crt is not there"));
}

#[tokio::test]
async fn problem_of_the_files_is_reported() {
    let folder = tempfile::tempdir().expect("tempdir");
    let settings = given(&folder);
    let text = refusal(&settings).await;
    assert!(
        text.contains("tls.crt") && text.contains("cert.pem") && text.contains("--webhook-cert-dir"),
        "{text}"
    );

    let material = issue(&settings, SystemTime::now()).expect("material");
    write(&settings.cert_dir.join("tls.crt"), &material.certificate);
    assert!(refusal(&settings).await.contains("tls.key is not there"));
    write(&settings.cert_dir.join("tls.key"), "no key");
    let text = refusal(&settings).await;
    assert!(text.contains("tls.crt") && text.contains("private key"), "{text}");
    let other = issue(&settings, SystemTime::now()).expect("material");
    write(&settings.cert_dir.join("tls.key"), &other.key);
    assert!(refusal(&settings).await.contains("do not go together"));
    write(&settings.cert_dir.join("tls.key"), &"x".repeat((1 << 20) + 1));
    assert!(refusal(&settings).await.contains("larger than"));
}

/// Reconciling does not need the webhook, so an expired certificate is no reason not to start; the log says it.
#[tokio::test]
async fn expired_file_is_reported_and_replaced_as_soon_as_a_new_one_is_there() {
    let folder = tempfile::tempdir().expect("tempdir");
    let settings = given(&folder);
    let (old, new) = (
        issue(&settings, SystemTime::now() - LIFE * 2).expect("old"),
        issue(&settings, SystemTime::now()).expect("new"),
    );
    put(&settings, &old);
    let files = crate::operator_files::OperatorFiles::new(&settings);
    let problem = files.read().expect("files").out_of_date(SystemTime::now()).expect("a problem");
    assert!(problem.contains("tls.crt expired"), "{problem}");
    let running = run(start(no_client().await, settings.clone()).await.expect("a start"));
    let error = dial(&running, &old.authorities, NAME).await.expect_err("a client refuses it");
    assert!(error.contains("expired"), "{error}");
    put(&settings, &new);
    until("the new one is shown", async || dial(&running, &new.authorities, NAME).await.ok()).await;
    assert_eq!(files.read().expect("files").out_of_date(SystemTime::now()), None);
}
