//! The front's side: a [`Kubelet`] whose Pods run in the root process.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::BoxFuture;
use hutch_kubelet::{
    ByteReader, Duplex, ExecRequest, Exit, Hold, Kubelet, LogRequest, PodId, Session, StreamError,
    TerminalSize,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};

use crate::channel::{Channel, Message};
use crate::streams::{reader, writer};
use crate::wire::{Answer, Control, Ended, FromFront, Opened, Request, What};

/// Minimum time between two reports that bytes move through a connection. A Pod sleeps after a second at the earliest.
const REPORT_INTERVAL: Duration = Duration::from_millis(250);
/// Time for which the hold of a Pod serves further requests. It is less than a Pod's shortest time until it sleeps, and
/// a round trip to the root process would cost more than a short request.
const HOLD_SHARED: Duration = Duration::from_millis(250);
/// Maximum queued terminal sizes; only the last one matters.
const SIZES: usize = 4;

/// A service of the front that serves Pods without a process.
pub trait Service: Send + Sync + 'static {
    /// Connects to what would be a port of the container of this Pod.
    fn connect(&self, pod: &PodId, port: u16) -> BoxFuture<'_, Result<Box<dyn Duplex>, StreamError>>;
}

/// The node of the root process. Dropping it closes the channel.
pub struct RemoteKubelet {
    channel: Arc<Channel>,
    pending: Arc<Mutex<Pending>>,
    last_number: AtomicU64,
    services: BTreeMap<String, Arc<dyn Service>>,
    holds: Arc<Mutex<Holds>>,
    receiver: tokio::task::AbortHandle,
}

/// Current holds by UID of the Pod. Each is removed [`HOLD_SHARED`] after it was obtained.
type Holds = HashMap<String, Arc<OwnedFd>>;

impl Drop for RemoteKubelet {
    fn drop(&mut self) {
        self.receiver.abort();
    }
}

#[derive(Default)]
struct Pending {
    answers: HashMap<u64, oneshot::Sender<Opening>>,
    /// `true` when the root process has closed its end.
    over: bool,
}

/// An answer and its file descriptors.
struct Opening {
    /// Present if a connection was opened. Dropped without one, it reports its end.
    report: Option<Report>,
    result: Result<Opened, StreamError>,
    descriptors: std::vec::IntoIter<OwnedFd>,
}

fn gone() -> StreamError {
    StreamError::Unavailable("the node has stopped".into())
}

fn internal(error: impl std::fmt::Display) -> StreamError {
    tracing::warn!(%error, "a stream of the node is unusable");
    StreamError::Internal("streams could not be opened".into())
}

impl Opening {
    fn next(&mut self) -> Result<OwnedFd, StreamError> {
        self.descriptors.next().ok_or_else(|| internal("a descriptor is missing"))
    }

    fn control(&mut self) -> Result<Channel, StreamError> {
        Channel::new(self.next()?).map_err(internal)
    }
}

impl RemoteKubelet {
    /// Sends requests over `root`. `services` are those of this process, by the names that the node has for them. Needs a
    /// tokio runtime.
    ///
    /// # Errors
    /// When the file descriptor cannot be registered with the runtime.
    pub fn new(
        root: OwnedFd,
        services: impl IntoIterator<Item = (String, Arc<dyn Service>)>,
    ) -> io::Result<RemoteKubelet> {
        let channel = Arc::new(Channel::new(root)?);
        let pending = Arc::<Mutex<Pending>>::default();
        let receiver = tokio::spawn(receive(channel.clone(), pending.clone())).abort_handle();
        let services = services.into_iter().collect();
        let (last_number, holds) = (AtomicU64::new(0), Arc::default());
        Ok(RemoteKubelet { channel, pending, last_number, services, holds, receiver })
    }

