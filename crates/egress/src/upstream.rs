//! Requests to servers: connections are kept for the next request of the same sandbox.

mod idle;

use std::collections::HashMap;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::uri::PathAndQuery;
use http::{Request, Response, Uri, Version, header};
use hutch_policy::{Destination, Host, Session};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::ClientConfig;
use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tower::Service;

use crate::body::Body;
use crate::descriptors::{Descriptors, Places};
use crate::dial::own;
use crate::heads::HEAD_BYTES;
use crate::origin::Origin;
use crate::refusal::Reason;
use crate::relay::keep_alive;
use crate::way::{Unreachable, Way};
use idle::{Idle, Open};

/// Maximum connections of a sandbox, idle ones included.
const CONNECTIONS: usize = 192;
/// Maximum time of a TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Window of a stream of HTTP/2, and of all streams of a connection.
const STREAM_WINDOW: u32 = 64 << 10;
const CONNECTION_WINDOW: u32 = 256 << 10;
/// Bytes of a stream that wait for a server that does not read them.
const SEND: usize = 16 << 10;

/// Connection to a server that is being made.
pub(crate) type Dialing = Pin<Box<dyn Future<Output = Result<TcpStream, Unreachable>> + Send>>;
/// Connects to a destination, by the rules that hold then and the counters by which the request was judged.
pub(crate) type Dial = Arc<dyn Fn(Destination, Option<Session>) -> Dialing + Send + Sync>;

/// Says whether a connection to this server may be used for a destination, by the counters by which the request was judged.
pub(crate) type Stays = Arc<dyn Fn(&Destination, Server, Session) -> bool + Send + Sync>;

/// Server to which a connection is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Server {
    address: IpAddr,
    /// It is this machine.
    is_own: bool,
}

impl Server {
    /// Returns the address, twice if it is one of this machine.
    pub(crate) fn judged(&self) -> (IpAddr, &[IpAddr]) {
        (self.address, if self.is_own { std::slice::from_ref(&self.address) } else { &[] })
    }
}

/// Sessions of TLS that are kept: eight for each of 16 servers.
const SESSIONS: usize = 128;
/// Maximum interim answers to a request, such as `103 Early Hints`.
const INTERIM: usize = 16;

tokio::task_local! {
    /// Counters by which the request was judged that is being sent.
    static JUDGED: Session;
}

/// Clients of one sandbox.
pub(crate) struct Upstream {
    connector: Connector,
    stays: Stays,
    /// Connections of HTTP/1.1, each of which can become a WebSocket.
    idle: Idle,
    /// Sends by HTTP/2 where the server has it.
    two: Mutex<Client<Connector, Body>>,
}

impl Upstream {
    pub(crate) fn new(dial: Dial, stays: Stays, way: &Arc<Way>, descriptors: &Descriptors) -> Upstream {
        let connections = Arc::new(Semaphore::new(CONNECTIONS));
        let (way, descriptors) = (way.clone(), descriptors.clone());
        let (dialed, resumption) = (Dialed::default(), Resumption::in_memory_sessions(SESSIONS));
        let connector = Connector { dial, way, connections, descriptors, dialed, resumption };
        let idle = Idle::new(&connector.connections);
        Upstream { two: Mutex::new(client(&connector)), idle, connector, stays }
    }

    /// Closes idle connections.
    pub(crate) fn forget(&self) {
        self.idle.forget();
        *self.two.lock().unwrap_or_else(PoisonError::into_inner) = client(&self.connector);
    }

    /// Sends a request whose URI names its origin, and which was judged by these counters.
    ///
    /// # Errors
    /// The reason, for the client.
    pub(crate) async fn send(
        &self,
        mut request: Request<Body>,
        origin: &Arc<Origin>,
        http2: bool,
        judged: Session,
    ) -> Result<Response<Incoming>, Reason> {
        if self.idle.is_full() {
            // Idle ones make room.
            self.forget();
        }
        let too_many = limit_interim(&mut request);
        let sent = async {
            if !http2 {
                return self.send_by_one(request, origin, judged).await;
            }
            let client = self.client(&origin.destination, judged);
            let sent = Box::pin(JUDGED.scope(judged, client.request(request)));
            sent.await.map_err(|error| failure(&error))
        };
        tokio::select! {
            response = sent => response,
            () = too_many.notified() => Err(interim()),
        }
    }

    /// Returns the client for HTTP/2: a new one if the present one has a connection to a server that is closed now.
    fn client(&self, destination: &Destination, judged: Session) -> Client<Connector, Body> {
        let servers = self.connector.dialed.servers(destination);
        let mut two = self.two.lock().unwrap_or_else(PoisonError::into_inner);
        if !servers.into_iter().all(|server| (self.stays)(destination, server, judged)) {
            *two = client(&self.connector);
        }
        two.clone()
    }

