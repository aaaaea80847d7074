//! Minimal API server for kubectl to reach a Pod's streams, in front of a node that runs local processes.

use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use axum::{Json, Router};
use futures::FutureExt;
use futures::future::BoxFuture;
use hutch_kubelet::{
    ByteReader, ByteWriter, Duplex, ExecRequest, Exit, Kubelet, LogRequest, PodId, Session, StreamError,
};
use serde_json::{Value, json};
use std::os::unix::process::ExitStatusExt;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio::sync::mpsc;

/// Runs commands as processes of this machine and connects to ports of this machine.
#[derive(Default)]
struct LocalNode {
    over: tokio::sync::watch::Sender<bool>,
}

/// Port whose connection succeeds and then ends the Pod.
pub(crate) const LAST_PORT: u16 = 2;

fn start(request: ExecRequest) -> Result<Session, StreamError> {
    let (program, arguments) =
        request.command.split_first().ok_or_else(|| StreamError::BadRequest("no command".into()))?;
    if request.tty {
        return Ok(terminal());
    }
    let pipe = |wanted| if wanted { Stdio::piped() } else { Stdio::null() };
    let mut command = Command::new(program);
    command.args(arguments).kill_on_drop(true);
    command.stdin(pipe(request.stdin)).stdout(pipe(request.stdout)).stderr(pipe(request.stderr));
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            let exit = std::future::ready(Exit::Failed(format!("{program}: {error}"))).boxed();
            return Ok(Session { stdin: None, stdout: None, stderr: None, resize: None, exit });
        }
    };
    Ok(Session {
        stdin: child.stdin.take().map(|pipe| Box::pin(pipe) as ByteWriter),
        stdout: child.stdout.take().map(|pipe| Box::pin(pipe) as ByteReader),
        stderr: child.stderr.take().map(|pipe| Box::pin(pipe) as ByteReader),
        resize: None,
        exit: async move {
            match child.wait().await {
                Ok(status) => status.signal().map_or(Exit::Code(status.code().unwrap_or(-1)), Exit::Signal),
                Err(error) => Exit::Failed(error.to_string()),
            }
        }
        .boxed(),
    })
}

/// Simulates a program on a terminal: prints its first size, then exits with 7.
fn terminal() -> Session {
    let (resize, mut sizes) = mpsc::channel::<hutch_kubelet::TerminalSize>(4);
    let (stdout, mut inside) = tokio::io::duplex(1024);
    let exit = async move {
        let Some(size) = sizes.recv().await else { return Exit::Failed("no size".into()) };
        let text = format!("{}x{}\r\n", size.columns, size.rows);
        match inside.write_all(text.as_bytes()).await {
            Ok(()) => Exit::Code(7),
            Err(error) => Exit::Failed(error.to_string()),
        }
    };
    let stdin: ByteWriter = Box::pin(tokio::io::sink());
    Session {
        stdin: Some(stdin),
        stdout: Some(Box::pin(stdout)),
        stderr: None,
        resize: Some(resize),
        exit: exit.boxed(),
    }
}

impl Kubelet for LocalNode {
    fn exec<'a>(&'a self, _: &'a PodId, request: ExecRequest) -> BoxFuture<'a, Result<Session, StreamError>> {
        async move {
            match request.container.as_deref() {
                Some("missing") => Err(StreamError::NotFound("container missing is not in pod p".into())),
                _ => start(request),
            }
        }
        .boxed()
    }