    async fn request(&self, pod: &PodId, what: What) -> Result<Opening, StreamError> {
        let number = self.last_number.fetch_add(1, Ordering::Relaxed) + 1;
        let (sender, receiver) = oneshot::channel();
        {
            let mut pending = lock(&self.pending);
            if pending.over {
                return Err(gone());
            }
            pending.answers.insert(number, sender);
        }
        // A caller that is dropped leaves no entry.
        let _entry = Entry { pending: &self.pending, number };
        let request = FromFront::Request(Request { number, pod: pod.clone(), what });
        let sent = self.channel.send(&request, &[]).await;
        if let Err(error) = sent {
            return Err(match error.kind() {
                io::ErrorKind::InvalidInput => StreamError::BadRequest(error.to_string()),
                _ => gone(),
            });
        }
        receiver.await.map_err(|_| gone())
    }

    async fn session(&self, pod: &PodId, what: What) -> Result<Session, StreamError> {
        let mut opening = self.request(pod, what).await?;
        let Opened::Session { stdin, stdout, stderr, resize } = opening.result.clone()? else {
            return Err(internal("another answer than a session"));
        };
        let control = Arc::new(opening.control()?);
        let stdin = if stdin { Some(writer(opening.next()?).map_err(internal)?) } else { None };
        let stdout = if stdout { Some(reader(opening.next()?).map_err(internal)?) } else { None };
        let stderr = if stderr { Some(reader(opening.next()?).map_err(internal)?) } else { None };
        let resize = resize.then(|| sizes(&control));
        Ok(Session { stdin, stdout, stderr, resize, exit: exit(control).boxed() })
    }
}

/// An entry for an answer; removed when the caller is dropped.
struct Entry<'a> {
    pending: &'a Mutex<Pending>,
    number: u64,
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        lock(self.pending).answers.remove(&self.number);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Shares a hold with the requests of the next [`HOLD_SHARED`].
fn share(holds: &Arc<Mutex<Holds>>, pod: &PodId, hold: &Arc<OwnedFd>) {
    lock(holds).insert(pod.uid.clone(), hold.clone());
    let (holds, uid, hold) = (Arc::downgrade(holds), pod.uid.clone(), Arc::downgrade(hold));
    tokio::spawn(async move {
        tokio::time::sleep(HOLD_SHARED).await;
        let Some(holds) = holds.upgrade() else { return };
        let mut holds = lock(&holds);
        // Two requests at the same time may each have obtained one.
        if holds.get(&uid).is_some_and(|current| std::ptr::eq(Arc::as_ptr(current), hold.as_ptr())) {
            holds.remove(&uid);
        }
    });
}

/// Delivers answers until the root process closes its end.
async fn receive(channel: Arc<Channel>, pending: Arc<Mutex<Pending>>) {
    loop {
        let received = match channel.receive().await {
            Ok(Some(message)) => deliver(message, &pending, &channel),
            Ok(None) => break,
            Err(error) => Err(error),
        };
        if let Err(error) = received {
            tracing::error!(%error, "failed to read an answer of the node");
            break;
        }
    }
    let mut pending = lock(&pending);
    pending.over = true;
    pending.answers.clear();
}

fn deliver(message: Message, pending: &Mutex<Pending>, channel: &Arc<Channel>) -> io::Result<()> {
    let Answer { number, result } = message.decode()?;
    let answer = lock(pending).answers.remove(&number);
    let report =
        matches!(result, Ok(Opened::Connection)).then(|| Report { channel: Arc::downgrade(channel), number });
    if let Some(answer) = answer {
        // A caller that no longer waits closes the file descriptors, which releases their resources.
        let _ = answer.send(Opening { report, result, descriptors: message.descriptors.into_iter() });
    }
    Ok(())
}

/// Resolves with the exit of a process. Dropped before, it closes the control socket, which ends the process.
async fn exit(control: Arc<Channel>) -> Exit {
    let ended = match control.receive_bare().await {
        Ok(Some(message)) => message.decode::<Ended>().map_err(|error| error.to_string()),
        Ok(None) => Err("the node has stopped".to_owned()),
        Err(error) => Err(error.to_string()),
    };
    ended.map_or_else(Exit::Failed, |Ended(exit)| exit)
}