    async fn send_by_one(
        &self,
        mut request: Request<Body>,
        origin: &Arc<Origin>,
        judged: Session,
    ) -> Result<Response<Incoming>, Reason> {
        let generation = self.idle.generation();
        let target = request.uri().path_and_query().cloned();
        *request.uri_mut() = Uri::from(target.unwrap_or_else(|| PathAndQuery::from_static("/")));
        request.headers_mut().insert(header::HOST, origin.header());
        loop {
            let kept = self.idle.take(origin);
            let is_new = kept.is_none();
            let mut open = match kept {
                Some(open) if !(self.stays)(&origin.destination, open.server, judged) => continue,
                Some(open) => open,
                None => Box::pin(self.open(origin, judged)).await?,
            };
            match open.sender.try_send_request(request).await {
                Ok(mut response) => {
                    response.extensions_mut().insert(open.server);
                    // hyper sends a server of HTTP/1.0 no body without a length.
                    if response.version() == Version::HTTP_11 {
                        self.idle.keep(origin, open, generation);
                    }
                    return Ok(response);
                }
                Err(mut error) => match error.take_message() {
                    // The server has closed the connection meanwhile, and nothing of the request was sent.
                    Some(unsent) if !is_new => request = unsent,
                    _ => return Err(failure(&error.into_error())),
                },
            }
        }
    }

    /// Makes a connection of HTTP/1.1.
    async fn open(&self, origin: &Origin, judged: Session) -> Result<Open, Reason> {
        let stream = self.connector.connect(&origin.destination, origin.tls, false, Some(judged)).await?;
        let server = stream.server;
        let mut connecting = hyper::client::conn::http1::Builder::new();
        let made = connecting.max_buf_size(HEAD_BYTES).handshake(stream).await;
        let (sender, connection) = made.map_err(|error| failure(&error))?;
        // Its failure is that of the request or of the answer.
        tokio::spawn(connection.with_upgrades());
        Ok(Open { sender, server })
    }
}

/// Returns the reason for an answer with too many interim ones.
pub(crate) fn interim() -> Reason {
    Reason::Unreachable(format!("more than {INTERIM} interim answers"))
}

/// Counts the interim answers to a request. Returns what is notified when there are too many: they would not end.
pub(crate) fn limit_interim(request: &mut Request<Body>) -> Arc<Notify> {
    let (too_many, count) = (Arc::new(Notify::new()), AtomicUsize::new(0));
    let notify = too_many.clone();
    hyper::ext::on_informational(request, move |_| {
        if count.fetch_add(1, Ordering::Relaxed) >= INTERIM {
            notify.notify_one();
        }
    });
    too_many
}

fn client(connector: &Connector) -> Client<Connector, Body> {
    Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .timer(TokioTimer::new())
        .pool_idle_timeout(idle::TIME)
        .pool_max_idle_per_host(idle::CONNECTIONS)
        .http1_max_buf_size(HEAD_BYTES)
        .http2_max_header_list_size(HEAD_BYTES as u32)
        .set_host(true)
        .http2_initial_stream_window_size(STREAM_WINDOW)
        .http2_initial_connection_window_size(CONNECTION_WINDOW)
        .http2_max_send_buf_size(SEND)
        .build(connector.clone())
}

/// Returns the reason why a request has failed. The innermost error says most.
fn failure(error: &(dyn std::error::Error + 'static)) -> Reason {
    let mut innermost = error;
    loop {
        if let Some(unreachable) = innermost.downcast_ref::<Unreachable>() {
            return unreachable.into();
        }
        match innermost.source() {
            Some(source) => innermost = source,
            None => {
                return Reason::Unreachable(
                    innermost.downcast_ref().map_or_else(|| innermost.to_string(), without_text),
                );
            }
        }
    }
}

/// Returns what an error of HTTP/2 says, without the text of the server: it may repeat the value of a credential.
fn without_text(error: &h2::Error) -> String {
    match (error.reason(), error.get_io()) {
        (Some(reason), _) => format!("HTTP/2: {reason}"),
        (None, Some(error)) => error.to_string(),
        (None, None) => "HTTP/2 failed".to_owned(),
    }
}

/// Connects to destinations, by the rules that hold then.
#[derive(Clone)]
struct Connector {
    dial: Dial,
    way: Arc<Way>,
    connections: Arc<Semaphore>,
    descriptors: Descriptors,
    dialed: Dialed,
    /// Sessions of TLS: a server that knows one again must not learn that two sandboxes have the same proxy.
    resumption: Resumption,
}

/// Servers to which connections of HTTP/2 may be open, by destination, and the number of connections.
#[derive(Clone, Default)]
struct Dialed(Arc<Mutex<HashMap<Destination, HashMap<Server, usize>>>>);

impl Dialed {
    fn lock(&self) -> MutexGuard<'_, HashMap<Destination, HashMap<Server, usize>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn servers(&self, destination: &Destination) -> Vec<Server> {
        self.lock().get(destination).into_iter().flat_map(HashMap::keys).copied().collect()
    }

    /// Adds a connection, as long as what is returned lives.
    fn add(&self, destination: &Destination, server: Server) -> Counted {
        *self.lock().entry(destination.clone()).or_default().entry(server).or_default() += 1;
        Counted { dialed: self.clone(), destination: destination.clone(), server }
    }
}

