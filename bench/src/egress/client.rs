//! The client: measures requests over one connection, requests over new ones, or bytes that it sends.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, ensure};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::stats::Samples;

/// Argument that runs this program as a client; MODE, HOST:PORT and COUNT follow, then `--tls`, `--via PROXY`, `--ca FILE`.
pub(crate) const ARGUMENT: &str = "egress-client";
/// Requests before the measurement.
const WARM: usize = 50;
/// Bytes of a request with a body.
const BODY: usize = 16_000;

/// A stream in both directions.
trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

/// Options of a client.
struct Options<'a> {
    target: &'a str,
    via: Option<&'a str>,
    tls: Option<Arc<ClientConfig>>,
}

/// Runs the client, and prints one figure: the median in microseconds, or mebibytes per second.
pub(crate) fn run(arguments: &[String]) -> anyhow::Result<()> {
    let [_, mode, target, count, rest @ ..] = arguments else { anyhow::bail!("MODE HOST:PORT COUNT") };
    let count: usize = count.parse().context("COUNT")?;
    let value = |name: &str| {
        let at = rest.iter().position(|word| word == name)?;
        rest.get(at + 1).map(String::as_str)
    };
    let file = value("--ca").map(str::to_owned).or_else(|| std::env::var("SSL_CERT_FILE").ok());
    let tls = match rest.iter().any(|word| word == "--tls") {
        true => Some(trusting(&file.context("--ca")?)?),
        false => None,
    };
    let options = Options { target, via: value("--via"), tls };
    let figure = match mode.as_str() {
        "kept" => kept(&options, count)?,
        "new" => new(&options, count)?,
        "post" => posts(&options, count)?,
        _ => bulk(&options, count)?,
    };
    println!("{figure}");
    Ok(())
}

fn trusting(file: &str) -> anyhow::Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    let certificates = CertificateDer::pem_file_iter(file).with_context(|| file.to_owned())?.flatten();
    roots.add_parsable_certificates(certificates);
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(Arc::new(builder.with_root_certificates(roots).with_no_client_auth()))
}

fn connect(options: &Options<'_>) -> anyhow::Result<Box<dyn Stream>> {
    let mut stream = TcpStream::connect(options.via.unwrap_or(options.target))?;
    stream.set_nodelay(true)?;
    if options.via.is_some() {
        write!(stream, "CONNECT {0} HTTP/1.1\r\nHost: {0}\r\n\r\n", options.target)?;
        let head = head(&mut stream)?;
        ensure!(head.contains(" 200 "), "{head}");
    }
    let Some(tls) = &options.tls else { return Ok(Box::new(stream)) };
    let name = options.target.rsplit_once(':').map_or(options.target, |(name, _)| name).to_owned();
    let connection = ClientConnection::new(tls.clone(), ServerName::try_from(name)?)?;
    Ok(Box::new(StreamOwned::new(connection, stream)))
}

/// Reads up to the end of a head.
fn head(stream: &mut impl Read) -> anyhow::Result<String> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

/// Sends a request without a body, and reads the answer.
fn request(stream: &mut dyn Stream, host: &str) -> anyhow::Result<()> {
    let request = format!("GET /a HTTP/1.1\r\nHost: {host}\r\nUser-Agent: bench\r\nAccept: */*\r\n\r\n");
    exchange(stream, request.as_bytes())
}

/// Returns a request with a body as a client of a model sends it.
fn chat(host: &str) -> Vec<u8> {
    let text =
        "Please read the next part of the report, and list what it says about the harvest. ".repeat(12);
    let message = format!(r#"{{"role": "user", "content": "{text}"}}"#);
    let mut messages = vec![message.as_str(); BODY / message.len()].join(", ");
    messages.push_str(r#", {"role": "user", "content": "end"}"#);
    let body = format!(r#"{{"model": "large", "max_tokens": 512, "messages": [{messages}]}}"#);
    let length = body.len();
    let head =
        format!("POST /a HTTP/1.1\r\nHost: {host}\r\nUser-Agent: bench\r\nContent-Type: application/json");
    format!("{head}\r\nContent-Length: {length}\r\n\r\n{body}").into_bytes()
}

/// Sends a request, and reads the answer: a head, and a body of the announced length or in chunks.
fn exchange(stream: &mut dyn Stream, request: &[u8]) -> anyhow::Result<()> {
    stream.write_all(request)?;
    stream.flush()?;
    let (mut answer, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        let count = stream.read(&mut piece)?;
        ensure!(count > 0, "the connection ended after {}", String::from_utf8_lossy(&answer));
        answer.extend_from_slice(&piece[..count]);
        let Some(end) = answer.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
        let head = String::from_utf8_lossy(&answer[..end]).to_lowercase();
        ensure!(head.starts_with("http/1.1 200"), "{}", String::from_utf8_lossy(&answer));
        if head.contains("transfer-encoding: chunked") {
            // As an answer from which a value could have been removed.
            match answer.ends_with(b"\r\n0\r\n\r\n") {
                true => return Ok(()),
                false => continue,
            }
        }
        let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
        let length: usize = length.context("no length")?.trim().parse()?;
        if answer.len() >= end + 4 + length {
            return Ok(());
        }
    }
}

fn micros(samples: &Samples) -> f64 {
    samples.p50().as_secs_f64() * 1e6
}

fn kept(options: &Options<'_>, count: usize) -> anyhow::Result<f64> {
    let mut stream = connect(options)?;
    repeat(count, || request(&mut *stream, options.target))
}

fn posts(options: &Options<'_>, count: usize) -> anyhow::Result<f64> {
    let (mut stream, request) = (connect(options)?, chat(options.target));
    repeat(count, || exchange(&mut *stream, &request))
}

/// Returns the median of the time that a request takes.
fn repeat(count: usize, mut request: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<f64> {
    let mut samples = Samples::default();
    for number in 0..count + WARM {
        let began = Instant::now();
        request()?;
        if number >= WARM {
            samples.add(began.elapsed());
        }
    }
    Ok(micros(&samples))
}

fn new(options: &Options<'_>, count: usize) -> anyhow::Result<f64> {
    let mut samples = Samples::default();
    for number in 0..count + WARM {
        let began = Instant::now();
        let mut stream = connect(options)?;
        request(&mut *stream, options.target)?;
        if number >= WARM {
            samples.add(began.elapsed());
        }
    }
    Ok(micros(&samples))
}

fn bulk(options: &Options<'_>, mebibytes: usize) -> anyhow::Result<f64> {
    let mut stream = connect(options)?;
    let length = mebibytes << 20;
    let head = format!("POST /a HTTP/1.1\r\nHost: {}\r\nContent-Length: {length}\r\n\r\n", options.target);
    stream.write_all(head.as_bytes())?;
    let piece = vec![b'x'; 256 << 10];
    let began = Instant::now();
    for _ in 0..length / piece.len() {
        stream.write_all(&piece)?;
    }
    stream.flush()?;
    let mut answer = [0; 12];
    stream.read_exact(&mut answer)?;
    ensure!(&answer == b"HTTP/1.1 200", "{}", String::from_utf8_lossy(&answer));
    Ok(mebibytes as f64 / began.elapsed().as_secs_f64())
}
