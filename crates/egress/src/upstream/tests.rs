use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Poll;

use bytes::Bytes;
use http_body_util::BodyExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use crate::body::full;
use crate::way::Way;

/// Bytes of a long answer: more than buffers hold.
const LONG: usize = 8 << 20;

/// A server, with a thread for each connection.
#[derive(Clone)]
struct Server {
    origin: Arc<Origin>,
    connections: Arc<AtomicUsize>,
    closed: Arc<AtomicUsize>,
    heads: Arc<Mutex<Vec<String>>>,
    /// Ends connections after `/last`.
    ends: Arc<AtomicBool>,
}

impl Server {
    fn start() -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let destination = listener.local_addr().unwrap().to_string().parse().unwrap();
        let origin = Origin::new(destination, false).unwrap();
        let (connections, closed) = (Arc::default(), Arc::default());
        let (heads, ends) = (Arc::default(), Arc::default());
        let server = Server { origin, connections, closed, heads, ends };
        let of = server.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                of.connections.fetch_add(1, Ordering::SeqCst);
                let of = of.clone();
                std::thread::spawn(move || {
                    of.serve(stream);
                    of.closed.fetch_add(1, Ordering::SeqCst);
                });
            }
        });
        server
    }

    /// Answers requests without a body: `/long`, `/old` by HTTP/1.0, `/last`, after which the connection may end, and others.
    fn serve(&self, mut stream: std::net::TcpStream) {
        loop {
            let (mut head, mut byte) = (Vec::new(), [0]);
            while !head.ends_with(b"\r\n\r\n") {
                match stream.read(&mut byte) {
                    Ok(1) => head.push(byte[0]),
                    _ => return,
                }
            }
            let head = String::from_utf8(head).unwrap();
            let length = if head.contains("/long ") { LONG } else { 2 };
            let is_last = head.contains("/last ");
            let begin = match head.contains("/old ") {
                true => "HTTP/1.0 200 OK\r\nConnection: keep-alive",
                false => "HTTP/1.1 200 OK",
            };
            self.heads.lock().unwrap().push(head);
            let answer = format!("{begin}\r\nContent-Length: {length}\r\n\r\n{}", "x".repeat(length));
            if stream.write_all(answer.as_bytes()).is_err() {
                return;
            }
            if is_last {
                while !self.ends.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                return;
            }
        }
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    fn requests(&self) -> usize {
        self.heads.lock().unwrap().len()
    }
}

fn upstream() -> Upstream {
    let dial: Dial = Arc::new(|destination, _| {
        Box::pin(
            async move { TcpStream::connect(destination.to_string()).await.map_err(Unreachable::Connect) },
        )
    });
    let way = Arc::new(Way::default());
    Upstream::new(dial, Arc::new(|_, _, _| true), &way, &way.descriptors.of_sandbox())
}

impl Upstream {
    /// Sends a request, whose answer begins.
    async fn ask(&self, server: &Server, path: &'static str) -> Response<Incoming> {
        let mut request = Request::new(full(bytes::Bytes::new()));
        *request.uri_mut() = server.origin.uri(Some(&PathAndQuery::from_static(path))).unwrap();
        self.send(request, &server.origin, false, Session::default()).await.unwrap()
    }

    async fn get(&self, server: &Server, path: &'static str) -> usize {
        self.ask(server, path).await.into_body().collect().await.unwrap().to_bytes().len()
    }

