//! The two tasks of a connection: one reads the peer's frames, one writes the server's.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, BufWriter};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::frame::{self, Control, Fault, HEAD, Head, code};
use super::headers::{Decoder, Encoder};
use super::link::{self, Link, MAX_STREAMS, Outgoing, STREAM_BUFFER};
use super::stream::Stream;

/// Maximum frames that wait for the writing task. With the longest frame of the server that is 1 MiB.
const QUEUE: usize = 32;
/// Maximum bytes of a data frame that are passed on at a time, for a frame of any length.
const PIECE: usize = 16 * 1024;
/// Maximum time that a closed connection waits for the peer to close, so that a TCP reset loses no sent
/// bytes.
const LINGER: Duration = Duration::from_secs(2);
/// Maximum bytes of frames in one write.
const BATCH: usize = 64 * 1024;

/// Server's end of a SPDY/3.1 connection. Dropping it closes the connection.
#[derive(Debug)]
pub(crate) struct Connection {
    incoming: mpsc::Receiver<Stream>,
    outgoing: mpsc::Sender<Outgoing>,
    link: Arc<Link>,
    tasks: JoinSet<()>,
}

impl Connection {
    /// Serves an upgraded connection.
    pub(crate) fn open(io: impl AsyncRead + AsyncWrite + Send + 'static) -> Self {
        let (read, write) = tokio::io::split(io);
        let (outgoing, queue) = mpsc::channel(QUEUE);
        let (streams, incoming) = mpsc::channel(MAX_STREAMS);
        let link = Arc::new(Link::new());
        let mut tasks = JoinSet::new();
        let reader = Reader {
            io: BufReader::new(read),
            decoder: Decoder::new(),
            link: Arc::clone(&link),
            outgoing: outgoing.clone(),
            streams,
        };
        tasks.spawn(reader.run());
        let writer = Writer {
            io: BufWriter::with_capacity(BATCH, write),
            encoder: Encoder::new(),
            link: Arc::clone(&link),
        };
        tasks.spawn(writer.run(queue));
        Self { incoming, outgoing, link, tasks }
    }

    /// Returns the peer's next stream; `None` after the end of the connection.
    pub(crate) async fn accept(&mut self) -> Option<Stream> {
        self.incoming.recv().await
    }

    /// Canceled when the peer can send no more.
    pub(crate) fn gone(&self) -> CancellationToken {
        self.link.gone.clone()
    }

    /// Ends the connection after all queued frames were sent.
    pub(crate) async fn close(mut self) {
        if self.outgoing.send(Outgoing::Close { code: code::GOAWAY_OK }).await.is_err() {
            return;
        }
        let both = async { while self.tasks.join_next().await.is_some() {} };
        // After the limit, dropping the connection discards the rest.
        let _ = tokio::time::timeout(LINGER, both).await;
    }
}

struct Reader<R> {
    io: BufReader<R>,
    decoder: Decoder,
    link: Arc<Link>,
    outgoing: mpsc::Sender<Outgoing>,
    streams: mpsc::Sender<Stream>,
}

/// Reason why reading stops.
#[derive(Debug, thiserror::Error)]
enum Stop {
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    Fault(#[from] Fault),
    #[error("the writing half is over")]
    NoWriter,
}

impl<R: AsyncRead + Unpin> Reader<R> {
    async fn run(mut self) {
        loop {
            match self.frame().await {
                Ok(()) => {}
                Err(Stop::Fault(fault)) => {
                    tracing::debug!(%fault, "SPDY peer broke the protocol");
                    let _ = self.outgoing.send(Outgoing::Close { code: code::GOAWAY_PROTOCOL_ERROR }).await;
                    break;
                }
                Err(stop) => {
                    tracing::trace!(%stop, "SPDY connection ends");
                    break;
                }
            }
        }
        self.link.hang_up();
    }

    async fn frame(&mut self) -> Result<(), Stop> {
        let mut head = [0; HEAD];
        self.io.read_exact(&mut head).await?;
        match Head::parse(head)? {
            Head::Data { id, fin, length } => self.data(id, fin, length).await,
            Head::Control { kind, flags, length } => {
                let mut payload = BytesMut::zeroed(length);
                self.io.read_exact(&mut payload).await?;
                self.control(Control::parse(kind, flags, &payload.freeze())?).await
            }
        }
    }

    async fn data(&mut self, id: u32, fin: bool, length: usize) -> Result<(), Stop> {
        if id > self.link.last() || id == 0 {
            return Err(Fault::NeverOpened(id).into());
        }
        let mut left = length;
        let mut piece = [0; PIECE];
        while left > 0 {
            let most = left.min(PIECE);
            let read = self.io.read(&mut piece[..most]).await?;
            if read == 0 {
                return Err(Stop::Io(std::io::ErrorKind::UnexpectedEof.into()));
            }
            self.link.deliver(id, &piece[..read]).await?;
            left -= read;
        }
        if fin {
            self.link.finish(id);
        }
        Ok(())
    }

