//! `/v1/watch/…`: streams changes below a folder, a line of JSON each, until the client disconnects.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream::unfold;
use hyper::body::Frame;
use hyper::{Response, StatusCode, Uri};
use tokio::sync::Semaphore;

use super::refusal::Refusal;
use super::{Rest, target};
use crate::answer::{Body, answer, stream};
use crate::watch::Watch;

/// Maximum number of concurrent watches. Each has a queue in the kernel.
const WATCH_LIMIT: usize = 16;

/// Permits for watches.
#[derive(Debug, Clone)]
pub(super) struct Watches(Arc<Semaphore>);

impl Default for Watches {
    fn default() -> Watches {
        Watches(Arc::new(Semaphore::new(WATCH_LIMIT)))
    }
}

impl Rest {
    pub(super) async fn watch(&self, uri: &Uri, path: PathBuf) -> Result<Response<Body>, Refusal> {
        let recursive = target::yes(uri, "recursive")?;
        let message = format!("{WATCH_LIMIT} watches are under way already");
        let place = self.watches.0.clone().try_acquire_owned().map_err(|_| Refusal::unavailable(&message))?;
        let watch = Watch::new(self.root.clone(), path, recursive).await?;
        let begin = (watch, place, self.stop.clone());
        let lines = unfold(begin, |(mut watch, place, stop)| async move {
            let change = tokio::select! {
                () = stop.cancelled() => return None,
                change = watch.next() => change.ok()?,
            };
            let mut line = serde_json::to_vec(&change).ok()?;
            line.push(b'\n');
            Some((Ok(Frame::data(Bytes::from(line))), (watch, place, stop)))
        });
        let mut response = answer(StatusCode::OK, "application/x-ndjson", "");
        *response.body_mut() = stream(lines);
        Ok(response)
    }
}
