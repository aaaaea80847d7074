//! `/v1/archive/…`: downloads and uploads a folder as a tar stream.

use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use http_body_util::BodyExt;
use hyper::body::Frame;
use hyper::{Request, Response, StatusCode};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use super::refusal::Refusal;
use super::{Rest, empty};
use crate::answer::{Body, answer, stream};
use crate::archive::{UnpackError, pack, unpack};
use crate::content::Content;
use crate::files::FileError;
use crate::files::work;

/// Maximum number of concurrent archives. Each has a thread, which waits for its client.
const ARCHIVE_LIMIT: usize = 2;
/// Maximum pieces between thread and client.
const WAITING_LIMIT: usize = 4;
const PIECE_SIZE: usize = 64 << 10;
const THREAD_STACK: usize = 256 << 10;

/// Permits for archives.
#[derive(Debug, Clone)]
pub(super) struct Archives(Arc<Semaphore>);

impl Default for Archives {
    fn default() -> Archives {
        Archives(Arc::new(Semaphore::new(ARCHIVE_LIMIT)))
    }
}

impl Archives {
    fn place(&self) -> Result<OwnedSemaphorePermit, Refusal> {
        let message = format!("{ARCHIVE_LIMIT} archives are under way already; try again");
        self.0.clone().try_acquire_owned().map_err(|_| Refusal::unavailable(&message))
    }
}

impl Rest {
    pub(super) async fn pack(&self, path: PathBuf) -> Result<Response<Body>, Refusal> {
        let place = self.archives.place()?;
        let (root, wanted) = (self.root.clone(), path.clone());
        work::on_files(move || root.folder(wanted)).await?;
        let (pieces, waiting) = mpsc::channel(WAITING_LIMIT);
        let root = self.root.clone();
        thread(move || {
            let mut outlet = Outlet { pieces, gathered: Vec::new() };
            let packed = pack(&root, &path, &mut outlet);
            if let Err(error) = packed {
                // The stream ends here without the end marker of a complete one.
                let _ = outlet.pieces.blocking_send(Err(error));
            }
            drop(place);
        })?;
        let frames = futures::stream::unfold(waiting, |mut waiting| async move {
            let piece: io::Result<Bytes> = waiting.recv().await?;
            Some((piece.map(Frame::data), waiting))
        });
        let mut response = answer(StatusCode::OK, "application/x-tar", "");
        *response.body_mut() = stream(frames);
        Ok(response)
    }

    pub(super) async fn unpack(
        &self,
        request: Request<Content>,
        path: PathBuf,
    ) -> Result<Response<Body>, Refusal> {
        let place = self.archives.place()?;
        let (pieces, waiting) = mpsc::channel(WAITING_LIMIT);
        let (told, result) = oneshot::channel();
        let root = self.root.clone();
        thread(move || {
            let mut inlet = Inlet { pieces: waiting, piece: Bytes::new() };
            let unpacked = unpack(&root, &path, &mut inlet);
            drop((inlet, place));
            let _ = told.send(unpacked);
        })?;
        let mut body = request.into_body();
        while let Some(frame) = body.frame().await {
            let piece = match frame {
                Ok(frame) => frame.into_data().map_err(|_| ()).ok().map(Ok),
                Err(error) => Some(Err(io::Error::other(error))),
            };
            // After an error the rest is read and discarded: a client that is cut off while it sends receives
            // no response.
            if let Some(piece) = piece {
                let _ = pieces.send(piece).await;
            }
        }
        drop(pieces);
        match result.await {
            Ok(Ok(())) => Ok(empty(StatusCode::NO_CONTENT)),
            Ok(Err(error)) => Err(refusal(error)),
            Err(_) => Err(Refusal::internal("the archive was not unpacked")),
        }
    }
}

fn refusal(error: UnpackError) -> Refusal {
    let text = error.to_string();
    match error {
        UnpackError::Entry { source: source @ (FileError::Outside | FileError::System { .. }), .. } => {
            source.into()
        }
        UnpackError::Entry { .. } => Refusal::conflict(&text),
        UnpackError::Read(_) | UnpackError::Kind { .. } => Refusal::invalid(&text),
    }
}

fn thread(work: impl FnOnce() + Send + 'static) -> Result<(), Refusal> {
    let started = std::thread::Builder::new().stack_size(THREAD_STACK).spawn(work);
    started.map(drop).map_err(|error| Refusal::unavailable(&format!("no thread for the archive: {error}")))
}

/// Sends written bytes to the client, in pieces.
struct Outlet {
    pieces: mpsc::Sender<io::Result<Bytes>>,
    gathered: Vec<u8>,
}

impl Write for Outlet {
    fn write(&mut self, content: &[u8]) -> io::Result<usize> {
        self.gathered.extend_from_slice(content);
        if self.gathered.len() >= PIECE_SIZE {
            self.flush()?;
        }
        Ok(content.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.gathered.is_empty() {
            return Ok(());
        }
        let piece = std::mem::take(&mut self.gathered).into();
        self.pieces.blocking_send(Ok(piece)).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

/// Reads the bytes that the client sends.
struct Inlet {
    pieces: mpsc::Receiver<io::Result<Bytes>>,
    piece: Bytes,
}

impl Read for Inlet {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            match self.pieces.blocking_recv() {
                None => return Ok(0),
                Some(piece) => self.piece = piece?,
            }
        }
        let count = into.len().min(self.piece.len());
        self.piece.copy_to_slice(&mut into[..count]);
        Ok(count)
    }
}
