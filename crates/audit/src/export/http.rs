//! Connections to receivers: TCP, TLS, and requests of HTTP/1.1 on a connection that stays open.
//! Requests of gRPC are in [`super::grpc`].

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::Failure;
use super::destination::ExportOptions;
use crate::Error;
use crate::text::Text;

/// Maximum time to connect, and for the answer to a batch.
const CONNECT: Duration = Duration::from_secs(10);
pub(super) const ANSWER: Duration = Duration::from_secs(30);
/// Maximum bytes of an answer.
pub(super) const ANSWER_MAX: usize = 64 << 10;
/// Minimum bytes of a part of a header that is a secret.
const SECRET_MIN: usize = 8;
/// Files of the authorities of the machine.
const AUTHORITIES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

/// A connection.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Place of a receiver.
pub(super) struct Place {
    host: String,
    port: u16,
    tls: Option<Arc<ClientConfig>>,
}

impl Place {
    pub(super) fn new(host: &str, port: u16, tls: bool, options: &ExportOptions) -> Result<Place, Error> {
        let tls = tls.then(|| client(options.authorities.as_deref())).transpose()?;
        Ok(Place { host: host.to_owned(), port, tls })
    }

    /// Has TLS agree on a protocol above it.
    pub(super) fn with_protocol(mut self, protocol: &[u8]) -> Place {
        if let Some(tls) = &mut self.tls {
            Arc::make_mut(tls).alpn_protocols = vec![protocol.to_vec()];
        }
        self
    }

    pub(super) async fn connect(&self) -> Result<Box<dyn Stream>, Failure> {
        let place = format!("{}:{}", self.host, self.port);
        let connecting = async {
            let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
            stream.set_nodelay(true)?;
            let Some(tls) = &self.tls else { return Ok(Box::new(stream) as Box<dyn Stream>) };
            let name = ServerName::try_from(self.host.clone()).map_err(std::io::Error::other)?;
            let connector = tokio_rustls::TlsConnector::from(tls.clone());
            Ok::<_, std::io::Error>(Box::new(connector.connect(name, stream).await?))
        };
        match timeout(CONNECT, connecting).await {
            Ok(connected) => {
                connected.map_err(|error| Failure::new(format!("cannot connect to {place}: {error}")))
            }
            Err(_) => Err(Failure::new(format!("cannot connect to {place} within {CONNECT:?}"))),
        }
    }
}

/// Returns the configuration of TLS.
fn client(authorities: Option<&[u8]>) -> Result<Arc<ClientConfig>, Error> {
    let mut roots = RootCertStore::empty();
    match authorities {
        Some(pem) => roots.add_parsable_certificates(CertificateDer::pem_slice_iter(pem).flatten()),
        None => {
            let pem = AUTHORITIES.iter().find_map(|path| std::fs::read(path).ok()).unwrap_or_default();
            roots.add_parsable_certificates(CertificateDer::pem_slice_iter(&pem).flatten())
        }
    };
    if roots.is_empty() {
        return Err(Error::Destination(
            "no certificate of an authority; name a file that has one".to_owned(),
        ));
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.map_err(|error| Error::Destination(error.to_string()))?;
    Ok(Arc::new(config.with_root_certificates(roots).with_no_client_auth()))
}

/// Client of one URL.
pub(super) struct Client {
    place: Place,
    host: HeaderValue,
    path: String,
    headers: HeaderMap,
    connection: Option<SendRequest<Full<Bytes>>>,
}

impl Client {
    pub(super) fn new(uri: &Uri, options: &ExportOptions) -> Result<Client, Error> {
        let wrong = |why: &str| Error::Destination(format!("{uri}: {why}"));
        let tls = uri.scheme_str() == Some("https");
        let host = uri.host().ok_or_else(|| wrong("has no host"))?.trim_matches(['[', ']']);
        let port = uri.port_u16().unwrap_or(if tls { 443 } else { 80 });
        let authority = uri.authority().map(|authority| authority.as_str()).unwrap_or_default();
        Ok(Client {
            place: Place::new(host, port, tls, options)?,
            host: HeaderValue::from_str(authority).map_err(|_| wrong("is not a host"))?,
            path: uri.path_and_query().map_or("/", |path| path.as_str()).to_owned(),
            headers: headers(options.headers.as_deref().unwrap_or_default())?,
            connection: None,
        })
    }

    /// Returns a text of the receiver for a message. See [`shown`].
    pub(super) fn shown(&self, text: &str) -> String {
        shown(text, &self.headers)
    }

    /// Sends a body. Returns the body of a successful answer.
    pub(super) async fn post(
        &mut self,
        content: &'static str,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Bytes, Failure> {
        let mut request = Request::post(&self.path).body(Full::new(body)).map_err(Failure::new)?;
        let all = request.headers_mut();
        all.extend(self.headers.clone());
        all.extend(headers);
        all.insert(header::HOST, self.host.clone());
        all.insert(header::CONTENT_TYPE, HeaderValue::from_static(content));
        all.insert(
            header::USER_AGENT,
            HeaderValue::from_static(concat!("hutch/", env!("CARGO_PKG_VERSION"))),
        );
        let exchanged = timeout(ANSWER, self.exchange(request)).await;
        let exchanged =
            exchanged.unwrap_or_else(|_| Err(Failure::new(format!("no answer within {ANSWER:?}"))));
        if exchanged.is_err() {
            self.connection = None;
        }
        exchanged
    }

    async fn exchange(&mut self, request: Request<Full<Bytes>>) -> Result<Bytes, Failure> {
        let mut sender = match self.connection.take() {
            Some(sender) if !sender.is_closed() => sender,
            _ => {
                let stream = self.place.connect().await?;
                let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(Failure::new)?;
                // It ends with the connection; its error reaches the request too.
                tokio::spawn(connection);
                sender
            }
        };
        sender.ready().await.map_err(Failure::new)?;
        let (head, body) = sender.send_request(request).await.map_err(Failure::new)?.into_parts();
        let body = Limited::new(body, ANSWER_MAX).collect().await.map_err(Failure::new)?.to_bytes();
        self.connection = Some(sender);
        if head.status.is_success() {
            return Ok(body);
        }
        Err(Failure {
            retry_after: retry_after(&head.headers, SystemTime::now()),
            refused: matches!(head.status.as_u16(), 400 | 413 | 422),
            ..Failure::new(format!("the receiver answers {}", head.status))
        })
    }
}

/// Returns a text of a receiver for a message: bounded, and without the secrets of the headers that the receiver knows.
pub(super) fn shown(text: &str, headers: &HeaderMap) -> String {
    let mut shown = text.to_owned();
    for value in headers.values().filter_map(|value| value.to_str().ok()) {
        let parts = value.split_whitespace().filter(|part| part.len() >= SECRET_MIN);
        parts.for_each(|part| shown = shown.replace(part, "***"));
    }
    Text::long(&shown).as_str().to_owned()
}

/// Returns the pause that a receiver requests, in seconds or as a date.
fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let value = headers.get(header::RETRY_AFTER)?.to_str().ok()?;
    match value.trim().parse() {
        Ok(seconds) => Some(Duration::from_secs(seconds)),
        Err(_) => httpdate::parse_http_date(value).ok()?.duration_since(now).ok(),
    }
}

