//! Servers behind the proxy.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, mpsc};

use futures::{SinkExt, StreamExt};

/// Address of the servers. It is loopback, and no other test uses it.
pub(super) const SERVER: &str = "127.78.0.1";

/// A server of HTTP/1.1 that keeps what it receives.
pub(super) struct Origin {
    pub(super) port: u16,
    requests: Arc<Mutex<Vec<Request>>>,
}

/// A request that arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) head: String,
    pub(super) body: String,
    pub(super) bytes: Vec<u8>,
}

impl Origin {
    pub(super) fn plain() -> Origin {
        Origin::start(Some)
    }

    /// Serves TLS for these names. Returns the file with the authority too, which is made in the folder.
    pub(super) fn tls(folder: &Path, names: &[&str]) -> (Origin, PathBuf) {
        std::fs::create_dir(folder).expect("made");
        let authority = hutch_serve::Authority::open(folder).expect("an authority");
        let file = folder.join("authority.pem");
        std::fs::write(&file, authority.certificate_pem()).expect("written");
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let mut config =
            rustls::ServerConfig::clone(&*authority.server_config(&names).expect("a configuration"));
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let config = Arc::new(config);
        let origin = Origin::start(move |stream| {
            let connection = rustls::ServerConnection::new(config.clone()).ok()?;
            Some(rustls::StreamOwned::new(connection, stream))
        });
        (origin, file)
    }

    fn start<S: Read + Write>(wrap: impl Fn(TcpStream) -> Option<S> + Clone + Send + 'static) -> Origin {
        let listener = TcpListener::bind((SERVER, 0)).expect("bind");
        let port = listener.local_addr().expect("address").port();
        let requests = Arc::<Mutex<Vec<Request>>>::default();
        let kept = requests.clone();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (Ok(client), kept, wrap) = (client, kept.clone(), wrap.clone()) else { return };
                std::thread::spawn(move || {
                    if let Some(stream) = wrap(client) {
                        serve(stream, &kept);
                    }
                });
            }
        });
        Origin { port, requests }
    }

    /// Returns what has arrived since the last call.
    pub(super) fn take(&self) -> Vec<Request> {
        std::mem::take(&mut *self.requests.lock().expect("requests"))
    }

    /// Returns the targets of all requests.
    pub(super) fn paths(&self) -> Vec<String> {
        let requests = self.requests.lock().expect("requests");
        let target = |request: &Request| request.head.split(' ').nth(1).expect("a target").to_owned();
        requests.iter().map(target).collect()
    }
}

fn serve<S: Read + Write>(stream: S, kept: &Mutex<Vec<Request>>) {
    let mut stream = BufReader::new(stream);
    while let Some(request) = read(&mut stream) {
        let answer = match request.head.contains("/redirect") {
            true => {
                "HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/latest\r\nContent-Length: 0\r\n\r\n"
            }
            false => "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
        };
        kept.lock().expect("requests").push(request);
        if stream.get_mut().write_all(answer.as_bytes()).and_then(|()| stream.get_mut().flush()).is_err() {
            return;
        }
    }
}

pub(super) fn read(stream: &mut impl BufRead) -> Option<Request> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let lower = head.to_ascii_lowercase();
    let mut body = Vec::new();
    if lower.contains("transfer-encoding: chunked") {
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).ok()?;
            let length = usize::from_str_radix(line.trim(), 16).ok()?;
            let mut chunk = vec![0; length + 2];
            stream.read_exact(&mut chunk).ok()?;
            body.extend(&chunk[..length]);
            if length == 0 {
                break;
            }
        }
    } else if let Some((_, rest)) = lower.split_once("content-length: ") {
        body = vec![0; rest.split("\r\n").next()?.parse().ok()?];
        stream.read_exact(&mut body).ok()?;
    }
    Some(Request { head, body: String::from_utf8_lossy(&body).into_owned(), bytes: body })
}

/// Starts a WebSocket server that gives each text back in capitals, and returns its port.
pub(super) fn websocket() -> u16 {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind((SERVER, 0)).await.expect("bind");
            sender.send(listener.local_addr().expect("address").port()).expect("sent");
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let Ok(mut socket) = tokio_tungstenite::accept_async(client).await else { return };
                    while let Some(Ok(message)) = socket.next().await {
                        let Ok(text) = message.into_text() else { return };
                        let answer = tokio_tungstenite::tungstenite::Message::text(text.to_uppercase());
                        if socket.send(answer).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
    });
    receiver.recv().expect("a port")
}

/// Starts a proxy that connects everything to this server, and returns its address and the heads that it gets.
pub(crate) fn upstream_proxy(server: &'static str) -> (String, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let address = listener.local_addr().expect("address").to_string();
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (Ok(client), sender) = (client, sender.clone()) else { return };
            std::thread::spawn(move || connect(client, server, &sender));
        }
    });
    (address, receiver)
}

fn connect(mut client: TcpStream, server: &str, heads: &mpsc::Sender<String>) -> Option<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).ok()?;
    let port: u16 = head.split(' ').nth(1)?.rsplit(':').next()?.parse().ok()?;
    heads.send(head).ok()?;
    let mut server = TcpStream::connect((server, port)).ok()?;
    client.write_all(b"HTTP/1.1 200 OK\r\nVia: test\r\n\r\n").ok()?;
    let (mut from, mut to) = (client.try_clone().ok()?, server.try_clone().ok()?);
    std::thread::spawn(move || std::io::copy(&mut from, &mut to));
    std::io::copy(&mut server, &mut client).ok().map(|_| ())
}