    fn attach<'a>(
        &'a self,
        _: &'a PodId,
        request: ExecRequest,
    ) -> BoxFuture<'a, Result<Session, StreamError>> {
        async move { start(ExecRequest { command: vec!["cat".into()], ..request }) }.boxed()
    }

    fn connect<'a>(&'a self, _: &'a PodId, port: u16) -> BoxFuture<'a, Result<Box<dyn Duplex>, StreamError>> {
        async move {
            if port == LAST_PORT {
                self.over.send_replace(true);
                let (ours, theirs) = tokio::io::duplex(1);
                std::mem::forget(theirs);
                return Ok(Box::new(ours) as Box<dyn Duplex>);
            }
            let connected = TcpStream::connect(("127.0.0.1", port)).await;
            match connected {
                Ok(stream) => Ok(Box::new(stream) as Box<dyn Duplex>),
                Err(error) => Err(StreamError::Unavailable(error.to_string())),
            }
        }
        .boxed()
    }

    fn ended<'a>(&'a self, _: &'a PodId) -> BoxFuture<'a, ()> {
        let mut over = self.over.subscribe();
        async move {
            let _ = over.wait_for(|over| *over).await;
        }
        .boxed()
    }

    fn logs<'a>(
        &'a self,
        _: &'a PodId,
        request: LogRequest,
    ) -> BoxFuture<'a, Result<ByteReader, StreamError>> {
        async move {
            let lines = request.tail_lines.unwrap_or(3);
            let text: String = (0..lines).map(|n| format!("line {n}\n")).collect();
            Ok(Box::pin(std::io::Cursor::new(text.into_bytes())) as ByteReader)
        }
        .boxed()
    }
}

fn pod() -> Value {
    json!({
        "kind": "Pod", "apiVersion": "v1",
        "metadata": {"name": "p", "namespace": "default", "uid": "u-1", "resourceVersion": "1"},
        "spec": {"containers": [{"name": "c", "image": "i", "stdin": true, "ports": [{"containerPort": 80}]}]},
        "status": {"phase": "Running"},
    })
}

fn resources() -> Value {
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "v1", "resources": [
        {"name": "pods", "singularName": "pod", "namespaced": true, "kind": "Pod", "verbs": ["get", "list"]},
    ]})
}

/// `Upgrade` and `Sec-WebSocket-Protocol` headers of the requested streams.
pub(crate) type Upgrades = Arc<Mutex<Vec<String>>>;

type Shared = (Arc<dyn Kubelet>, Upgrades);

async fn stream(State((node, seen)): State<Shared>, Path(what): Path<String>, request: Request) -> Response {
    let headers = ["upgrade", "sec-websocket-protocol"].map(|name| request.headers().get(name));
    let headers: Vec<_> = headers.into_iter().flatten().filter_map(|value| value.to_str().ok()).collect();
    seen.lock().expect("no panic").push(headers.join(" "));
    let id = PodId { namespace: "default".into(), name: "p".into(), uid: "u-1".into() };
    match what.as_str() {
        "exec" => hutch_remote::exec(request, node, id).await,
        "attach" => hutch_remote::attach(request, node, id).await,
        "portforward" => hutch_remote::port_forward(request, node, id).await,
        "log" => hutch_remote::logs(request, node, id).await,
        _ => http::StatusCode::NOT_FOUND.into_response(),
    }
}

/// Starts the server on a free port.
pub(crate) async fn start_server() -> (SocketAddr, Upgrades) {
    let node: Arc<dyn Kubelet> = Arc::new(LocalNode::default());
    let upgrades = Upgrades::default();
    let router = Router::new()
        .route("/api", get(|| async { Json(json!({"kind": "APIVersions", "versions": ["v1"]})) }))
        .route(
            "/apis",
            get(|| async { Json(json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": []})) }),
        )
        .route("/api/v1", get(|| async { Json(resources()) }))
        .route("/api/v1/namespaces/default/pods/p", get(|| async { Json(pod()) }))
        .route("/api/v1/namespaces/default/pods/p/{what}", any(stream))
        .with_state((node, Arc::clone(&upgrades)));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move { axum::serve(listener, router).await });
    (address, upgrades)
}

/// Starts a TCP server that echoes its input until the end, then sends `end` and closes.
pub(crate) async fn start_echo() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut read, mut write) = stream.split();
                tokio::io::copy(&mut read, &mut write).await?;
                write.write_all(b"end").await?;
                write.shutdown().await
            });
        }
    });
    port
}