/// Parses headers, one in each line.
pub(super) fn headers(text: &str) -> Result<HeaderMap, Error> {
    let mut headers = HeaderMap::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        // The line may be a secret.
        let wrong = || Error::Destination(format!("headers: line {} is not NAME: VALUE", number + 1));
        let (name, value) = line.split_once(':').ok_or_else(wrong)?;
        let name = HeaderName::from_bytes(name.trim().as_bytes()).map_err(|_| wrong())?;
        let mut value = HeaderValue::from_str(value.trim()).map_err(|_| wrong())?;
        value.set_sensitive(true);
        headers.append(name, value);
    }
    Ok(headers)
}

/// Answers a request with any bytes. What is accepted has a status that says so, and a failure names no secret.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn any_exchange(bytes: &[u8]) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let options =
        ExportOptions { headers: Some(format!("authorization: Bearer {SECRET}")), ..Default::default() };
    let exchange = async {
        let mut client = Client::new(&Uri::from_static("http://a.example/"), &options).expect("a client");
        let (ours, mut theirs) = tokio::io::duplex(4096);
        let (sender, connection) = handshake(TokioIo::new(ours)).await.expect("a connection");
        tokio::spawn(connection);
        client.connection = Some(sender);
        let answering = async move {
            let _ = theirs.read(&mut [0; 4096]).await;
            let _ = theirs.write_all(bytes).await;
        };
        let posting = client.post("text/plain", HeaderMap::new(), Bytes::from_static(b"x"));
        tokio::join!(posting, answering).0
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    match runtime.block_on(exchange) {
        Ok(body) => {
            assert!(body.len() <= ANSWER_MAX && bytes.windows(2).any(|part| part == b" 2"), "{bytes:?}")
        }
        Err(Failure { cause, .. }) => assert!(cause.len() < 300 && !cause.contains(SECRET), "{cause}"),
    }
}

/// Secret of a header in hostile tests.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) const SECRET: &str = "secret-of-the-header";

/// Shows any text of a receiver, and reads it as a pause.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn any_text(bytes: &[u8]) {
    let headers = headers(&format!("authorization: Bearer {SECRET}")).expect("headers");
    let shown = shown(&String::from_utf8_lossy(bytes), &headers);
    let is_bounded = shown.len() <= crate::TEXT_MAX + '…'.len_utf8();
    assert!(is_bounded && !shown.contains(SECRET) && !shown.contains(char::is_control), "{shown:?}");
    if let Ok(value) = HeaderValue::from_bytes(bytes) {
        let _ = retry_after(&HeaderMap::from_iter([(header::RETRY_AFTER, value)]), SystemTime::UNIX_EPOCH);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_700);
        let of = |text: &str| {
            let headers = HeaderMap::from_iter([(header::RETRY_AFTER, HeaderValue::from_str(text).unwrap())]);
            retry_after(&headers, now)
        };
        assert_eq!(of("7"), Some(Duration::from_secs(7)));
        assert_eq!(of("Sun, 06 Nov 1994 08:49:37 GMT"), Some(Duration::from_secs(77)));
        assert_eq!(of("-1"), None);
        assert_eq!(of("soon"), None);
    }

    #[test]
    fn headers_are_read_without_repeating_them_in_an_error() {
        let parsed = headers("Authorization: Bearer x\n\nx-a: b\n").unwrap();
        assert_eq!(parsed.len(), 2);
        assert!(!format!("{parsed:?}").contains("Bearer"));
        let error = headers("a: b\nsecret").unwrap_err().to_string();
        assert!(error.contains("line 2") && !error.contains("secret"), "{error}");
    }
}