    /// Waits until so many connections are idle.
    async fn rest(&self, connections: usize) {
        while self.idle.count() != connections {
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn connection_is_for_the_next_request_to_the_same_origin() {
    let (upstream, server, other) = (upstream(), Server::start(), Server::start());
    for path in ["/a", "/b?c", "/"] {
        for (number, server) in [&server, &other].into_iter().enumerate() {
            assert_eq!(upstream.get(server, path).await, 2);
            upstream.rest(if path == "/a" { number + 1 } else { 2 }).await;
        }
    }
    assert_eq!((server.connections(), other.connections()), (1, 1));
    let heads = server.heads.lock().unwrap();
    assert!(heads[1].starts_with("GET /b?c HTTP/1.1\r\n"), "{heads:?}");
    let host = format!("host: {}\r\n", server.origin.destination);
    assert!(heads.iter().all(|head| head.contains(&host)), "{heads:?}");
    // The same host and port with TLS is another origin.
    let secure = Origin::new(server.origin.destination.clone(), true).unwrap();
    assert!(upstream.idle.take(&secure).is_none());
    assert!(upstream.idle.take(&server.origin).is_some());
}

#[tokio::test]
async fn answer_that_is_not_read_keeps_its_connection() {
    let (upstream, server) = (upstream(), Server::start());
    let long = upstream.ask(&server, "/long").await;
    assert_eq!(upstream.get(&server, "/a").await, 2);
    assert_eq!(server.connections(), 2);
    assert_eq!(long.into_body().collect().await.unwrap().to_bytes().len(), LONG);
    // One that is given up is not for another request.
    drop(upstream.ask(&server, "/long").await);
    for _ in 0..4 {
        assert_eq!(upstream.get(&server, "/a").await, 2);
    }
}

#[tokio::test]
async fn request_is_sent_by_another_connection_if_the_server_has_closed_the_idle_one() {
    let (upstream, server) = (upstream(), Server::start());
    assert_eq!(upstream.get(&server, "/last").await, 2);
    upstream.rest(1).await;
    server.ends.store(true, Ordering::SeqCst);
    // The runtime learns of the end and of this time at once, and continues here first.
    let mut time = Box::pin(tokio::time::sleep(Duration::from_millis(1)));
    let waits = std::future::poll_fn(|context| Poll::Ready(time.as_mut().poll(context).is_pending())).await;
    assert!(waits);
    while server.closed.load(Ordering::SeqCst) == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(Duration::from_millis(20));
    time.await;
    assert_eq!(upstream.idle.count(), 1);
    assert_eq!(upstream.get(&server, "/a").await, 2);
    assert_eq!((server.connections(), server.requests()), (2, 2));
}

#[tokio::test]
async fn connection_of_former_rules_is_not_for_another_request() {
    let (upstream, server) = (upstream(), Server::start());
    assert_eq!(upstream.get(&server, "/a").await, 2);
    upstream.rest(1).await;
    let long = upstream.ask(&server, "/long").await;
    upstream.forget();
    assert_eq!(long.into_body().collect().await.unwrap().to_bytes().len(), LONG);
    // What was in use ends too.
    while server.closed.load(Ordering::SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(upstream.get(&server, "/a").await, 2);
    assert_eq!((server.connections(), server.requests()), (2, 3));
}

/// A later request with a body of unknown length would have lost it.
#[tokio::test]
async fn connection_to_a_server_of_http_1_0_is_not_for_another_request() {
    let (upstream, server) = (upstream(), Server::start());
    for _ in 0..2 {
        assert_eq!(upstream.get(&server, "/old").await, 2);
    }
    assert_eq!(server.connections(), 2);
}

#[tokio::test]
async fn connection_is_not_kept_while_others_wait_for_its_place() {
    let (upstream, server) = (upstream(), Server::start());
    let places = &upstream.connector.connections;
    let held = places.clone().acquire_many_owned(CONNECTIONS as u32 - 1).await.unwrap();
    assert_eq!(upstream.get(&server, "/a").await, 2);
    let last = timeout(HANDSHAKE, places.acquire()).await;
    assert!(last.is_ok(), "an idle connection has it");
    drop((held, last));
    assert_eq!(upstream.get(&server, "/a").await, 2);
    upstream.rest(1).await;
}

#[tokio::test]
async fn idle_connections_are_few_and_end() {
    let (upstream, server) = (Arc::new(upstream()), Server::start());
    let mut all = tokio::task::JoinSet::new();
    for _ in 0..2 * idle::CONNECTIONS {
        let (upstream, server) = (upstream.clone(), server.clone());
        all.spawn(async move { upstream.get(&server, "/a").await });
    }
    assert_eq!(all.join_all().await, [2; 2 * idle::CONNECTIONS]);
    let all = server.connections();
    assert!(all > idle::CONNECTIONS, "{all}");
    let closed = || server.closed.load(Ordering::SeqCst);
    while closed() < all - idle::CONNECTIONS {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(closed(), all - idle::CONNECTIONS);
    tokio::time::pause();
    tokio::time::advance(idle::TIME - Duration::from_secs(1)).await;
    assert!(upstream.idle.take(&server.origin).is_some());
    tokio::time::advance(Duration::from_secs(2)).await;
    tokio::time::resume();
    while closed() < all {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(upstream.idle.take(&server.origin).is_none());
}

#[tokio::test]
async fn text_of_a_server_that_ends_http2_is_in_no_reason() {
    const PREFACE: usize = 24;
    let text = b"bad header authorization: Bearer real-value";
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    let mut end = vec![0, 0, u8::try_from(8 + text.len()).unwrap(), 7, 0, 0, 0, 0, 0];
    end.extend([0, 0, 0, 0, 0, 0, 0, 11]);
    end.extend(text);
    let (client, mut server) = tokio::io::duplex(1 << 14);
    tokio::spawn(async move {
        server.write_all(&settings).await.unwrap();
        server.read_exact(&mut [0; PREFACE]).await.unwrap();
        // Up to the headers of a request.
        let mut kind = 0;
        while kind != 1 {
            let mut head = [0; 9];
            server.read_exact(&mut head).await.unwrap();
            kind = head[3];
            let length = usize::from(head[1]) << 8 | usize::from(head[2]);
            server.read_exact(&mut vec![0; length]).await.unwrap();
        }
        server.write_all(&end).await.unwrap();
    });
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake::<_, _, Body>(TokioExecutor::new(), TokioIo::new(client))
            .await
            .unwrap();
    tokio::spawn(connection);
    let request = Request::get("https://localhost/").body(full(Bytes::new())).unwrap();
    let error = sender.send_request(request).await.unwrap_err();
    let Reason::Unreachable(why) = failure(&error) else { panic!("{error:?}") };
    assert!(why.starts_with("HTTP/2: ") && !why.contains("real-value"), "{why}");
}

/// Regression: a server that sent interim answers without an end took the time of all sandboxes.
#[tokio::test]
async fn request_with_too_many_interim_answers_fails() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let destination = listener.local_addr().unwrap().to_string().parse().unwrap();
    let origin = Origin::new(destination, false).unwrap();
    std::thread::spawn(move || {
        for (count, stream) in [INTERIM, usize::MAX].into_iter().zip(listener.incoming()) {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4096]);
            let sent = (0..count).try_for_each(|_| stream.write_all(b"HTTP/1.1 103 Early Hints\r\n\r\n"));
            if sent.is_ok() {
                stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n").unwrap();
            }
        }
    });
    let upstream = upstream();
    let send = async || {
        let mut request = Request::new(full(Bytes::new()));
        *request.uri_mut() = origin.uri(Some(&PathAndQuery::from_static("/"))).unwrap();
        upstream.send(request, &origin, false, Session::default()).await
    };
    assert_eq!(send().await.unwrap().status(), 200);
    let Err(Reason::Unreachable(why)) = send().await else { panic!("an answer") };
    assert_eq!(why, "more than 16 interim answers");
    // Its connection is closed.
    while upstream.connector.connections.available_permits() < CONNECTIONS {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
