//! The library without the command line, as other callers use it.

use std::time::Duration;

use hutch_client::{Command, Ended, Member, Name, Output, Sandboxes, Wait};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;

use crate::harness::Up;

const SERVER: &str = "apiVersion: agents.x-k8s.io/v1beta1\nkind: Sandbox\nmetadata: {name: server}\nspec:\n  \
    podTemplate:\n    spec:\n      terminationGracePeriodSeconds: 0\n      containers:\n      \
    - {name: main, image: hutch/python-runtime}\n";

async fn sandboxes(up: &Up) -> Sandboxes {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let kubeconfig = Kubeconfig::read_from(up.kubeconfig()).expect("the kubeconfig");
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
    Sandboxes::new(Client::try_from(config.expect("a configuration")).expect("a client"), "default")
}

#[tokio::test]
async fn library_runs_copies_forwards_and_lists_events() {
    hutch_testkit::require!(root, kubectl);
    let up = Up::start(&[]);
    let file = up.folder().join("server.yaml");
    std::fs::write(&file, SERVER).expect("written");
    up.ok(&format!("create -f {}", file.display()));
    let (sandboxes, name) = (sandboxes(&up).await, Name::Sandbox("server".to_owned()));
    let (limit, mut progress) = (Duration::from_secs(60), ());
    let target = sandboxes.target(&name, None, false, &mut Wait::new(limit, &mut progress)).await;
    let target = target.expect("a target");

    let command = Command { argv: vec!["echo".to_owned(), "text".to_owned()], stdin: false, tty: false };
    let session = sandboxes.exec(&target, command).await.expect("a session");
    let (output, mut pieces) = mpsc::channel(8);
    let ended = session.run(mpsc::channel(1).1, output).await.expect("an outcome");
    assert_eq!(ended, Ended::Exited(0));
    assert!(matches!(pieces.recv().await, Some(Output::Stdout(bytes)) if &bytes[..] == b"text\n"));

    let (mut archive, member) = (Vec::new(), Member::new("/etc/hostname"));
    sandboxes.copy_out(&target, &member, &mut archive).await.expect("copied out");
    sandboxes.copy_in(&target, "/tmp", &archive[..]).await.expect("copied in");
    let mut again = Vec::new();
    sandboxes.copy_out(&target, &Member::new("/tmp/hostname"), &mut again).await.expect("copied out again");
    assert_eq!((archive.is_empty(), again.len()), (false, archive.len()));

    let mut connection = sandboxes.port_forward(&target, 8888).await.expect("a connection");
    connection.write_all(b"GET / HTTP/1.0\r\n\r\n").await.expect("written");
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await.expect("an answer");
    assert!(answer.contains("Sandbox Runtime is active."), "{answer}");

    let suspended = sandboxes.suspend(&name, &mut Wait::new(limit, &mut progress)).await.expect("suspended");
    let events = sandboxes.events(&suspended).await.expect("events");
    let of_it =
        |event: &&k8s_openapi::api::core::v1::Event| event.involved_object.name.as_deref() == Some("server");
    assert_eq!((events.is_empty(), events.iter().filter(of_it).count()), (false, events.len()));
}
