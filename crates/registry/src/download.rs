//! Downloads one blob: from several places in order, continued after cut connections, checked before it counts.

use http::StatusCode;
use http::header::{CONTENT_LENGTH, CONTENT_RANGE};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use crate::http_client::Answer;
use crate::layout::Layout;
use crate::limits::Attempts;
use crate::manifest::Blob;
use crate::partial::Partial;
use crate::session::Session;
use crate::{Error, Limits};

/// Bytes of one attempt that count as progress.
const PROGRESS: u64 = 64 << 10;

/// Brings a blob into the store. `progress` receives the bytes that are there.
pub(crate) async fn download(
    layout: &Layout,
    sessions: &[std::sync::Arc<Session>],
    blob: &Blob,
    limits: &Limits,
    progress: &watch::Sender<u64>,
) -> Result<(), Error> {
    let mut last = Error::NotFound { host: "the configuration".into(), what: "place to pull from".into() };
    for session in sessions {
        // A place that failed leaves what it sent, and the next one continues it.
        let Some(partial) = Partial::open(layout, blob).await? else { return Ok(()) };
        let one = One { session, blob, limits, progress };
        match one.run(partial).await {
            Ok(()) => return Ok(()),
            Err(error) if error.is_local() => return Err(error),
            Err(error) => {
                tracing::debug!(host = session.host(), blob = %blob.digest, %error, "failed to download blob");
                last = error;
            }
        }
    }
    Err(last)
}

/// A download from one place.
struct One<'a> {
    session: &'a Session,
    blob: &'a Blob,
    limits: &'a Limits,
    progress: &'a watch::Sender<u64>,
}

impl One<'_> {
    async fn run(&self, mut partial: Partial) -> Result<(), Error> {
        let mut attempts = Attempts::new(self.limits);
        loop {
            let before = partial.len();
            self.progress.send_replace(before);
            let outcome;
            (partial, outcome) = self.attempt(partial).await?;
            if let Err(error) = outcome {
                partial = partial.flush().await?;
                if partial.len() >= before + PROGRESS {
                    attempts.progressed();
                }
                attempts.pause_after(error).await?;
                continue;
            }
            let inherited = partial.is_inherited();
            match partial.finish().await? {
                None => return Ok(()),
                // The start may be of a process that was killed before it had written all. Once more, from nothing.
                Some(rest) if inherited => partial = rest,
                Some(_) => {
                    let host = self.session.host().to_owned();
                    return Err(Error::DigestMismatch { host, what: self.blob.digest.to_string() });
                }
            }
        }
    }

    /// Requests what is missing. The inner error is the registry's, the outer one this machine's.
    async fn attempt(&self, partial: Partial) -> Result<(Partial, Result<(), Error>), Error> {
        let from = partial.len();
        if from == self.blob.size {
            return Ok((partial, Ok(())));
        }
        let what = self.blob.digest.to_string();
        let answer = match self.session.blob(self.blob, from).await {
            Ok(answer) if answer.response.status() == StatusCode::RANGE_NOT_SATISFIABLE && from > 0 => {
                return Ok((partial.reset().await?, Err(self.cut(&answer.host, 0))));
            }
            Ok(answer) => answer.check(&what),
            Err(error) => Err(error),
        };
        match answer.and_then(|answer| Ok((self.start(&answer, from)?, answer))) {
            Ok((start, answer)) => {
                let partial = if start < from { partial.reset().await? } else { partial };
                self.receive(partial, answer).await
            }
            Err(error) => Ok((partial, Err(error))),
        }
    }

    /// Returns the offset at which the answer begins, and checks the length that it announces.
    fn start(&self, answer: &Answer, from: u64) -> Result<u64, Error> {
        let header = |name| answer.response.headers().get(name).and_then(|value| value.to_str().ok());
        let invalid =
            |reason: &str| Error::InvalidAnswer { host: answer.host.clone(), reason: reason.into() };
        let start = match answer.response.status() {
            StatusCode::PARTIAL_CONTENT => {
                let start = header(CONTENT_RANGE).and_then(|range| {
                    range.strip_prefix("bytes ")?.split_once('-')?.0.trim().parse::<u64>().ok()
                });
                if start != Some(from) {
                    return Err(invalid("sent another part of the blob than was requested"));
                }
                from
            }
            _ => 0,
        };
        let length = header(CONTENT_LENGTH).and_then(|text| text.parse::<u64>().ok());
        if length.is_some_and(|length| length != self.blob.size - start) {
            return Err(invalid(&format!(
                "sends another length than the {} bytes of {}",
                self.blob.size, self.blob.digest
            )));
        }
        Ok(start)
    }

    async fn receive(
        &self,
        mut partial: Partial,
        mut answer: Answer,
    ) -> Result<(Partial, Result<(), Error>), Error> {
        let (mut since, mut from) = (Instant::now(), partial.len());
        loop {
            if partial.len() - from >= self.limits.least {
                (since, from) = (Instant::now(), partial.len());
            }
            let next = timeout_at(since + self.limits.silence, answer.next(self.limits)).await;
            let slow = || Error::Silent { host: answer.host.clone(), limit: self.limits.silence };
            match next.unwrap_or_else(|_| Err(slow())) {
                Ok(Some(bytes)) => {
                    if partial.len() + bytes.len() as u64 > self.blob.size {
                        let what = format!("{} of {}", self.blob.digest, answer.host);
                        let limit = format!("its size of {} bytes", self.blob.size);
                        return Ok((partial.reset().await?, Err(Error::TooLarge { what, limit })));
                    }
                    partial = partial.push(&bytes).await?;
                    self.progress.send_replace(partial.len());
                }
                Ok(None) if partial.len() == self.blob.size => return Ok((partial, Ok(()))),
                Ok(None) => {
                    let cut = self.cut(&answer.host, partial.len());
                    return Ok((partial, Err(cut)));
                }
                Err(error) => return Ok((partial, Err(error))),
            }
        }
    }

    fn cut(&self, host: &str, received: u64) -> Error {
        let what = self.blob.digest.to_string();
        Error::Cut { host: host.to_owned(), what, received, size: self.blob.size }
    }
}