/// Sends terminal sizes as long as the session lives.
fn sizes(control: &Arc<Channel>) -> mpsc::Sender<TerminalSize> {
    let (sender, mut receiver) = mpsc::channel(SIZES);
    let control = Arc::downgrade(control);
    tokio::spawn(async move {
        while let Some(size) = receiver.recv().await {
            let Some(control) = control.upgrade() else { return };
            if control.send(&Control::Resize(size), &[]).await.is_err() {
                return;
            }
        }
    });
    sender
}

impl Kubelet for RemoteKubelet {
    fn exec<'a>(
        &'a self,
        pod: &'a PodId,
        request: ExecRequest,
    ) -> BoxFuture<'a, Result<Session, StreamError>> {
        self.session(pod, What::Exec(request)).boxed()
    }

    fn attach<'a>(
        &'a self,
        pod: &'a PodId,
        request: ExecRequest,
    ) -> BoxFuture<'a, Result<Session, StreamError>> {
        self.session(pod, What::Attach(request)).boxed()
    }

    fn connect<'a>(
        &'a self,
        pod: &'a PodId,
        port: u16,
    ) -> BoxFuture<'a, Result<Box<dyn Duplex>, StreamError>> {
        async move {
            let mut opening = self.request(pod, What::Connect(port)).await?;
            match opening.result.clone()? {
                Opened::Service(name) => {
                    let service = self.services.get(&name).ok_or_else(|| {
                        StreamError::Unavailable(format!("the service {name} does not run here"))
                    })?;
                    service.connect(pod, port).await
                }
                Opened::Connection => {
                    let report = opening.report.take().ok_or_else(|| internal("no connection"))?;
                    let socket = std::net::TcpStream::from(opening.next()?);
                    let stream = TcpStream::from_std(socket).map_err(internal)?;
                    Ok(Box::new(Connection { stream, report, reported: None }) as Box<dyn Duplex>)
                }
                _ => Err(internal("another answer than a connection")),
            }
        }
        .boxed()
    }

    fn ended<'a>(&'a self, pod: &'a PodId) -> BoxFuture<'a, ()> {
        async move {
            let Ok(mut opening) = self.request(pod, What::Ended).await else { return };
            let Ok(control) = opening.control() else { return };
            // No message follows: the socket is closed when the Pod or the node has ended.
            let _ = control.receive_bare().await;
        }
        .boxed()
    }

    fn logs<'a>(
        &'a self,
        pod: &'a PodId,
        request: LogRequest,
    ) -> BoxFuture<'a, Result<ByteReader, StreamError>> {
        async move {
            let mut opening = self.request(pod, What::Logs(request)).await?;
            match opening.result.clone()? {
                Opened::Log => reader(opening.next()?).map_err(internal),
                _ => Err(internal("another answer than a log")),
            }
        }
        .boxed()
    }

    fn hold<'a>(&'a self, pod: &'a PodId) -> BoxFuture<'a, Result<Hold, StreamError>> {
        async move {
            if let Some(hold) = lock(&self.holds).get(&pod.uid) {
                return Ok(Box::new(hold.clone()) as Hold);
            }
            let mut opening = self.request(pod, What::Hold).await?;
            match opening.result.clone()? {
                Opened::Held => {
                    let hold = Arc::new(opening.next()?);
                    share(&self.holds, pod, &hold);
                    Ok(Box::new(hold) as Hold)
                }
                _ => Err(internal("another answer than a hold")),
            }
        }
        .boxed()
    }
}

/// A connection into a Pod, whose use is reported to the root process.
struct Connection {
    stream: TcpStream,
    report: Report,
    reported: Option<Instant>,
}

/// Reports about one connection. Dropped, it reports the end.
struct Report {
    /// A connection does not keep the channel open.
    channel: Weak<Channel>,
    /// Number of the request that opened it.
    number: u64,
}

impl Drop for Report {
    fn drop(&mut self) {
        let Some(channel) = self.channel.upgrade() else { return };
        let closed = FromFront::Closed(self.number);
        if matches!(channel.try_send(&closed), Ok(false)) {
            // This message must arrive: the root process reserves a slot for the connection.
            tokio::spawn(async move { channel.send(&closed, &[]).await });
        }
    }
}

