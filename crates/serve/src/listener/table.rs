//! The connections of one listener, and which of them is closed when there are too many.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// The connections of one listener, `most` at a time.
#[derive(Debug)]
pub(super) struct Table {
    most: usize,
    open: Mutex<HashMap<u64, Connection>>,
    next: AtomicU64,
}

/// Request extension: the connection on which the request came.
#[derive(Debug, Clone)]
pub struct Connection(Arc<State>);

#[derive(Debug)]
struct State {
    trusted: AtomicBool,
    activity: Mutex<Activity>,
    evicted: CancellationToken,
    /// `true` after [`Connection::closed_by`] was called.
    held: AtomicBool,
}

/// Connections that are closed together, for example those of one credential. Connections that have ended are forgotten.
#[derive(Debug, Default)]
pub struct Connections(Mutex<Vec<Weak<State>>>);

impl Connections {
    /// Closes all of them, upgraded ones too.
    pub fn close(&self) {
        for connection in locked(&self.0).drain(..).filter_map(|connection| connection.upgrade()) {
            connection.evicted.cancel();
        }
    }
}

/// Requests of a connection and its idle time.
#[derive(Debug, Clone, Copy)]
struct Activity {
    /// Requests without a complete answer. An upgraded connection has one until it ends.
    requests: usize,
    /// Since when it has had none; the start of the connection before the first one.
    idle_since: Instant,
}

/// A connection's place in the table, which it has until this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    table: Arc<Table>,
    number: u64,
    connection: Connection,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Table {
    pub(super) fn new(most: usize) -> Arc<Table> {
        Arc::new(Table { most, open: Mutex::default(), next: AtomicU64::new(0) })
    }

    /// Gives a new connection a slot. When all are taken, the first connection in the order of [`Connection::rank`] is
    /// closed; `None` when all of them have a trusted peer's requests in progress.
    pub(super) fn admit(self: &Arc<Table>, peer: SocketAddr) -> Option<Place> {
        let mut open = locked(&self.open);
        if open.len() >= self.most {
            let ranked = open.iter().filter_map(|(number, connection)| Some((connection.rank()?, *number)));
            let (_, number) = ranked.min()?;
            if let Some(connection) = open.remove(&number) {
                tracing::debug!(%peer, "too many connections: one was closed for a new one");
                connection.0.evicted.cancel();
            }
        }
        let connection = Connection::new();
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        open.insert(number, connection.clone());
        drop(open);
        Some(Place { table: self.clone(), number, connection })
    }
}

impl Place {
    pub(super) fn connection(&self) -> &Connection {
        &self.connection
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        locked(&self.table.open).remove(&self.number);
    }
}

impl Connection {
    fn new() -> Connection {
        let activity = Activity { requests: 0, idle_since: Instant::now() };
        Connection(Arc::new(State {
            trusted: AtomicBool::new(false),
            activity: Mutex::new(activity),
            evicted: CancellationToken::new(),
            held: AtomicBool::new(false),
        }))
    }

    /// Marks the peer as one that has shown a credential. Its connection is the last to be closed for another one, and
    /// never while it has a request in progress.
    pub fn trust(&self) {
        self.0.trusted.store(true, Ordering::Relaxed);
    }

    /// Closes this connection with those, if it does not belong to others already.
    pub fn closed_by(&self, connections: &Connections) {
        if self.0.held.swap(true, Ordering::Relaxed) {
            return;
        }
        let mut open = locked(&connections.0);
        open.retain(|connection| connection.strong_count() > 0);
        open.push(Arc::downgrade(&self.0));
    }

    pub(super) fn is_closed(&self) -> bool {
        self.0.evicted.is_cancelled()
    }

    /// Resolves as [`Connection::evicted`] does, without borrowing the connection.
    pub(super) fn until_evicted(&self) -> WaitForCancellationFutureOwned {
        self.0.evicted.clone().cancelled_owned()
    }

    /// The order in which connections are closed for others: peers without a credential before others, idle connections
    /// before those with requests, then the one that has been idle for the longest time. `None` is never closed.
    fn rank(&self) -> Option<(bool, bool, Instant)> {
        let trusted = self.0.trusted.load(Ordering::Relaxed);
        let Activity { requests, idle_since } = *locked(&self.0.activity);
        let busy = requests > 0;
        (!(trusted && busy)).then_some((trusted, busy, idle_since))
    }