    async fn control(&mut self, control: Control) -> Result<(), Stop> {
        match control {
            Control::SynStream { id, fin, block } => {
                // The block passes the decompressor even if the stream is refused: the next block needs its
                // state.
                let fields = self.decoder.decode(&block)?;
                if !self.link.open(id, fin)? {
                    return self.send(Outgoing::Reset { id, code: code::REFUSED_STREAM }).await;
                }
                let stream = Stream::new(id, fields, &self.link, self.outgoing.clone());
                // A full queue or a closing connection drops the stream, which refuses it.
                let _ = self.streams.try_send(stream);
            }
            Control::MoreHeaders { id, fin, block } => {
                self.decoder.decode(&block)?;
                if fin {
                    self.link.finish(id);
                }
            }
            Control::RstStream { id } => self.link.reset(id),
            Control::Settings { initial_window: Some(window) } => self.link.resize(window)?,
            // Pings of the server would be even, and it sends none.
            Control::Ping { id } if !id.is_multiple_of(2) => return self.send(Outgoing::Pong(id)).await,
            Control::WindowUpdate { id, delta } => {
                if !self.link.widen(id, delta)? {
                    self.link.forget(id);
                    return self.send(Outgoing::Reset { id, code: code::FLOW_CONTROL_ERROR }).await;
                }
            }
            Control::Settings { .. } | Control::Ping { .. } | Control::GoAway | Control::Unknown => {}
        }
        Ok(())
    }

    async fn send(&mut self, outgoing: Outgoing) -> Result<(), Stop> {
        self.outgoing.send(outgoing).await.map_err(|_| Stop::NoWriter)
    }
}

struct Writer<W> {
    io: BufWriter<W>,
    encoder: Encoder,
    link: Arc<Link>,
}

impl<W: AsyncWrite + Unpin> Writer<W> {
    async fn run(mut self, mut queue: mpsc::Receiver<Outgoing>) {
        if let Err(error) = self.serve(&mut queue).await {
            tracing::trace!(%error, "SPDY connection cannot be written to");
            // Writers receive an error at once, and the reading task detects the end of the link.
            queue.close();
            self.link.hang_up();
        }
    }

    async fn serve(&mut self, queue: &mut mpsc::Receiver<Outgoing>) -> std::io::Result<()> {
        self.io.write_all(&frame::settings(STREAM_BUFFER as u32)).await?;
        let more = link::CONNECTION_BUFFER as u32 - link::INITIAL_WINDOW as u32;
        self.io.write_all(&frame::window_update(0, more)).await?;
        loop {
            for (id, bytes) in self.link.take_credits() {
                self.io.write_all(&frame::window_update(id, bytes)).await?;
            }
            // A reset must not overtake the frames queued before it; that is at most one full queue.
            let resets = self.link.take_resets();
            for _ in 0..QUEUE {
                let Ok(next) = queue.try_recv() else { break };
                if self.write(next).await? {
                    return Ok(());
                }
            }
            for id in resets {
                self.io.write_all(&frame::rst_stream(id, link::GIVEN_UP)).await?;
            }
            if !queue.is_empty() {
                continue;
            }
            self.io.flush().await?;
            let next = tokio::select! {
                next = queue.recv() => next,
                () = self.link.nudge.notified() => continue,
            };
            let Some(next) = next else { return Ok(()) };
            if self.write(next).await? {
                return Ok(());
            }
        }
    }

    /// Writes a frame; returns true if it was the last one.
    async fn write(&mut self, next: Outgoing) -> std::io::Result<bool> {
        match next {
            Outgoing::Reply(id) => {
                let block = self.encoder.encode(&[]);
                self.io.write_all(&frame::syn_reply(id, &block)).await?;
            }
            Outgoing::Data { id, fin, bytes } => self.data(id, fin, bytes).await?,
            Outgoing::Reset { id, code } => self.io.write_all(&frame::rst_stream(id, code)).await?,
            Outgoing::Pong(id) => self.io.write_all(&frame::ping(id)).await?,
            Outgoing::Close { code } => {
                self.io.write_all(&frame::goaway(self.link.last(), code)).await?;
                self.io.shutdown().await?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn data(&mut self, id: u32, fin: bool, bytes: Bytes) -> std::io::Result<()> {
        self.io.write_all(&frame::data_head(id, fin, bytes.len())).await?;
        self.io.write_all(&bytes).await
    }
}
