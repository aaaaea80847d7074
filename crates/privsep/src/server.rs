//! The root process's side: answers the requests of the front.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::FutureExt;
use hutch_kubelet::{
    Activity, ConnectedSocket, Exit, Handover, PipedSession, PodId, Session, StreamError, TerminalSize,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::channel::{self, Channel};
use crate::streams::{incoming, outgoing};
use crate::wire::{Answer, Control, Ended, FromFront, Opened, Request, What};

/// Maximum number of requests in progress and of what they opened: processes, connections, holds. Each has a socket of this
/// process.
const OPEN: usize = 16 << 10;

/// Answers the requests that come over `front`, until the front closes it; what is still open ends with the front's
/// descriptors. A request that makes no sense ends the front's channel, since a front that sends it is not ours any more.
pub async fn serve(front: OwnedFd, node: Arc<dyn Handover>) -> io::Result<()> {
    let channel = Arc::new(Channel::new(front)?);
    let room = Arc::new(Semaphore::new(OPEN));
    let connections = Arc::new(Connections::default());
    while let Some(message) = channel.receive_bare().await? {
        let request = match message.decode()? {
            FromFront::Request(request) => request,
            FromFront::Active(number) => {
                connections.is_active(number, &room);
                continue;
            }
            FromFront::Closed(number) => {
                connections.lock().remove(&number);
                continue;
            }
        };
        let Ok(place) = room.clone().try_acquire_owned() else {
            let busy = StreamError::Unavailable("too many streams into pods are open".into());
            let answer = Answer { number: request.number, result: Err(busy) };
            channel.send(&answer, &[]).await?;
            continue;
        };
        tokio::spawn(answer(channel.clone(), node.clone(), connections.clone(), request, place));
    }
    Ok(())
}

/// Connections of the front into Pods, by the number of the request that opened each.
#[derive(Default)]
struct Connections(Mutex<HashMap<u64, Connection>>);

struct Connection {
    activity: Arc<Activity>,
    /// Its slot among all open streams.
    _place: OwnedSemaphorePermit,
}

impl Connections {
    /// A panic while the lock was held leaves the map consistent, so the lock stays usable.
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Connection>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the Pod of a connection awake, and wakes it first if it is frozen.
    fn is_active(&self, number: u64, room: &Arc<Semaphore>) {
        let activity = self.lock().get(&number).map(|connection| connection.activity.clone());
        // Without a free slot the report is dropped; the next one follows soon.
        if let (Some(activity), Ok(place)) = (activity, room.clone().try_acquire_owned()) {
            tokio::spawn(async move {
                // The connection into a Pod that cannot be thawed ends with the Pod's processes.
                let _ = activity().await;
                drop(place);
            });
        }
    }
}

/// An opened stream: the answer to the front, and the work until its end.
struct Stream {
    opened: Opened,
    descriptors: Vec<OwnedFd>,
    rest: Rest,
}

/// Work that remains after the answer. `OwnedFd` is this end of the control socket.
enum Rest {
    Nothing,
    Session(OwnedFd, Option<mpsc::Sender<TerminalSize>>, futures::future::BoxFuture<'static, Exit>),
    Connection(Activity),
    Hold(OwnedFd, hutch_kubelet::Hold),
    Watch(OwnedFd, Arc<dyn Handover>, PodId),
}

async fn answer(
    channel: Arc<Channel>,
    node: Arc<dyn Handover>,
    connections: Arc<Connections>,
    request: Request,
    place: OwnedSemaphorePermit,
) {
    let Request { number, pod, what } = request;
    let (result, descriptors, rest) = match open(&node, pod, what).await {
        Ok(stream) => (Ok(stream.opened), stream.descriptors, stream.rest),
        Err(error) => (Err(error), Vec::new(), Rest::Nothing),
    };
    let mut place = Some(place);
    let rest = match (rest, place.take()) {
        // Before the answer: the front sends reports by this number as soon as it has the answer.
        (Rest::Connection(activity), Some(place)) => {
            connections.lock().insert(number, Connection { activity: Arc::new(activity), _place: place });
            Rest::Nothing
        }
        (rest, kept) => {
            place = kept;
            rest
        }
    };
    let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
    if let Err(error) = channel.send(&Answer { number, result }, &borrowed).await {
        tracing::debug!(%error, "failed to answer the front");
        connections.lock().remove(&number);
        return;
    }
    drop(borrowed);
    // The front has its own copies. While this one is open, closing the front's end would go unnoticed.
    drop(descriptors);
    if let Err(error) = follow(rest).await {
        tracing::debug!(%error, "a stream into a pod ended early");
    }
    drop(place);
}

/// Opens what is requested.
async fn open(node: &Arc<dyn Handover>, pod: PodId, what: What) -> Result<Stream, StreamError> {
    match what {
        What::Exec(request) if !request.tty => piped(node.exec_pipes(&pod, request).await?).map_err(internal),
        What::Exec(request) => copied(node.exec(&pod, request).await?).map_err(internal),
        What::Attach(request) => copied(node.attach(&pod, request).await?).map_err(internal),
        What::Connect(port) => match node.connect_socket(&pod, port).await? {
            ConnectedSocket::Service(name) => {
                Ok(Stream { opened: Opened::Service(name), descriptors: Vec::new(), rest: Rest::Nothing })
            }
            ConnectedSocket::Socket(socket, activity) => {
                let rest = Rest::Connection(activity);
                Ok(Stream { opened: Opened::Connection, descriptors: vec![socket], rest })
            }
        },
        What::Logs(request) => {
            let log = outgoing(node.logs(&pod, request).await?).map_err(internal)?;
            Ok(Stream { opened: Opened::Log, descriptors: vec![log], rest: Rest::Nothing })
        }
        What::Hold => {
            let hold = node.hold(&pod).await?;
            let (ours, theirs) = channel::pair().map_err(internal)?;
            Ok(Stream { opened: Opened::Held, descriptors: vec![theirs], rest: Rest::Hold(ours, hold) })
        }
        What::Ended => {
            let (ours, theirs) = channel::pair().map_err(internal)?;
            let rest = Rest::Watch(ours, node.clone(), pod);
            Ok(Stream { opened: Opened::Watch, descriptors: vec![theirs], rest })
        }
    }
}

fn internal(error: io::Error) -> StreamError {
    tracing::warn!(%error, "failed to open descriptors for a stream");
    StreamError::Internal("streams could not be opened".into())
}

/// A session whose streams are pipes of the process itself.
fn piped(session: PipedSession) -> io::Result<Stream> {
    let PipedSession { stdin, stdout, stderr, exit } = session;
    let (ours, theirs) = channel::pair()?;
    let opened = Opened::Session {
        stdin: stdin.is_some(),
        stdout: stdout.is_some(),
        stderr: stderr.is_some(),
        resize: false,
    };
    let descriptors = [Some(theirs), stdin, stdout, stderr].into_iter().flatten().collect();
    Ok(Stream { opened, descriptors, rest: Rest::Session(ours, None, exit) })
}

/// A session whose streams are copied: those of terminals, and those that several clients are attached to.
fn copied(session: Session) -> io::Result<Stream> {
    let Session { stdin, stdout, stderr, resize, exit } = session;
    let (ours, theirs) = channel::pair()?;
    let opened = Opened::Session {
        stdin: stdin.is_some(),
        stdout: stdout.is_some(),
        stderr: stderr.is_some(),
        resize: resize.is_some(),
    };
    let stdin = stdin.map(incoming).transpose()?;
    let (stdout, stderr) = (stdout.map(outgoing).transpose()?, stderr.map(outgoing).transpose()?);
    let descriptors = [Some(theirs), stdin, stdout, stderr].into_iter().flatten().collect();
    Ok(Stream { opened, descriptors, rest: Rest::Session(ours, resize, exit) })
}

/// Performs the remaining work until the stream ends or the front closes its control socket.
async fn follow(rest: Rest) -> io::Result<()> {
    match rest {
        Rest::Nothing | Rest::Connection(_) => Ok(()),
        Rest::Session(control, resize, mut exit) => {
            let control = Channel::new(control)?;
            loop {
                tokio::select! {
                    exit = &mut exit => return control.send(&Ended(exit), &[]).await,
                    message = control.receive_bare() => match (message?.map(|m| m.decode()).transpose()?, &resize) {
                        (Some(Control::Resize(size)), Some(resize)) => {
                            // A size that finds the queue full is superseded by a newer one.
                            let _ = resize.try_send(size);
                        }
                        (Some(_), _) => {}
                        // Dropping the session ends the process.
                        (None, _) => return Ok(()),
                    },
                }
            }
        }
        Rest::Hold(control, hold) => {
            closed(control).await?;
            drop(hold);
            Ok(())
        }
        Rest::Watch(control, node, pod) => {
            let ended = node.ended(&pod);
            tokio::select! {
                () = ended.fuse() => Ok(()),
                closed = closed(control) => closed,
            }
        }
    }
}

/// Waits until the front has closed its end.
async fn closed(control: OwnedFd) -> io::Result<()> {
    let control = Channel::new(control)?;
    while control.receive_bare().await?.is_some() {}
    Ok(())
}

/// Decodes a request in any form, for tests.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn any_request(bytes: &[u8]) {
    if let Ok(request) = serde_json::from_slice::<FromFront>(bytes) {
        let written = serde_json::to_vec(&request).expect("a request is written");
        assert_eq!(serde_json::from_slice::<FromFront>(&written).expect("and read"), request);
    }
    let _ = serde_json::from_slice::<Control>(bytes);
}
