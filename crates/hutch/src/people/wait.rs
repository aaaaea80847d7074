//! Waits until an object is as wanted.

use std::fmt::Debug;
use std::time::Duration;

use anyhow::{Context, bail};
use futures::StreamExt;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::watch_object;
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, timeout_at};

use super::api_error;
use super::progress::Progress;

/// How often a line that is rewritten shows the time.
const TICK: Duration = Duration::from_secs(1);

/// What an object is, as to what is waited for.
pub(super) enum Step<T> {
    /// There.
    Done(T),
    /// On the way; the text tells where.
    Wait(String),
    /// It will not get there by itself; the text tells why, and what to do.
    Never(String),
}

/// Somebody who waits.
pub(super) struct Patience {
    /// How long in all.
    pub(super) wait: Duration,
    /// When that is over.
    pub(super) end: Instant,
    /// What is shown meanwhile.
    pub(super) progress: Progress,
}

impl Patience {
    pub(super) fn new(wait: Duration) -> Patience {
        // A time beyond the clock's end is a time without an end.
        let end = Instant::now().checked_add(wait);
        let end = end.unwrap_or_else(|| Instant::now() + Duration::from_secs(u64::from(u32::MAX)));
        Patience { wait, end, progress: Progress::new() }
    }

    /// Asks for the object until `judge` is content. `what` names the object in errors, `wish` what is waited for.
    pub(super) async fn until<K, T>(
        &mut self,
        api: &Api<K>,
        (what, name, wish): (&str, &str, &str),
        judge: impl Fn(&K) -> Step<T>,
    ) -> anyhow::Result<T>
    where
        K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    {
        let mut last = match judge(&api.get(name).await.map_err(api_error)?) {
            Step::Done(done) => return Ok(done),
            Step::Never(why) => bail!("{what} {name}: {why}"),
            Step::Wait(text) => text,
        };
        let mut changes = watch_object(api.clone(), name).default_backoff().boxed();
        while Instant::now() < self.end {
            self.progress.say(&format!("waiting for {what} {name} to be {wish}: {last}"));
            let tick = if self.progress.is_live() { self.end.min(Instant::now() + TICK) } else { self.end };
            let Ok(change) = timeout_at(tick, changes.next()).await else { continue };
            match change.context("the watch ended")? {
                Ok(Some(object)) => match judge(&object) {
                    Step::Done(done) => {
                        self.progress.clear();
                        return Ok(done);
                    }
                    Step::Never(why) => bail!("{what} {name}: {why}"),
                    Step::Wait(text) => last = text,
                },
                Ok(None) => bail!("{what} {name} was deleted meanwhile"),
                // It is tried again.
                Err(error) => last = format!("{error}"),
            }
        }
        self.progress.clear();
        if self.wait.is_zero() {
            bail!("{what} {name} is not {wish}: {last}");
        }
        bail!("{what} {name} is not {wish} after {:?}: {last}; a longer --wait gives it more time", self.wait)
    }
}
