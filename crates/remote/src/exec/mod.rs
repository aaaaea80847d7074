//! Streams of a process, carried over either protocol.

mod channels;
pub(crate) mod resize;
mod spdy;

use std::io;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio_util::io::StreamReader;
use tokio_util::sync::CancellationToken;

use crate::status::Verdict;
use crate::upgrade::{Protocols, Upgraded};
use crate::{ByteReader, ExecRequest, Exit, Session};

/// Protocols of `exec` and `attach`.
pub(crate) const PROTOCOLS: Protocols = Protocols {
    channels: &[
        "v5.channel.k8s.io",
        "v4.channel.k8s.io",
        "v4.base64.channel.k8s.io",
        "v3.channel.k8s.io",
        "v2.channel.k8s.io",
        "v1.channel.k8s.io",
        "channel.k8s.io",
        "base64.channel.k8s.io",
    ],
    tunnels: &[],
    spdy: &["v4.channel.k8s.io", "v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io"],
};

/// Maximum bytes of one read from a process.
const CHUNK: usize = 32 * 1024;
/// After the process has ended, an output that is silent for this long counts as ended, even if a child of
/// the process still holds it open.
const SILENCE: Duration = Duration::from_secs(2);

/// Last line of the output of a command that ran out of memory, since clients print no more of the outcome than the code.
const OUT_OF_MEMORY: &str = "hutch: the command was killed: its container ran out of memory; resources.limits.memory gives it more\r\n";

/// Carries a session until the process has ended or the client has disconnected.
pub(crate) async fn run(upgraded: Upgraded, wanted: ExecRequest, session: Session, verdict: Verdict) {
    let session = explained(session, wanted.tty);
    match upgraded {
        Upgraded::Channels(socket, name) => channels::run(*socket, name, &wanted, session, verdict).await,
        Upgraded::Spdy(io, version) => spdy::run(io, version, &wanted, session, verdict).await,
        // Not offered, see PROTOCOLS.
        Upgraded::Tunnel(_) => {}
    }
}

/// Has the error output, or that of the terminal, end with the reason if the process ran out of memory.
fn explained(session: Session, tty: bool) -> Session {
    let Session { stdin, mut stdout, mut stderr, resize, exit } = session;
    let exit = exit.shared();
    let output = if tty { &mut stdout } else { &mut stderr };
    if let Some(reader) = output.take() {
        let (exit, line) =
            (exit.clone(), if tty { OUT_OF_MEMORY } else { &OUT_OF_MEMORY.replace("\r\n", "\n") });
        let line = Bytes::copy_from_slice(line.as_bytes());
        let last =
            async move { io::Result::Ok(if exit.await == Exit::OutOfMemory { line } else { Bytes::new() }) };
        *output = Some(Box::pin(reader.chain(StreamReader::new(Box::pin(futures::stream::once(last))))));
    }
    Session { stdin, stdout, stderr, resize, exit: exit.boxed() }
}

/// Copies the outputs until the process has ended and they are empty. `None` if the client reads no more.
async fn follow<W>(exit: BoxFuture<'static, Exit>, outputs: Vec<(ByteReader, W)>) -> Option<Exit>
where
    W: AsyncWrite + Unpin + Send,
{
    let ended = CancellationToken::new();
    let copies = outputs.into_iter().map(|(reader, writer)| copy(reader, writer, &ended));
    let copies = futures::future::try_join_all(copies);
    let exit = async {
        let exit = exit.await;
        ended.cancel();
        Ok(exit)
    };
    let both: std::io::Result<_> = futures::future::try_join(exit, copies).await;
    both.ok().map(|(exit, _)| exit)
}

/// Copies one output to its end; an error means that the client failed.
async fn copy(
    mut reader: ByteReader,
    mut writer: impl AsyncWrite + Unpin,
    ended: &CancellationToken,
) -> std::io::Result<()> {
    let mut buffer = vec![0; CHUNK];
    loop {
        let read = tokio::select! {
            biased;
            read = reader.read(&mut buffer) => read,
            () = silence(ended) => break,
        };
        match read {
            // A failed output counts as ended; the exit status has the reason.
            Ok(0) | Err(_) => break,
            Ok(length) => writer.write_all(&buffer[..length]).await?,
        }
    }
    writer.shutdown().await
}

async fn silence(ended: &CancellationToken) {
    ended.cancelled().await;
    tokio::time::sleep(SILENCE).await;
}