impl Connection {
    /// Reports traffic, rate-limited.
    fn report(&mut self) -> io::Result<()> {
        if self.reported.is_some_and(|at| at.elapsed() < REPORT_INTERVAL) {
            return Ok(());
        }
        // A full buffer means that the report is repeated with the next bytes.
        let Some(channel) = self.report.channel.upgrade() else { return Ok(()) };
        if channel.try_send(&FromFront::Active(self.report.number))? {
            self.reported = Some(Instant::now());
        }
        Ok(())
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.report()?;
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.report()?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.report()?;
        Pin::new(&mut self.stream).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::channel::pair;

    /// A front and the other end of its channel.
    fn front() -> (RemoteKubelet, Channel) {
        let (ours, theirs) = pair().unwrap();
        (RemoteKubelet::new(ours, []).unwrap(), Channel::new(theirs).unwrap())
    }

    async fn next(root: &Channel) -> FromFront {
        root.receive_bare().await.unwrap().expect("a message").decode().unwrap()
    }

    /// Receives a request for a connection.
    async fn requested(root: &Channel) -> u64 {
        let FromFront::Request(Request { number, what: What::Connect(80), .. }) = next(root).await else {
            panic!("no request for a connection");
        };
        number
    }

    /// Answers the request with a socket. Returns the other end.
    async fn open(root: &Channel, number: u64) -> std::net::TcpStream {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        socket.set_nonblocking(true).unwrap();
        root.send(&Answer { number, result: Ok(Opened::Connection) }, &[socket.as_fd()]).await.unwrap();
        listener.accept().unwrap().0
    }

    fn pod() -> PodId {
        PodId { namespace: "n".into(), name: "p".into(), uid: "u".into() }
    }

    #[tokio::test]
    async fn use_and_end_of_a_connection_are_reported() {
        let (front, root) = front();
        let pod = pod();
        let answer = async {
            let number = requested(&root).await;
            (number, open(&root, number).await)
        };
        let (connection, (number, _other)) = tokio::join!(front.connect(&pod, 80), answer);
        let mut connection = connection.unwrap();
        tokio::io::AsyncWriteExt::write_all(&mut connection, b"x").await.unwrap();
        assert_eq!(next(&root).await, FromFront::Active(number));
        drop(connection);
        assert_eq!(next(&root).await, FromFront::Closed(number));
    }

    #[tokio::test]
    async fn end_of_a_connection_that_no_caller_took_is_reported() {
        let (front, root) = front();
        let pod = pod();
        let number = tokio::select! {
            _ = front.connect(&pod, 80) => panic!("nothing was answered"),
            number = requested(&root) => number,
        };
        let _other = open(&root, number).await;
        assert_eq!(next(&root).await, FromFront::Closed(number));
    }

    /// Answers a request for a hold. Returns the other end, which is closed when the hold is released.
    async fn hold(root: &Channel) -> Channel {
        let FromFront::Request(Request { number, what: What::Hold, .. }) = next(root).await else {
            panic!("no request for a hold");
        };
        let (ours, theirs) = pair().unwrap();
        root.send(&Answer { number, result: Ok(Opened::Held) }, &[theirs.as_fd()]).await.unwrap();
        Channel::new(ours).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn requests_right_after_one_another_share_a_hold() {
        let (front, root) = front();
        let pod = pod();
        let (first, other) = tokio::join!(front.hold(&pod), hold(&root));
        let first = first.unwrap();
        // No answer comes to a second request, so this hold is the first one.
        drop(front.hold(&pod).await.unwrap());
        let another = PodId { uid: "v".into(), ..pod.clone() };
        let (of_another, _other_of_another) = tokio::join!(front.hold(&another), hold(&root));
        drop(of_another.unwrap());
        tokio::time::sleep(HOLD_SHARED * 2).await;
        // A hold that is too old for a new request lasts as long as its own request.
        let (second, other_of_second) = tokio::join!(front.hold(&pod), hold(&root));
        drop(second.unwrap());
        drop(first);
        assert!(other.receive_bare().await.unwrap().is_none());
        assert!(other_of_second.receive_bare().await.unwrap().is_none());
    }
}
