use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::SystemTime;

use k8s_openapi::ByteString;
use kube::api::{Patch, PatchParams, PostParams};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;

use super::*;
use crate::rotator::CertificateRotator;
use crate::{Error, start};

#[tokio::test]
async fn on_a_fresh_cluster_everything_is_made_and_the_api_server_can_dial() {
    let (server, folder) = (api_server().await, tempfile::tempdir().expect("tempdir"));
    let client = client(&server);
    let running = run(start(client.clone(), settings(&folder)).await.expect("a start"));

    let secret = secret(&client).await;
    assert_eq!(secret.type_.as_deref(), Some("Opaque"));
    let keys: Vec<_> = secret.data.iter().flatten().map(|(key, _)| key.as_str()).collect();
    assert_eq!(keys, ["ca.crt", "tls.crt", "tls.key"]);
    let material = stored(&client).await;
    assert!(material.key.starts_with("-----BEGIN EC PRIVATE KEY-----\n"));
    let bundles = bundles(&client).await;
    assert_eq!(bundles, vec![material.authorities.clone(); 4]);

    let name = "agent-sandbox-webhook-service.agent-sandbox-system.svc";
    let (shown, answer) = dial(&running, &bundles[0], name).await.expect("an answer");
    assert_eq!(shown, first_certificate(&material.certificate));
    assert_eq!(answer["response"]["convertedObjects"][0]["spec"]["replicas"], 1);
    let error =
        dial(&running, &bundles[0], "another.agent-sandbox-system.svc").await.expect_err("another name");
    assert!(error.contains("not valid for name"), "{error}");

    for (file, text) in [("tls.crt", &material.certificate), ("tls.key", &material.key)] {
        let path = folder.path().join("certs").join(file);
        assert_eq!(&std::fs::read_to_string(&path).expect("a file"), text);
        assert_eq!(std::fs::metadata(&path).expect("stat").mode() & 0o7777, 0o600, "{file}");
    }
    assert_eq!(std::fs::metadata(folder.path().join("certs")).expect("stat").mode() & 0o022, 0);
}

#[tokio::test]
async fn the_certificate_is_what_the_go_controller_makes() {
    let (server, folder) = (api_server().await, tempfile::tempdir().expect("tempdir"));
    let mut rotator = CertificateRotator::new(client(&server), settings(&folder));
    let material = rotator.look(SystemTime::now()).await.expect("material");
    let der = first_certificate(&material.certificate);
    let (_, leaf) = X509Certificate::from_der(&der).expect("a certificate");
    assert_eq!(leaf.subject().to_string(), "CN=agent-sandbox-webhook-service.agent-sandbox-system.svc");
    assert_eq!(leaf.issuer().to_string(), "CN=agent-sandbox-conversion-webhook-ca");
    let names = leaf.subject_alternative_name().expect("names").expect("names");
    let names = names.value.general_names.iter().map(|name| match name {
        GeneralName::DNSName(name) => *name,
        other => panic!("{other:?}"),
    });
    assert_eq!(
        names.collect::<Vec<_>>(),
        [
            "agent-sandbox-webhook-service",
            "agent-sandbox-webhook-service.agent-sandbox-system",
            "agent-sandbox-webhook-service.agent-sandbox-system.svc",
            "agent-sandbox-webhook-service.agent-sandbox-system.svc.cluster.local",
        ]
    );
    let validity = leaf.validity();
    let life = validity.not_after.timestamp() - validity.not_before.timestamp();
    assert_eq!(life, 365 * 24 * 3600 + 3600, "a year, from an hour ago");
    let der = first_certificate(&material.authorities);
    let (_, authority) = X509Certificate::from_der(&der).expect("a certificate");
    assert!(authority.is_ca());
    assert_eq!(authority.subject(), leaf.issuer());
}

#[tokio::test]
async fn replicas_that_start_at_once_share_one_secret() {
    let (server, folder) = (api_server().await, tempfile::tempdir().expect("tempdir"));
    let client = client(&server);
    let looks: Vec<_> = (0..8)
        .map(|_| {
            let mut rotator = CertificateRotator::new(client.clone(), settings(&folder));
            tokio::spawn(async move { rotator.look(SystemTime::now()).await })
        })
        .collect();
    let held = {
        let mut all = Vec::new();
        for look in looks {
            all.push(look.await.expect("no panic").expect("material"));
        }
        all
    };
    let stored = stored(&client).await;
    assert!(held.iter().all(|material| *material == stored), "all have what is stored");
    assert_eq!(bundles(&client).await, vec![stored.authorities; 4]);
}

#[tokio::test]
async fn nothing_is_written_that_is_already_so() {
    let (server, folder) = (api_server().await, tempfile::tempdir().expect("tempdir"));
    let mut rotator = CertificateRotator::new(client(&server), settings(&folder));
    rotator.look(SystemTime::now()).await.expect("material");
    let revision = server.revision();
    rotator.look(SystemTime::now()).await.expect("material");
    CertificateRotator::new(client(&server), settings(&folder))
        .look(SystemTime::now())
        .await
        .expect("material");
    assert_eq!(server.revision(), revision);
}

