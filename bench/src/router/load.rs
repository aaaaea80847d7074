//! Connections that send one request after the other and record the latency of each response.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::stats::Samples;

/// Bytes of a WebSocket message; masked, as clients send them, with six bytes in front.
const MESSAGE: usize = 64;
/// Maximum bytes of a response.
const ANSWER: usize = 16 << 10;

/// Kind of load.
#[derive(Debug, Clone)]
pub(crate) enum Shape {
    Small { connections: usize },
    Body { connections: usize, bytes: usize },
    WebSocket { connections: usize },
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Shape::Small { connections: 1 } => write!(f, "small request, 1 connection"),
            Shape::Small { connections } => write!(f, "small request, {connections} connections"),
            Shape::Body { connections, bytes } => {
                write!(f, "{} MiB body, {connections} connections", bytes >> 20)
            }
            Shape::WebSocket { connections } => {
                write!(f, "WebSocket echo of {MESSAGE} bytes, {connections} connections")
            }
        }
    }
}

/// Measurements of one router in all rounds.
#[derive(Default)]
pub(crate) struct Outcome {
    pub(crate) times: Samples,
    pub(crate) time: Duration,
    /// CPU time of the router during the load.
    pub(crate) cpu: Duration,
    /// Maximum after a round.
    pub(crate) resident_kib: u64,
}

impl Outcome {
    /// Returns the CPU time of the router for each request, in microseconds.
    pub(crate) fn cpu_micros(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.times.len().max(1) as f64
    }
}

/// Sends requests to a port of loopback for that duration; every response must be successful.
pub(crate) async fn drive(
    port: u16,
    headers: &str,
    shape: &Shape,
    time: Duration,
) -> anyhow::Result<Samples> {
    let (connections, request, answer) = match shape {
        Shape::Small { connections } => {
            (*connections, format!("GET /health HTTP/1.1\r\nhost: r\r\n{headers}\r\n").into_bytes(), None)
        }
        Shape::Body { connections, bytes } => {
            let head =
                format!("POST /upload HTTP/1.1\r\nhost: r\r\n{headers}content-length: {bytes}\r\n\r\n");
            (*connections, [head.as_bytes(), &vec![b'x'; *bytes]].concat(), None)
        }
        Shape::WebSocket { connections } => {
            let frame = message();
            (*connections, frame.clone(), Some(frame.len()))
        }
    };
    let end = Instant::now() + time;
    let mut tasks = Vec::new();
    for _ in 0..connections {
        let (headers, request) = (headers.to_owned(), request.clone());
        tasks.push(tokio::spawn(async move {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
            stream.set_nodelay(true)?;
            if answer.is_some() {
                upgrade(&mut stream, &headers).await?;
            }
            let (mut samples, mut buffer) = (Samples::default(), vec![0; ANSWER]);
            while Instant::now() < end {
                let begun = Instant::now();
                stream.write_all(&request).await?;
                match answer {
                    Some(length) => {
                        stream.read_exact(&mut buffer[..length]).await?;
                    }
                    None => read(&mut stream, &mut buffer).await?,
                }
                samples.add(begun.elapsed());
            }
            Ok::<Samples, anyhow::Error>(samples)
        }));
    }
    let mut all = Samples::default();
    for task in tasks {
        all.extend(task.await?.with_context(|| format!("{shape}"))?);
    }
    Ok(all)
}

/// Returns one message, with a mask of zeros.
fn message() -> Vec<u8> {
    [&[0x82, 0x80 | MESSAGE as u8, 0, 0, 0, 0], &[b'x'; MESSAGE][..]].concat()
}

/// Opens a WebSocket.
pub(crate) async fn open_websocket(port: u16, headers: &str) -> anyhow::Result<TcpStream> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    upgrade(&mut stream, headers).await?;
    Ok(stream)
}

/// Sends one message and reads it back.
pub(crate) async fn echo(stream: &mut TcpStream) -> anyhow::Result<()> {
    let sent = message();
    stream.write_all(&sent).await?;
    let mut received = vec![0; sent.len()];
    stream.read_exact(&mut received).await?;
    if received != sent {
        bail!("something else came back");
    }
    Ok(())
}

async fn upgrade(stream: &mut TcpStream, headers: &str) -> anyhow::Result<()> {
    let request = format!(
        "GET /ws HTTP/1.1\r\nhost: r\r\n{headers}connection: Upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    if !head.starts_with(b"HTTP/1.1 101 ") {
        bail!("no switch of protocols: {}", String::from_utf8_lossy(&head));
    }
    Ok(())
}

/// Reads one response with a `content-length`; it must be a 200.
async fn read(stream: &mut TcpStream, buffer: &mut [u8]) -> anyhow::Result<()> {
    let mut filled = 0;
    let end = loop {
        if let Some(end) = buffer[..filled].windows(4).position(|four| four == b"\r\n\r\n") {
            break end + 4;
        }
        let count = stream.read(&mut buffer[filled..]).await?;
        if count == 0 {
            bail!("the connection ended");
        }
        filled += count;
    };
    let head = String::from_utf8_lossy(&buffer[..end]).to_ascii_lowercase();
    if !head.starts_with("http/1.1 200 ") {
        bail!("{}", String::from_utf8_lossy(&buffer[..filled]));
    }
    let length = head.split("content-length: ").nth(1).and_then(|rest| rest.split("\r\n").next());
    let length: usize =
        length.and_then(|length| length.parse().ok()).context("an answer without a length")?;
    let all = end + length;
    if filled < all {
        stream.read_exact(&mut buffer[filled..all]).await?;
    }
    Ok(())
}
