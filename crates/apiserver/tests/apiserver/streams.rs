//! Streams of Pods reach the node that runs them.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use hutch_apiserver::{ApiServer, Config, Identity};
use hutch_kubelet::{
    ByteReader, Duplex, ExecRequest, Exit, Kubelet, LogRequest, PodId, Session, StreamError,
};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{AttachParams, LogParams, PostParams};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// A node whose every process is `cat`, whose every port echoes and whose log names the Pod.
struct Echo;

fn pipe() -> (tokio::io::DuplexStream, tokio::io::DuplexStream) {
    tokio::io::duplex(4096)
}

impl Kubelet for Echo {
    fn exec<'a>(&'a self, _: &'a PodId, request: ExecRequest) -> BoxFuture<'a, Result<Session, StreamError>> {
        async move {
            if request.command != ["cat"] {
                return Err(StreamError::BadRequest("only cat".into()));
            }
            let (input, mut taken) = pipe();
            let (mut given, output) = pipe();
            let done = tokio::spawn(async move {
                let copied = tokio::io::copy(&mut taken, &mut given).await;
                i32::from(copied.is_err())
            });
            let exit = async move { Exit::Code(done.await.unwrap_or(1)) }.boxed();
            Ok(Session {
                stdin: request.stdin.then(|| Box::pin(input) as _),
                stdout: Some(Box::pin(output)),
                stderr: None,
                resize: None,
                exit,
            })
        }
        .boxed()
    }

    fn attach<'a>(&'a self, pod: &'a PodId, _: ExecRequest) -> BoxFuture<'a, Result<Session, StreamError>> {
        async move { Err(StreamError::NotFound(format!("{} has no process to join", pod.name))) }.boxed()
    }

    fn connect<'a>(&'a self, _: &'a PodId, _: u16) -> BoxFuture<'a, Result<Box<dyn Duplex>, StreamError>> {
        async {
            let (ours, theirs) = pipe();
            tokio::spawn(async move {
                let (mut from, mut to) = tokio::io::split(ours);
                tokio::io::copy(&mut from, &mut to).await
            });
            Ok(Box::new(theirs) as Box<dyn Duplex>)
        }
        .boxed()
    }

    fn logs<'a>(&'a self, pod: &'a PodId, _: LogRequest) -> BoxFuture<'a, Result<ByteReader, StreamError>> {
        async move {
            let text = format!("{}/{} {}\n", pod.namespace, pod.name, pod.uid.len());
            Ok(Box::pin(std::io::Cursor::new(text.into_bytes())) as ByteReader)
        }
        .boxed()
    }
}

async fn pods(kubelet: bool) -> Api<Pod> {
    let config = Config { default_node: Some("hutch".into()), ..Config::default() };
    let server = ApiServer::open(config).await.unwrap();
    if kubelet {
        server.set_kubelet(Arc::new(Echo));
    }
    let api: Api<Pod> = Api::default_namespaced(server.client(Identity::admin(), "default"));
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "x"}]}});
    api.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    api
}

#[tokio::test]
async fn exec_logs_and_ports() {
    let api = pods(true).await;
    assert_eq!(api.logs("p", &LogParams::default()).await.unwrap(), "default/p 36\n");

    let wanted = AttachParams::default().stdin(true).stdout(true).stderr(false);
    let mut process = api.exec("p", ["cat"], &wanted).await.unwrap();
    let mut input = process.stdin().unwrap();
    let mut output = process.stdout().unwrap();
    input.write_all(b"through the server").await.unwrap();
    let mut heard = [0; 18];
    output.read_exact(&mut heard).await.unwrap();
    assert_eq!(&heard, b"through the server");

    let mut forward = api.portforward("p", &[8080]).await.unwrap();
    let mut port = forward.take_stream(8080).unwrap();
    port.write_all(b"ping").await.unwrap();
    let mut heard = [0; 4];
    port.read_exact(&mut heard).await.unwrap();
    assert_eq!(&heard, b"ping");
}

#[tokio::test]
async fn what_the_node_refuses_is_an_answer() {
    let api = pods(true).await;
    assert!(api.exec("p", ["ls"], &AttachParams::default().stderr(false)).await.is_err());
    assert!(api.exec("none", ["cat"], &AttachParams::default().stderr(false)).await.is_err());
    let api = pods(false).await;
    let Err(kube::Error::Api(status)) = api.logs("p", &LogParams::default()).await else {
        panic!("no node, no log")
    };
    assert_eq!((status.code, status.reason.as_str()), (503, "ServiceUnavailable"));
}
