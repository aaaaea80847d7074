//! An image, and a registry that answers as a test wants.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hutch_registry::{Config, Digest, Error, Event, ImageName, Keychain, Limits, Pulled, Puller};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};

pub(crate) const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";

pub(crate) type Reply = Response<UnsyncBoxBody<Bytes, std::io::Error>>;

/// A request that a registry received.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) authorization: Option<String>,
    pub(crate) range: Option<u64>,
}

/// A registry without TLS on a port of its own.
pub(crate) struct Registry {
    pub(crate) host: String,
    pub(crate) seen: Arc<Mutex<Vec<Seen>>>,
}

impl Registry {
    /// Serves what the function answers.
    pub(crate) async fn serve(answer: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> Registry {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let registry = Registry { host, seen: seen.clone() };
        let answer = Arc::new(answer);
        tokio::spawn(async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else { return };
                let (answer, seen) = (answer.clone(), seen.clone());
                let service = service_fn(move |request: Request<Incoming>| {
                    let request = read(&request);
                    seen.lock().unwrap().push(request.clone());
                    let reply = answer(&request);
                    async move { Ok::<_, std::convert::Infallible>(reply) }
                });
                let connection = hyper::server::conn::http1::Builder::new();
                tokio::spawn(connection.serve_connection(TokioIo::new(stream), service));
            }
        });
        registry
    }

    /// Requests whose path has the text.
    pub(crate) fn requests(&self, part: &str) -> Vec<Seen> {
        let seen = self.seen.lock().unwrap();
        seen.iter().filter(|request| request.path.contains(part)).cloned().collect()
    }

    pub(crate) fn name(&self) -> ImageName {
        ImageName::parse(&format!("{}/org/app:v1", self.host)).unwrap()
    }
}

fn read(request: &Request<Incoming>) -> Seen {
    let header = |name: &str| request.headers().get(name).map(|v| v.to_str().unwrap().to_owned());
    let range = header("range")
        .map(|text| text.strip_prefix("bytes=").unwrap().strip_suffix('-').unwrap().parse().unwrap());
    Seen {
        path: request.uri().path().into(),
        query: request.uri().query().unwrap_or_default().into(),
        authorization: header("authorization"),
        range,
    }
}

