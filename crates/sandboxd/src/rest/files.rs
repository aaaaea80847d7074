//! `GET`, `HEAD`, `PUT` and `DELETE` of `/v1/files/…`.

use std::ffi::OsStr;
use std::io::{Seek, SeekFrom};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use futures::TryStreamExt;
use http_body_util::BodyExt;
use hyper::body::Frame;
use hyper::header::{
    ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue,
    IF_MODIFIED_SINCE, IF_RANGE, IF_UNMODIFIED_SINCE, LAST_MODIFIED, RANGE,
};
use hyper::{Method, Request, Response, StatusCode, Uri};
use multer::Multipart;
use serde::Serialize;
use tokio::io::AsyncReadExt;
use tokio_util::io::ReaderStream;

use super::range::{Wanted, wanted};
use super::refusal::Refusal;
use super::{Rest, empty, json, target, time};
use crate::answer::{Body, full, stream};
use crate::content::Content;
use crate::files::work;
use crate::files::{Entry, FileError, Got, Kind, Opened, Upload};

/// Maximum bytes of one read of a file.
const READ_SIZE: usize = 64 << 10;
const MODE: u32 = 0o644;

#[derive(Serialize)]
struct Listing {
    path: String,
    entries: Vec<Listed>,
}

#[derive(Serialize)]
pub(super) struct Listed {
    name: String,
    size: u64,
    r#type: &'static str,
    modified_at: String,
    mode: String,
}

impl From<Entry> for Listed {
    fn from(entry: Entry) -> Listed {
        Listed {
            name: entry.name,
            size: entry.size,
            r#type: if entry.kind == Kind::Directory { "directory" } else { "file" },
            modified_at: time::rfc3339(entry.modified.0),
            mode: format!("{:04o}", entry.mode & 0o777),
        }
    }
}

impl Rest {
    pub(super) async fn get(
        &self,
        request: Request<Content>,
        place: PathBuf,
        given: &OsStr,
    ) -> Result<Response<Body>, Refusal> {
        let (root, path) = (self.root.clone(), place.clone());
        match work::on_files(move || root.get(path)).await {
            Ok(Got::File(opened)) => content(request.headers(), opened).await,
            Ok(Got::Folder(mut entries)) => {
                entries.retain(|entry| !entry.broken);
                entries.sort_by(|one, other| one.name.cmp(&other.name));
                let given = given.to_string_lossy();
                let path = format!("/{}", given.trim_matches('/'));
                let entries = entries.into_iter().map(Listed::from).collect();
                Ok(json(StatusCode::OK, &Listing { path, entries }))
            }
            // It exists, which is all that HEAD needs.
            Err(FileError::Special) if request.method() == Method::HEAD => Ok(empty(StatusCode::OK)),
            Err(error) => Err(not_below_a_file(error)),
        }
    }

    pub(super) async fn put(
        &self,
        request: Request<Content>,
        place: impl FnOnce() -> Result<(PathBuf, std::ffi::OsString), Refusal>,
    ) -> Result<Response<Body>, Refusal> {
        let mode = target::mode(request.uri(), MODE)?;
        let (path, _) = place()?;
        let (root, wanted) = (self.root.clone(), path.clone());
        match work::on_files(move || root.look(wanted)).await {
            Ok(entry) if entry.kind == Kind::Directory => return Err(FileError::IsFolder(path).into()),
            Ok(_) | Err(FileError::NotFound) => {}
            Err(error) => return Err(error.into()),
        }
        let upload = Upload::new(self.root.clone(), path, Some(mode));
        let declared = request.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or("");
        let media = declared.split(';').next().unwrap_or("").trim();
        if media.eq_ignore_ascii_case("multipart/form-data") {
            let boundary = multer::parse_boundary(declared).map_err(|error| unreadable(&error))?;
            let form = Multipart::new(request.into_body().into_data_stream(), boundary);
            receive_form(upload, form).await?;
        } else {
            receive(upload, request.into_body()).await?;
        }
        Ok(empty(StatusCode::NO_CONTENT))
    }

    pub(super) async fn delete(&self, uri: &Uri, path: PathBuf) -> Result<Response<Body>, Refusal> {
        let (root, wanted) = (self.root.clone(), path.clone());
        let there = work::on_files(move || root.exists(wanted)).await.map_err(not_below_a_file)?;
        if !there {
            return Err(Refusal::not_found());
        }
        let recursive = target::yes(uri, "recursive")?;
        let root = self.root.clone();
        work::on_files(move || root.remove(path, recursive)).await?;
        Ok(empty(StatusCode::NO_CONTENT))
    }
}