    /// Resolves when the connection has to be closed for another one.
    pub(super) async fn evicted(&self) {
        self.0.evicted.cancelled().await;
    }

    /// Resolves when the connection has had no request in progress for this time.
    pub(super) async fn idle(&self, bound: Duration) {
        loop {
            let Activity { requests, idle_since } = *locked(&self.0.activity);
            let since = if requests > 0 { Instant::now() } else { idle_since };
            if since.elapsed() >= bound {
                return;
            }
            tokio::time::sleep_until(since + bound).await;
        }
    }

    /// A request has come. It is in progress until what is returned is dropped.
    pub(super) fn begin(&self) -> Request {
        locked(&self.0.activity).requests += 1;
        Request(self.clone())
    }
}

/// A request in progress.
#[derive(Debug)]
pub(super) struct Request(Connection);

impl Request {
    /// The body of the answer: the request ends with it.
    pub(super) fn answered(self, body: Body) -> Answer {
        Answer { body, _request: self }
    }

    /// The connection is upgraded, and in use until it ends.
    pub(super) fn hold(&self) {
        locked(&self.0.0.activity).requests += 1;
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        let mut activity = locked(&self.0.0.activity);
        activity.requests = activity.requests.saturating_sub(1);
        activity.idle_since = Instant::now();
    }
}

/// The body of an answer, with the request that it ends.
#[derive(Debug)]
pub(super) struct Answer {
    body: Body,
    _request: Request,
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 1);

    fn is_evicted(place: &Place) -> bool {
        place.connection.0.evicted.is_cancelled()
    }

    #[tokio::test(start_paused = true)]
    async fn full_table_closes_the_oldest_idle_connection_without_a_credential() {
        let table = Table::new(3);
        let trusted = table.admit(PEER).unwrap();
        trusted.connection().trust();
        tokio::time::advance(Duration::from_secs(1)).await;
        let older = table.admit(PEER).unwrap();
        tokio::time::advance(Duration::from_secs(1)).await;
        let newer = table.admit(PEER).unwrap();
        let fourth = table.admit(PEER).unwrap();
        assert_eq!([&trusted, &older, &newer, &fourth].map(is_evicted), [false, true, false, false]);
        drop(older);
        assert_eq!(locked(&table.open).len(), 3, "its place was given away already");
    }

    #[tokio::test(start_paused = true)]
    async fn request_of_a_trusted_peer_is_never_cut_for_a_connection() {
        let table = Table::new(2);
        let [watch, idle] = [table.admit(PEER).unwrap(), table.admit(PEER).unwrap()];
        watch.connection().trust();
        idle.connection().trust();
        let request = watch.connection().begin();
        let third = table.admit(PEER).unwrap();
        assert!(is_evicted(&idle) && !is_evicted(&watch), "an idle one goes first");
        let upgraded = third.connection().begin();
        third.connection().trust();
        upgraded.hold();
        assert!(table.admit(PEER).is_none(), "both are busy");
        drop(request);
        assert!(table.admit(PEER).is_some());
        assert!(is_evicted(&watch) && !is_evicted(&third), "an upgraded connection stays busy");
    }

    #[tokio::test(start_paused = true)]
    async fn busy_connection_without_a_credential_makes_way() {
        let table = Table::new(1);
        let stranger = table.admit(PEER).unwrap();
        let _request = stranger.connection().begin();
        let next = table.admit(PEER).unwrap();
        assert!(is_evicted(&stranger) && !is_evicted(&next));
        drop(next);
        assert_eq!(locked(&table.open).len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn idle_time_begins_with_the_end_of_the_last_answer() {
        let table = Table::new(1);
        let place = table.admit(PEER).unwrap();
        let connection = place.connection().clone();
        let start = Instant::now();
        let request = connection.begin();
        let answer = request.answered(Body::from("x"));
        let ended = async {
            tokio::time::sleep(Duration::from_secs(100)).await;
            drop(answer);
        };
        tokio::join!(connection.idle(Duration::from_secs(10)), ended);
        assert_eq!(start.elapsed(), Duration::from_secs(110));
    }
}