/// One of the connections that are open.
struct Counted {
    dialed: Dialed,
    destination: Destination,
    server: Server,
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut dialed = self.dialed.lock();
        let Some(servers) = dialed.get_mut(&self.destination) else { return };
        if let Some(count) = servers.get_mut(&self.server) {
            *count -= 1;
            if *count == 0 {
                servers.remove(&self.server);
            }
        }
        if servers.is_empty() {
            dialed.remove(&self.destination);
        }
    }
}

impl Service<Uri> for Connector {
    type Response = Stream;
    type Error = Unreachable;
    type Future = Pin<Box<dyn Future<Output = Result<Stream, Unreachable>> + Send>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Unreachable>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let this = self.clone();
        Box::pin(async move {
            let named = uri.authority().and_then(|authority| authority.as_str().parse().ok());
            let destination = named.ok_or_else(|| Unreachable::Tls("it has no name".to_owned()))?;
            // A connection that no request waits for any more has none.
            let judged = JUDGED.try_get().ok();
            this.connect(&destination, uri.scheme_str() == Some("https"), true, judged).await
        })
    }
}

impl Connector {
    async fn connect(
        &self,
        destination: &Destination,
        tls: bool,
        http2: bool,
        judged: Option<Session>,
    ) -> Result<Stream, Unreachable> {
        let place = timeout(HANDSHAKE, self.connections.clone().acquire_owned()).await;
        let place = place.ok().and_then(Result::ok).ok_or(Unreachable::TooMany)?;
        let descriptor = self.descriptors.take(1)?;
        let stream = (self.dial)(destination.clone(), judged).await?;
        let address = stream.peer_addr().map_err(Unreachable::Connect)?;
        let server = Server { address: address.ip(), is_own: !own(address).is_empty() };
        let counted = http2.then(|| self.dialed.add(destination, server));
        let place = (place, descriptor, counted);
        let _ = stream.set_nodelay(true);
        keep_alive(&stream);
        if !tls {
            return Ok(Stream { io: Io::Plain(TokioIo::new(stream)), server, _place: place });
        }
        let mut config = ClientConfig::clone(&*self.way.tls()?);
        config.resumption = self.resumption.clone();
        config.alpn_protocols = match http2 {
            true => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
            false => vec![b"http/1.1".to_vec()],
        };
        let name = match &destination.host {
            Host::Name(name) => ServerName::try_from(name.as_str().to_owned()),
            Host::Address(address) => Ok(ServerName::from(*address)),
        };
        let name = name.map_err(|error| Unreachable::Tls(error.to_string()))?;
        let connected = TlsConnector::from(Arc::new(config)).connect(name, stream);
        match timeout(HANDSHAKE, connected).await {
            Ok(Ok(mut stream)) => {
                stream.get_mut().1.set_buffer_limit(Some(HEAD_BYTES));
                Ok(Stream { io: Io::Tls(Box::new(TokioIo::new(stream))), server, _place: place })
            }
            Ok(Err(error)) => Err(Unreachable::Tls(error.to_string())),
            Err(_) => Err(Unreachable::Tls("the server does not answer".to_owned())),
        }
    }
}

/// Connection to a server.
struct Stream {
    io: Io,
    server: Server,
    /// Among the connections of the sandbox, among the descriptors of the process, and among those of HTTP/2.
    _place: (OwnedSemaphorePermit, Places, Option<Counted>),
}

enum Io {
    Plain(TokioIo<TcpStream>),
    Tls(Box<TokioIo<TlsStream<TcpStream>>>),
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        let connected = Connected::new().extra(self.server);
        match &self.io {
            Io::Tls(stream) if stream.inner().get_ref().1.alpn_protocol() == Some(b"h2") => {
                connected.negotiated_h2()
            }
            _ => connected,
        }
    }
}

impl hyper::rt::Read for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
        buffer: hyper::rt::ReadBufCursor<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        match &mut self.get_mut().io {
            Io::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Io::Tls(stream) => Pin::new(&mut **stream).poll_read(context, buffer),
        }
    }
}

impl hyper::rt::Write for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
        buffer: &[u8],
    ) -> std::task::Poll<std::io::Result<usize>> {
        match &mut self.get_mut().io {
            Io::Plain(stream) => Pin::new(stream).poll_write(context, buffer),
            Io::Tls(stream) => Pin::new(&mut **stream).poll_write(context, buffer),
        }
    }

    fn poll_flush(
        self: Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        match &mut self.get_mut().io {
            Io::Plain(stream) => Pin::new(stream).poll_flush(context),
            Io::Tls(stream) => Pin::new(&mut **stream).poll_flush(context),
        }
    }

    fn poll_shutdown(
        self: Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        match &mut self.get_mut().io {
            Io::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Io::Tls(stream) => Pin::new(&mut **stream).poll_shutdown(context),
        }
    }
}

#[cfg(test)]
mod tests;
