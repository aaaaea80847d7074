//! Watching objects: newline-delimited JSON events until the client or the time is done.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures::FutureExt;
use http::{HeaderValue, header};
use hutch_store::{Entry, Error, Event, Page, Watch};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::accept::Form;
use crate::bounds::Place;
use crate::call::Call;
use crate::failure::{Cause, Failure};
use crate::filter::Filter;
use crate::object::{Object, encode, set_revision};
use crate::respond;

/// A watch without a timeout ends after this; clients begin a new one. A bit of chance keeps them from doing so
/// all at once.
const USUAL: Duration = Duration::from_secs(30 * 60);
/// Maximum duration of a watch, whatever timeout it requests.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);
/// Between bookmarks in a quiet watch.
const BOOKMARK: Duration = Duration::from_secs(60);
/// Events that go out as one piece at most.
const PIECE: usize = 64;

pub(crate) fn watch(call: Call) -> Result<Response, Failure> {
    let place = call.external.then(|| call.core.watches.take(&call.identity)).transpose()?;
    let filter = Filter::of(&call)?;
    let initial = wants_initial_events(&call)?;
    let bookmarks = call.query.flag("allowWatchBookmarks");
    let seconds = call.query.positive("timeoutSeconds")?;
    let usual = USUAL.mul_f64(1.0 + rand::random_range(0.0..1.0));
    let until = Instant::now() + seconds.map_or(usual, Duration::from_secs).min(LONGEST);
    let asked = call.query.revision().map_err(Failure::unexplained)?.filter(|asked| *asked > 0);
    let from_present = asked.is_none() || initial == Some(true);
    let mut first = Vec::new();
    let revision = match asked {
        Some(revision) if !from_present => revision,
        _ => {
            if let Some(asked) = asked {
                super::list::not_of_the_future(&call, asked)?;
            }
            let prefix = call.prefix();
            let page = Page { prefix: &prefix, ..Page::default() };
            let list = call.store.list(&call.resource.collection, page);
            // A watch from "now" on request shows no initial objects.
            if initial != Some(false) {
                first = list.entries.into_iter().filter(|entry| filter.matches(entry)).collect();
            }
            list.revision
        }
    };
    let events = call.store.watch(&call.resource.collection, &call.prefix(), revision);
    let mut stream = Stream {
        events: None,
        filter,
        bookmarks,
        until,
        next_bookmark: Instant::now() + BOOKMARK,
        head_sent: false,
        initial: first.into(),
        end_of_initial: (initial == Some(true) && bookmarks).then_some(revision),
        failed: None,
        _place: place,
        call,
    };
    match events {
        Ok(events) => stream.events = Some(events),
        Err(error) => stream.failed = Some(expired(&error)),
    }
    let body = Body::from_stream(futures::stream::unfold(stream, |mut stream| async move {
        let piece = stream.next().await?;
        Some((Ok::<_, Infallible>(piece), stream))
    }));
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(respond::JSON));
    Ok(response)
}

/// `sendInitialEvents`, which comes with conditions.
fn wants_initial_events(call: &Call) -> Result<Option<bool>, Failure> {
    let matching = call.query.get("resourceVersionMatch").unwrap_or_default();
    let wrong =
        |field: &str, text: &str| Err(Failure::invalid_options("ListOptions", Cause::forbidden(field, text)));
    if call.query.get("sendInitialEvents").is_none() {
        if !matching.is_empty() {
            return wrong(
                "resourceVersionMatch",
                "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
            );
        }
        return Ok(None);
    }
    if matching != "NotOlderThan" {
        return wrong(
            "resourceVersionMatch",
            "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
        );
    }
    Ok(Some(call.query.flag("sendInitialEvents")))
}

fn expired(error: &Error) -> Failure {
    match error {
        Error::Compacted { asked, oldest } => {
            Failure::expired(format!("too old resource version: {asked} ({oldest})"))
        }
        other => Failure::internal(other),
    }
}

struct Stream {
    call: Call,
    events: Option<Watch<Object>>,
    filter: Filter,
    bookmarks: bool,
    until: Instant,
    next_bookmark: Instant,
    /// True if a table with its column definitions was sent.
    head_sent: bool,
    initial: VecDeque<Arc<Entry<Object>>>,
    /// The revision for the bookmark after the initial objects, if the client requested one.
    end_of_initial: Option<u64>,
    failed: Option<Failure>,
    /// Its place among the watches of a caller from outside.
    _place: Option<Place>,
}

