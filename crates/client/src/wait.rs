//! Waits until an object has reached a state.

use std::fmt::Debug;
use std::time::Duration;

use futures::StreamExt;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::watch_object;
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, timeout_at};

use crate::{Error, Obstacle};

/// Maximum time between two reports.
const TICK: Duration = Duration::from_secs(1);

/// Receives reports during a wait.
pub trait Progress: Send {
    /// Reports the awaited object and its state: at each change, and once a second. Parts of the text are untrusted.
    fn waiting(&mut self, text: &str);

    /// Reports the end of a wait, which had reports or none.
    fn ended(&mut self);
}

/// Ignores the reports.
impl Progress for () {
    fn waiting(&mut self, _: &str) {}

    fn ended(&mut self) {}
}

/// Time limit of one or several waits, and the receiver of their reports.
pub struct Wait<'a> {
    limit: Duration,
    end: Instant,
    progress: &'a mut dyn Progress,
}

/// State of an object in relation to the awaited one.
pub(crate) enum Step<T> {
    /// Reached.
    Done(T),
    /// Not reached yet, with the current state.
    Wait(String),
    /// Not reachable without a change by a client.
    Never(Obstacle),
}

/// Cause of a delay, as other objects report it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Cause {
    /// Cause, for reports and errors. It is untrusted text.
    pub(crate) text: String,
    /// `true` if the wait ends, because the cause remains without a change by a client.
    pub(crate) is_final: bool,
}

impl<'a> Wait<'a> {
    /// Starts the time limit. With a limit of zero, a function that waits checks the state once, or not at all.
    pub fn new(limit: Duration, progress: &'a mut dyn Progress) -> Wait<'a> {
        // A limit beyond the end of the clock is no limit.
        let end = Instant::now().checked_add(limit);
        let end = end.unwrap_or_else(|| Instant::now() + Duration::from_secs(u64::from(u32::MAX)));
        Wait { limit, end, progress }
    }

    /// Returns true if no time is to be waited.
    pub(crate) fn is_zero(&self) -> bool {
        self.limit.is_zero()
    }

    /// Returns true if the time limit has passed.
    pub(crate) fn is_over(&self) -> bool {
        Instant::now() >= self.end
    }

    /// Watches an object until `judge` returns [`Step::Done`]. `goal` is the awaited state, for reports and errors. Once a
    /// second `explain` may add what other objects say about the delay, or end the wait.
    pub(crate) async fn until<K, T>(
        &mut self,
        api: &Api<K>,
        (kind, name, goal): (&'static str, &str, &'static str),
        judge: impl Fn(&K) -> Step<T>,
        explain: impl AsyncFn() -> Option<Cause>,
    ) -> Result<T, Error>
    where
        K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    {
        let blocked = |obstacle| Error::Blocked { kind, name: name.to_owned(), obstacle };
        let mut state = match judge(&api.get(name).await?) {
            Step::Done(done) => return Ok(done),
            Step::Never(obstacle) => return Err(blocked(obstacle)),
            Step::Wait(state) => state,
        };
        let mut cause: Option<Cause> = None;
        let mut changes = watch_object(api.clone(), name).default_backoff().boxed();
        let outcome = loop {
            let is_over = self.is_over();
            if is_over {
                cause = explain().await;
            }
            if let Some(cause) = cause.take_if(|cause| cause.is_final) {
                break Err(blocked(Obstacle::Pod(cause.text)));
            }
            let shown =
                cause.as_ref().map_or_else(|| state.clone(), |cause| format!("{state}; {}", cause.text));
            if is_over {
                let (name, limit) = (name.to_owned(), self.limit);
                break Err(Error::TimedOut { kind, name, goal, state: shown, limit });
            }
            self.progress.waiting(&format!("waiting for {kind} {name} to be {goal}: {shown}"));
            let tick = self.end.min(Instant::now() + TICK);
            let Ok(change) = timeout_at(tick, changes.next()).await else {
                cause = explain().await;
                continue;
            };
            match change {
                Some(Ok(Some(object))) => match judge(&object) {
                    Step::Done(done) => break Ok(done),
                    Step::Never(obstacle) => break Err(blocked(obstacle)),
                    Step::Wait(next) => state = next,
                },
                Some(Ok(None)) => break Err(Error::Deleted { kind, name: name.to_owned() }),
                // The watch is retried.
                Some(Err(error)) => state = error.to_string(),
                None => break Err(Error::WatchEnded),
            }
        };
        self.progress.ended();
        outcome
    }
}