/// A path below a file does not exist.
pub(super) fn not_below_a_file(error: FileError) -> Refusal {
    let refusal = Refusal::from(error);
    if refusal.status == StatusCode::CONFLICT { Refusal::not_found() } else { refusal }
}

async fn receive(mut upload: Upload, mut body: Content) -> Result<(), Refusal> {
    let mut failed = None;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Refusal::invalid(&format!("the body broke off: {error}")))?;
        // After an error the rest is read and discarded: a client that is cut off while it sends receives no
        // response.
        if let (Ok(piece), None) = (frame.into_data(), &failed) {
            failed = upload.push(&piece).await.err();
        }
    }
    match failed {
        Some(error) => Err(error.into()),
        None => Ok(upload.finish().await?),
    }
}

/// Receives the part `file` of a form; the file has its name only when the whole form has arrived.
async fn receive_form(mut upload: Upload, mut form: Multipart<'_>) -> Result<(), Refusal> {
    let (mut found, mut failed) = (false, None);
    while let Some(mut part) = form.next_field().await.map_err(|error| unreadable(&error))? {
        let file = part.name() == Some("file") && !found;
        found |= file;
        while let Some(piece) = part.chunk().await.map_err(|error| unreadable(&error))? {
            if file && failed.is_none() {
                failed = upload.push(&piece).await.err();
            }
        }
    }
    match failed {
        _ if !found => Err(Refusal::invalid("multipart body is missing the required \"file\" part")),
        Some(error) => Err(error.into()),
        None => Ok(upload.finish().await?),
    }
}

fn unreadable(error: &multer::Error) -> Refusal {
    Refusal::invalid(&format!("invalid multipart body: {error}"))
}

/// Responds with a file, a part of it, or 304 if the client has it already.
async fn content(headers: &HeaderMap, opened: Opened) -> Result<Response<Body>, Refusal> {
    let seconds = u64::try_from(opened.modified.0).unwrap_or(0);
    let written = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    let mut response = Response::new(full(""));
    insert(&mut response, LAST_MODIFIED, &httpdate::fmt_http_date(written));
    let date = |name: HeaderName| httpdate::parse_http_date(headers.get(name)?.to_str().ok()?).ok();
    if date(IF_UNMODIFIED_SINCE).is_some_and(|since| written > since) {
        *response.status_mut() = StatusCode::PRECONDITION_FAILED;
        return Ok(response);
    }
    if date(IF_MODIFIED_SINCE).is_some_and(|since| written <= since) {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        return Ok(response);
    }
    // A range needs the same version of the file; `If-Range` with an ETag never matches, since there are no
    // ETags.
    let same = !headers.contains_key(IF_RANGE) || date(IF_RANGE) == Some(written);
    let range = headers.get(RANGE).filter(|_| same).and_then(|range| range.to_str().ok());
    let (first, length) = match range.map_or(Wanted::All, |range| wanted(range, opened.size)) {
        Wanted::All => (0, opened.size),
        Wanted::Part(first, last) => {
            *response.status_mut() = StatusCode::PARTIAL_CONTENT;
            insert(&mut response, CONTENT_RANGE, &format!("bytes {first}-{last}/{}", opened.size));
            (first, last - first + 1)
        }
        Wanted::Nothing => {
            let mut refused = Refusal::invalid("range is not within the file").answer();
            *refused.status_mut() = StatusCode::RANGE_NOT_SATISFIABLE;
            insert(&mut refused, CONTENT_RANGE, &format!("bytes */{}", opened.size));
            return Ok(refused);
        }
    };
    response.headers_mut().insert(CONTENT_LENGTH, length.into());
    insert(&mut response, CONTENT_TYPE, "application/octet-stream");
    insert(&mut response, ACCEPT_RANGES, "bytes");
    let mut file = opened.file;
    if first > 0 {
        file.seek(SeekFrom::Start(first)).map_err(|error| Refusal::internal(&error.to_string()))?;
    }
    let reader = ReaderStream::with_capacity(tokio::fs::File::from_std(file).take(length), READ_SIZE);
    *response.body_mut() = stream(reader.map_ok(Frame::data));
    Ok(response)
}

fn insert(response: &mut Response<Body>, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(name, value);
    }
}