impl Stream {
    /// The next bytes; nothing when the watch is over.
    async fn next(&mut self) -> Option<Bytes> {
        let mut text = Vec::new();
        while let Some(entry) = self.initial.pop_front() {
            self.write(&mut text, "ADDED", &entry, None);
            if text.len() > 64 << 10 {
                return Some(text.into());
            }
        }
        if let Some(revision) = self.end_of_initial.take() {
            self.bookmark(&mut text, revision, true);
        }
        if !text.is_empty() {
            return Some(text.into());
        }
        loop {
            if self.failed.is_some() {
                return self.fail();
            }
            let mut events = self.events.take()?;
            let outcome = tokio::select! {
                biased;
                event = events.next() => Some(event),
                () = tokio::time::sleep_until(self.until) => return None,
                () = tokio::time::sleep_until(self.next_bookmark), if self.bookmarks => None,
            };
            match outcome {
                None => {
                    self.next_bookmark = Instant::now() + BOOKMARK;
                    self.bookmark(&mut text, events.seen(), false);
                }
                Some(event) => self.take(&mut text, &mut events, event),
            }
            self.events = Some(events);
            if !text.is_empty() {
                return Some(text.into());
            }
        }
    }

    /// Writes an event and those that are there already.
    fn take(&mut self, text: &mut Vec<u8>, events: &mut Watch<Object>, first: Result<Event<Object>, Error>) {
        let mut next = Some(first);
        for _ in 0..PIECE {
            match next {
                Some(Ok(event)) => self.event(text, &event),
                Some(Err(Error::Closed)) => {
                    return self.failed = Some(Failure::unavailable("the API server is shutting down"));
                }
                Some(Err(error)) => return self.failed = Some(expired(&error)),
                None => return,
            }
            next = events.next().now_or_never();
        }
        if let Some(Ok(event)) = next {
            self.event(text, &event);
        }
    }

    /// An object that begins or ceases to match the selectors is added or deleted for this client.
    fn event(&mut self, text: &mut Vec<u8>, event: &Event<Object>) {
        match event {
            Event::Created(entry) => {
                if self.filter.matches(entry) {
                    self.write(text, "ADDED", entry, None);
                }
            }
            Event::Updated { before, now } => match (self.filter.matches(before), self.filter.matches(now)) {
                (true, true) => self.write(text, "MODIFIED", now, None),
                (false, true) => self.write(text, "ADDED", now, None),
                (true, false) => self.write(text, "DELETED", before, Some(now.revision)),
                (false, false) => {}
            },
            Event::Deleted { before, last } => {
                if self.filter.matches(before) {
                    self.write(text, "DELETED", last, None);
                }
            }
        }
    }

    /// Writes one line. `revision` replaces that of the object.
    fn write(&mut self, text: &mut Vec<u8>, what: &str, entry: &Entry<Object>, revision: Option<u64>) {
        let resource = &self.call.resource;
        if self.call.form == Form::Json && resource.shows_stored(entry) && revision.is_none() {
            return line(text, what, entry.value.json());
        }
        let object = resource.shown(entry).and_then(|mut object| {
            if let Some(revision) = revision {
                set_revision(&mut object, revision);
            }
            self.shape(object)
        });
        match object {
            Ok(object) => line(text, what, &encode(&object).0),
            Err(failure) => self.failed = Some(failure),
        }
    }

    fn shape(&mut self, object: Value) -> Result<Value, Failure> {
        match self.call.form {
            Form::Json | Form::Yaml => Ok(object),
            Form::Metadata => Ok(respond::only_metadata(&object)),
            Form::Table => {
                let mut table = respond::rows(&self.call, &[object], None)?;
                // The columns are sent once.
                if std::mem::replace(&mut self.head_sent, true) {
                    table["columnDefinitions"] = Value::Null;
                }
                Ok(table)
            }
        }
    }

    fn bookmark(&mut self, text: &mut Vec<u8>, revision: u64, end_of_initial: bool) {
        let kind = self.call.kind();
        let mut object = json!({
            "kind": kind.kind, "apiVersion": kind.api_version(),
            "metadata": { "resourceVersion": revision.to_string() },
        });
        if end_of_initial {
            object["metadata"]["annotations"] = json!({ "k8s.io/initial-events-end": "true" });
        }
        let object = match self.call.form {
            Form::Table => json!({
                "kind": "Table", "apiVersion": "meta.k8s.io/v1",
                "metadata": { "resourceVersion": revision.to_string() },
                "columnDefinitions": null,
                "rows": [{ "cells": [], "object": object }],
            }),
            Form::Metadata => {
                object["kind"] = "PartialObjectMetadata".into();
                object["apiVersion"] = "meta.k8s.io/v1".into();
                object
            }
            Form::Json | Form::Yaml => object,
        };
        line(text, "BOOKMARK", &encode(&object).0);
    }

    fn fail(&mut self) -> Option<Bytes> {
        let failure = self.failed.take()?;
        self.events = None;
        let mut text = Vec::new();
        line(&mut text, "ERROR", failure.status().to_string().as_bytes());
        Some(text.into())
    }
}

fn line(text: &mut Vec<u8>, what: &str, object: &[u8]) {
    text.reserve(object.len() + 40);
    text.extend_from_slice(b"{\"type\":\"");
    text.extend_from_slice(what.as_bytes());
    text.extend_from_slice(b"\",\"object\":");
    text.extend_from_slice(object);
    text.extend_from_slice(b"}\n");
}