pub(crate) fn reply(status: u16, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Reply {
    let mut response = Response::builder().status(status);
    for (name, value) in headers {
        response = response.header(*name, *value);
    }
    response.body(Full::new(body.into()).map_err(|e| match e {}).boxed_unsync()).unwrap()
}

/// Announces `length` bytes, or none if it is `None`, and sends the pieces. Then the connection is cut, or silent.
pub(crate) fn broken(
    status: u16,
    headers: &[(&str, &str)],
    length: Option<usize>,
    body: Vec<u8>,
    end: End,
) -> Reply {
    let pieces = body.chunks(16 << 10).map(|piece| Ok(Frame::data(Bytes::copy_from_slice(piece))));
    let pieces: Vec<_> = pieces.collect();
    let last = futures::stream::once(async move {
        match end {
            End::Cut => {
                // So that what was sent is received before the connection is reset.
                tokio::time::sleep(Duration::from_millis(50)).await;
                Err(std::io::Error::other("cut"))
            }
            End::Silent => std::future::pending().await,
        }
    });
    let stream = futures::StreamExt::chain(futures::stream::iter(pieces), last);
    let mut response = Response::builder().status(status);
    for (name, value) in headers {
        response = response.header(*name, *value);
    }
    if let Some(length) = length {
        response = response.header("content-length", length);
    }
    response.body(StreamBody::new(stream).boxed_unsync()).unwrap()
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum End {
    Cut,
    Silent,
}

/// A small image, by the paths of a registry.
#[derive(Debug, Clone)]
pub(crate) struct Image {
    pub(crate) files: BTreeMap<String, (String, Vec<u8>)>,
    pub(crate) layers: Vec<Digest>,
    pub(crate) manifest: Vec<u8>,
}

impl Image {
    /// Makes an image whose layers have a file each, of these sizes.
    pub(crate) fn new(sizes: &[usize]) -> Image {
        Image::for_machine(sizes, machine())
    }

    pub(crate) fn for_machine(sizes: &[usize], architecture: &str) -> Image {
        let mut image = Image { files: BTreeMap::new(), layers: Vec::new(), manifest: Vec::new() };
        let (mut layers, mut diff_ids) = (Vec::new(), Vec::new());
        for (i, size) in sizes.iter().enumerate() {
            let archive = archive(&format!("file{i}"), *size);
            diff_ids.push(Digest::of(&archive).to_string());
            let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::none());
            packed.write_all(&archive).unwrap();
            let packed = packed.finish().unwrap();
            layers.push(descriptor("application/vnd.oci.image.layer.v1.tar+gzip", &packed));
            let digest = image.add_blob(packed);
            image.layers.push(digest);
        }
        let config = json!({
            "architecture": architecture, "os": "linux", "config": {"Cmd": ["/bin/app"], "Env": ["A=b"]},
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
        });
        let config = serde_json::to_vec(&config).unwrap();
        let of_config = descriptor("application/vnd.oci.image.config.v1+json", &config);
        image.add_blob(config);
        let manifest =
            json!({"schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": of_config, "layers": layers});
        image.manifest = serde_json::to_vec(&manifest).unwrap();
        image.add_manifest("v1", OCI_MANIFEST, image.manifest.clone());
        image
    }

    fn add_blob(&mut self, bytes: Vec<u8>) -> Digest {
        let digest = Digest::of(&bytes);
        self.files.insert(format!("/v2/org/app/blobs/{digest}"), ("application/octet-stream".into(), bytes));
        digest
    }

    /// Adds a manifest under a tag and its digest.
    pub(crate) fn add_manifest(&mut self, tag: &str, kind: &str, bytes: Vec<u8>) -> Digest {
        let digest = Digest::of(&bytes);
        for reference in [tag, &digest.to_string()] {
            self.files.insert(format!("/v2/org/app/manifests/{reference}"), (kind.into(), bytes.clone()));
        }
        digest
    }

    /// Answers as a registry should.
    pub(crate) fn answer(&self, request: &Seen) -> Reply {
        let Some((kind, bytes)) = self.files.get(&request.path) else { return reply(404, &[], "") };
        match request.range {
            Some(from) => {
                let range = format!("bytes {from}-{}/{}", bytes.len() - 1, bytes.len());
                reply(206, &[("content-range", &range)], bytes[usize::try_from(from).unwrap()..].to_vec())
            }
            None => reply(200, &[("content-type", kind)], bytes.clone()),
        }
    }

    pub(crate) fn bytes(&self, digest: &Digest) -> Vec<u8> {
        self.files[&format!("/v2/org/app/blobs/{digest}")].1.clone()
    }
}

pub(crate) fn descriptor(kind: &str, bytes: &[u8]) -> Value {
    json!({"mediaType": kind, "digest": Digest::of(bytes).to_string(), "size": bytes.len()})
}

pub(crate) fn machine() -> &'static str {
    if std::env::consts::ARCH == "aarch64" { "arm64" } else { "amd64" }
}

fn archive(name: &str, size: usize) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(size as u64);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(1000);
    let content: Vec<u8> = (0..size).map(|i| (i * 7 + i / 251) as u8).collect();
    builder.append_data(&mut header, name, &*content).unwrap();
    builder.into_inner().unwrap()
}

pub(crate) fn limits() -> Limits {
    Limits { first_pause: Duration::from_millis(5), attempts: 3, ..Limits::default() }
}

/// Allows everything, and these hosts without TLS.
pub(crate) fn config(plain: &[&Registry], more: &str) -> Config {
    let hosts: Vec<&str> = plain.iter().map(|registry| registry.host.as_str()).collect();
    Config::parse(&format!("allow: ['*']\nplainHttp: {}\n{more}", json!(hosts))).unwrap()
}

pub(crate) fn puller(store: &Path, registry: &Registry) -> Puller {
    Puller::open(store, config(&[registry], ""), limits()).unwrap()
}

pub(crate) async fn pull(puller: &Puller, name: &ImageName) -> Result<Pulled, Error> {
    puller.pull(name, &Keychain::default(), |_: Event| {}).await
}

/// Names of the blobs that count as whole, each checked.
pub(crate) fn blobs(store: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(store.join("blobs/sha256")).unwrap();
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        assert_eq!(Digest::of(&std::fs::read(entry.path()).unwrap()).hex(), name);
        names.push(name);
    }
    names
}
