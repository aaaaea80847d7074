//! Port-forward over SPDY/3.1: each TCP connection is a pair of streams, one for data and one for an error text.

use std::collections::HashMap;
use std::collections::hash_map;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::failure;
use crate::query;
use crate::spdy::{Connection, Stream, StreamReader, StreamWriter};
use crate::{Duplex, Kubelet, PodId};

/// Maximum time until the second stream of a pair.
const PAIR_WITHIN: Duration = Duration::from_secs(30);
/// Maximum time that the client may continue to send after the Pod's side has ended. kubectl closes its own
/// half only after the error stream has ended, so that one is ended at once.
const TAIL: Duration = Duration::from_secs(30);

/// Both directions of a stream.
type Halves = (StreamReader, StreamWriter);

/// One half of a pair, already accepted: clients wait for that before they open the other half.
struct Waiting {
    port: u16,
    halves: Halves,
    is_data: bool,
    since: Instant,
}

/// Forwards until the client has disconnected.
pub(super) async fn run<T>(io: T, kubelet: Arc<dyn Kubelet>, pod: PodId)
where
    T: AsyncRead + AsyncWrite + Send + 'static,
{
    let mut connection = Connection::open(io);
    let gone = connection.gone();
    let mut waiting = HashMap::new();
    // Dropped at the end, with all connections into the Pod. The limit of streams bounds it.
    let mut forwards = JoinSet::new();
    let mut sweep = tokio::time::interval(PAIR_WITHIN);
    loop {
        tokio::select! {
            stream = connection.accept() => match stream {
                Some(stream) => pair(stream, &mut waiting, &mut forwards, &kubelet, &pod).await,
                None => break,
            },
            Some(_) = forwards.join_next() => {}
            // Dropping the single half resets it.
            _ = sweep.tick() => waiting.retain(|_, half: &mut Waiting| half.since.elapsed() < PAIR_WITHIN),
            () = gone.cancelled() => break,
        }
    }
    connection.close().await;
}

/// Pairs the stream with its other half and starts to forward, or stores it. An invalid stream is dropped,
/// which refuses it.
async fn pair(
    stream: Stream,
    waiting: &mut HashMap<String, Waiting>,
    forwards: &mut JoinSet<()>,
    kubelet: &Arc<dyn Kubelet>,
    pod: &PodId,
) {
    let is_data = match stream.header("streamtype") {
        Some("data") => true,
        Some("error") => false,
        _ => return,
    };
    let Some(Ok(port)) = stream.header("port").map(query::port) else { return };
    let request = match stream.header("requestid") {
        Some(id) if !id.is_empty() => id.to_owned(),
        // Old clients number their requests by their streams: the error stream first, the data stream next.
        _ if is_data => stream.id().saturating_sub(2).to_string(),
        _ => stream.id().to_string(),
    };
    let halves = stream.accept().await;
    match waiting.entry(request) {
        hash_map::Entry::Vacant(place) => {
            place.insert(Waiting { port, halves, is_data, since: Instant::now() });
        }
        hash_map::Entry::Occupied(place) if place.get().is_data != is_data && place.get().port == port => {
            let other = place.remove().halves;
            let (data, error) = if is_data { (halves, other) } else { (other, halves) };
            forwards.spawn(forward(data, error, port, Arc::clone(kubelet), pod.clone()));
        }
        // The same half twice, or another port: both streams are refused.
        hash_map::Entry::Occupied(_) => {}
    }
}

/// The error stream carries a text only if connecting fails: kubectl ends after any text, and with it the
/// connections of all its clients. A connection that breaks later resets its data stream.
async fn forward(data: Halves, error: Halves, port: u16, kubelet: Arc<dyn Kubelet>, pod: PodId) {
    let (_unread, mut error) = error;
    match kubelet.connect(&pod, port).await {
        Ok(connection) => join(data, &mut error, connection).await,
        Err(refused) => {
            let _ = error.write_all(failure(&pod, port, &refused).as_bytes()).await;
        }
    }
    let _ = error.shutdown().await;
}

/// Joins both directions with half-close: the end of one closes the other's writing side, not its reading
/// side.
async fn join((mut reader, mut writer): Halves, error: &mut StreamWriter, connection: Box<dyn Duplex>) {
    let (mut from_pod, mut to_pod) = tokio::io::split(connection);
    let upward = async {
        let copied = tokio::io::copy(&mut reader, &mut to_pod).await;
        let _ = to_pod.shutdown().await;
        copied.is_ok()
    };
    let downward = async move {
        // Dropped without a shutdown, the writer resets the stream.
        if tokio::io::copy(&mut from_pod, &mut writer).await.is_ok() {
            let _ = writer.shutdown().await;
        }
    };
    tokio::pin!(upward, downward);
    let clean = tokio::select! {
        () = &mut downward => {
            let _ = error.shutdown().await;
            let _ = tokio::time::timeout(TAIL, upward).await;
            return;
        }
        clean = &mut upward => clean,
    };
    if clean {
        downward.await;
    } else {
        // One side broke off; bytes of the Pod are forwarded for a while if there is a receiver.
        let _ = tokio::time::timeout(TAIL, downward).await;
    }
}