#[tokio::test]
async fn a_secret_that_cannot_be_used_is_replaced_and_what_else_is_in_it_stays() {
    let (server, folder) = (api_server().await, tempfile::tempdir().expect("tempdir"));
    let client = client(&server);
    let good = CertificateRotator::new(client.clone(), settings(&folder))
        .look(SystemTime::now())
        .await
        .expect("material");
    let elsewhere = Settings { service_name: "other".into(), ..settings(&folder) };
    let other = crate::authority::issue(&elsewhere, SystemTime::now()).expect("material");
    let api: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
    for (case, key, value) in [
        ("no key", "tls.key", None),
        ("garbage", "tls.crt", Some("garbage".to_owned())),
        ("no authority", "ca.crt", Some(String::new())),
        ("the key of another", "tls.key", Some(other.key.clone())),
        ("another authority", "ca.crt", Some(other.authorities.clone())),
    ] {
        let mut broken = secret(&client).await;
        let mut data = good.data();
        data.insert("mine".into(), ByteString(b"kept".to_vec()));
        match value {
            Some(text) => data.insert(key.into(), ByteString(text.into_bytes())),
            None => data.remove(key),
        };
        broken.data = Some(data);
        broken.metadata.labels = Some(BTreeMap::from([("mine".to_owned(), "kept".to_owned())]));
        api.replace(SECRET, &PostParams::default(), &broken).await.expect(case);
        let held = CertificateRotator::new(client.clone(), settings(&folder))
            .look(SystemTime::now())
            .await
            .expect(case);
        assert!(held != good && held == stored(&client).await, "{case}");
        let secret = secret(&client).await;
        assert_eq!(
            secret.data.as_ref().and_then(|data| data.get("mine")).map(|b| b.0.as_slice()),
            Some(&b"kept"[..])
        );
        assert_eq!(
            secret.metadata.labels.as_ref().and_then(|l| l.get("mine")).map(String::as_str),
            Some("kept")
        );
        assert_eq!(bundles(&client).await, vec![held.authorities; 4], "{case}");
    }
}

#[tokio::test]
async fn a_certificate_for_another_name_is_renewed() {
    let (server, folder) = (api_server().await, tempfile::tempdir().expect("tempdir"));
    let client = client(&server);
    let first = CertificateRotator::new(client.clone(), settings(&folder))
        .look(SystemTime::now())
        .await
        .expect("material");
    let renamed = Settings { service_name: "renamed".into(), ..settings(&folder) };
    let second =
        CertificateRotator::new(client.clone(), renamed).look(SystemTime::now()).await.expect("material");
    assert!(first != second);
    let definition: CustomResourceDefinition =
        Api::all(client).get(crate::definitions::NAMES[0]).await.expect("a definition");
    let service =
        definition.spec.conversion.and_then(|c| c.webhook?.client_config?.service).expect("a service");
    assert_eq!(service.name, "renamed");
}

#[tokio::test]
async fn a_definition_that_lost_its_bundle_gets_it_back_while_the_webhook_runs() {
    let (server, folder) = (api_server().await, tempfile::tempdir().expect("tempdir"));
    let client = client(&server);
    let _running = run(start(client.clone(), settings(&folder)).await.expect("a start"));
    let bundle = stored(&client).await.authorities;
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let lost = json!({"spec": {"conversion": {"webhook": {"clientConfig": {"caBundle": null}}}}});
    let patched = api.patch(crate::definitions::NAMES[2], &PatchParams::default(), &Patch::Merge(lost)).await;
    let config = patched.expect("patched").spec.conversion.and_then(|c| c.webhook?.client_config);
    assert!(config.expect("a config").ca_bundle.is_none(), "the test did take it away");
    until("the bundle is back", async || (bundles(&client).await == vec![bundle.clone(); 4]).then_some(()))
        .await;
}

#[tokio::test]
async fn a_definition_that_is_not_there_is_passed_over() {
    let (server, folder) = (api_server().await, tempfile::tempdir().expect("tempdir"));
    let missing = refusing(&server, StatusCode::NOT_FOUND, |request| {
        request.uri().path().ends_with("/sandboxclaims.extensions.agents.x-k8s.io")
    });
    let material =
        CertificateRotator::new(missing, settings(&folder)).look(SystemTime::now()).await.expect("material");
    let bundles = bundles(&client(&server)).await;
    let having = bundles.iter().filter(|bundle| **bundle == material.authorities).count();
    assert_eq!((having, bundles[1].as_str()), (3, ""));
}

#[tokio::test]
async fn a_start_waits_for_the_api_server_but_not_for_a_role() {
    let (server, folder) = (api_server().await, tempfile::tempdir().expect("tempdir"));
    let tries = Arc::new(AtomicUsize::new(0));
    let failing = {
        let tries = tries.clone();
        refusing(&server, StatusCode::SERVICE_UNAVAILABLE, move |_| tries.fetch_add(1, Ordering::SeqCst) == 0)
    };
    start(failing, settings(&folder)).await.expect("a start once it answers");
    assert!(tries.load(Ordering::SeqCst) > 1);

    for (part, named) in
        [("/secrets", "Secret agent-sandbox-system/agent-sandbox-webhook-certs"), ("/customres", "CustomRes")]
    {
        let refused = refusing(&api_server().await, StatusCode::FORBIDDEN, move |request| {
            request.uri().path().contains(part)
        });
        let Err(error) = start(refused, settings(&folder)).await else { panic!("started without a role") };
        assert!(matches!(error, Error::Api { .. }));
        let text = error.to_string();
        assert!(text.contains(named) && text.contains("role"), "{text}");
    }
}
