use std::time::SystemTime;

use kube::api::PostParams;

use super::*;
use crate::authority::{LIFE, issue};
use crate::key_material::{RENEW_BEFORE, Standing};
use crate::rotator::CertificateRotator;
use crate::start;

const DAY: Duration = Duration::from_secs(24 * 3600);
const NAME: &str = "agent-sandbox-webhook-service.agent-sandbox-system.svc";

fn authorities(material: &KeyMaterial) -> usize {
    material.authorities.matches("BEGIN CERTIFICATE").count()
}

/// The Secret as another replica left it at that time.
async fn left_by_another(client: &Client, settings: &Settings, at: SystemTime) -> KeyMaterial {
    CertificateRotator::new(client.clone(), settings.clone()).look(at).await.expect("material")
}

#[test]
fn standing_follows_the_clock_both_ways() {
    let now = SystemTime::now();
    let material = issue(&Settings::default(), now).expect("material");
    for (at, standing) in [
        (now, "good"),
        (now - DAY / 48, "good"),
        (now - DAY, "useless"),
        (now + LIFE - RENEW_BEFORE - DAY, "good"),
        (now + LIFE - RENEW_BEFORE + DAY, "due"),
        (now + LIFE - DAY, "due"),
        (now + LIFE + DAY, "useless"),
    ] {
        let got = match material.standing(NAME, at) {
            Standing::Good => "good",
            Standing::Due(_) => "due",
            Standing::Useless(_) => "useless",
        };
        let days = at.duration_since(now).map(|ahead| ahead.as_secs() / 86400);
        assert_eq!(got, standing, "{days:?} days ahead");
    }
}

#[tokio::test]
async fn an_expired_secret_is_renewed_at_the_start() {
    let (server, folder) = (api_server().await, tempfile::tempdir().expect("tempdir"));
    let (client, settings) = (client(&server), settings(&folder));
    let old = left_by_another(&client, &settings, SystemTime::now() - LIFE - DAY).await;
    let running = run(start(client.clone(), settings).await.expect("a start"));
    let new = stored(&client).await;
    assert!(new != old);
    assert_eq!(authorities(&new), 1, "an expired authority is dropped");
    let bundle = bundles(&client).await.remove(0);
    let (shown, _) = dial(&running, &bundle, NAME).await.expect("an answer");
    assert_eq!(shown, first_certificate(&new.certificate));
}

/// Invariant of a renewal: the definitions trust the certificate that any replica shows.
#[tokio::test]
async fn while_replicas_show_different_certificates_all_are_trusted_and_each_comes_round() {
    let (server, folder) = (api_server().await, tempfile::tempdir().expect("tempdir"));
    let (client, settings) = (client(&server), settings(&folder));
    let now = SystemTime::now();
    let old = left_by_another(&client, &settings, now - LIFE + RENEW_BEFORE / 2).await;
    // A replica that shows it and does not read again.
    let elsewhere = tempfile::tempdir().expect("tempdir");
    std::fs::write(elsewhere.path().join("tls.crt"), &old.certificate).expect("written");
    std::fs::write(elsewhere.path().join("tls.key"), &old.key).expect("written");
    let fixed = Settings { manage_certs: false, cert_dir: elsewhere.path().to_owned(), ..settings.clone() };
    let sleeper = run(start(client.clone(), fixed).await.expect("a start"));
    let awake = run(start(client.clone(), settings.clone()).await.expect("a start"));

    let new = stored(&client).await;
    assert_eq!(authorities(&new), 2, "the renewal at the start keeps the older authority");
    let bundle = bundles(&client).await.remove(0);
    assert_eq!(bundle, new.authorities);
    let (shown, _) = dial(&sleeper, &bundle, NAME).await.expect("the old certificate is still trusted");
    assert_eq!(shown, first_certificate(&old.certificate));

    let (shown, _) = dial(&awake, &bundle, NAME).await.expect("the new one is trusted");
    assert_eq!(shown, first_certificate(&new.certificate));

    // Another renewal, by another replica: the one that is awake comes round without a restart.
    let newest = issue(&settings, now).expect("material").trusting_too(new.authorities.as_bytes(), now);
    let mut secret = secret(&client).await;
    secret.data = Some(newest.data());
    let api: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
    api.replace(SECRET, &PostParams::default(), &secret).await.expect("replaced");
    until("the newest certificate is shown", async || {
        let (shown, _) = dial(&awake, &newest.authorities, NAME).await.expect("trusted all the time");
        (shown == first_certificate(&newest.certificate)).then_some(())
    })
    .await;
    assert_eq!(authorities(&newest), 3);
    assert_eq!(bundles(&client).await, vec![newest.authorities.clone(); 4]);
    dial(&sleeper, &newest.authorities, NAME).await.expect("the oldest is still trusted");
}

#[tokio::test]
async fn a_slow_replica_does_not_put_an_older_bundle_over_a_newer_one() {
    let (server, folder) = (api_server().await, tempfile::tempdir().expect("tempdir"));
    let (client, settings) = (client(&server), settings(&folder));
    let now = SystemTime::now();
    let mut definitions = crate::definitions::Definitions::new(client.clone());
    definitions.observe().await.expect("observed");
    let newer = left_by_another(&client, &settings, now).await;
    let outcome = definitions.publish(&settings, "an older bundle").await.expect("an answer");
    assert_eq!(outcome, crate::definitions::Published::Overtaken);
    assert_eq!(bundles(&client).await, vec![newer.authorities; 4]);
}

#[tokio::test]
async fn without_the_right_to_renew_a_certificate_is_used_to_its_end() {
    let (server, folder) = (api_server().await, tempfile::tempdir().expect("tempdir"));
    let (client, settings) = (client(&server), settings(&folder));
    let now = SystemTime::now();
    let material = left_by_another(&client, &settings, now).await;
    let refused = refusing(&server, StatusCode::FORBIDDEN, |request| request.method() == http::Method::PUT);
    let mut rotator = CertificateRotator::new(refused, settings);
    let held = rotator.look(now + LIFE - DAY).await.expect("the one that is there");
    assert!(held == material);
    let error = rotator.look(now + LIFE + DAY).await.err().expect("it has ended").to_string();
    assert!(error.contains("changing Secret") && error.contains("role"), "{error}");
}
