//! `POST /upload`, `GET /download/…`, `GET /list/…`, `GET /exists/…`.

use std::time::{Duration, SystemTime};

use futures::TryStreamExt;
use http_body_util::{BodyExt, Limited};
use hyper::body::Frame;
use hyper::header::{CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_TYPE, ETAG, HeaderValue, LAST_MODIFIED};
use hyper::{Request, Response, StatusCode};
use multer::Multipart;
use serde::Serialize;
use tokio::io::AsyncReadExt;
use tokio_util::io::ReaderStream;

use super::invalid::{Invalid, unprocessable};
use super::{Detail, Legacy, UPLOAD_LIMIT, denied, message};
use crate::answer::{Body, json, stream};
use crate::content::Content;
use crate::files::work;
use crate::files::{FileError, Kind, Opened, Upload};
use crate::python;

/// Maximum bytes of one read of a file.
const READ_SIZE: usize = 64 << 10;
/// Maximum characters of a text field in the error of a missing file.
const SHOWN_LIMIT: usize = 1024;

#[derive(Serialize)]
struct Listed {
    name: String,
    size: u64,
    r#type: &'static str,
    mod_time: f64,
}

#[derive(Serialize)]
struct Existence {
    path: String,
    exists: bool,
}

enum Unreceived {
    /// Invalid form.
    Form(Response<Body>),
    File(FileError),
}

impl From<FileError> for Unreceived {
    fn from(error: FileError) -> Unreceived {
        Unreceived::File(error)
    }
}

impl Legacy {
    pub(super) async fn upload(&self, request: Request<Content>) -> Response<Body> {
        let declared = request.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or("");
        let form = declared
            .trim_start()
            .get(..19)
            .is_some_and(|kind| kind.eq_ignore_ascii_case("multipart/form-data"));
        if !form {
            return unprocessable(vec![Invalid::missing("file", serde_json::Value::Null)]);
        }
        let Ok(boundary) = multer::parse_boundary(declared) else {
            return json(StatusCode::BAD_REQUEST, &Detail { detail: "Missing boundary in multipart." });
        };
        let body = Limited::new(request.into_body(), UPLOAD_LIMIT).into_data_stream();
        match self.receive(Multipart::new(body, boundary)).await {
            Ok(name) => message(StatusCode::OK, &format!("File '{name}' uploaded successfully.")),
            Err(Unreceived::Form(response)) => response,
            Err(Unreceived::File(FileError::Outside)) => denied(),
            Err(Unreceived::File(error)) => {
                let text = format!("File upload failed: {}", system_text(&error));
                message(StatusCode::INTERNAL_SERVER_ERROR, &text)
            }
        }
    }

    /// Receives the file of the form; it has its name only when the whole form has arrived.
    async fn receive(&self, mut form: Multipart<'_>) -> Result<String, Unreceived> {
        let mut received = None;
        while let Some(mut part) = form.next_field().await.map_err(unreadable)? {
            if part.name() != Some("file") || received.is_some() {
                while part.chunk().await.map_err(unreadable)?.is_some() {}
                continue;
            }
            let Some(name) = part.file_name().map(str::to_owned) else {
                return Err(Unreceived::Form(unprocessable(vec![Invalid::no_file(
                    "file",
                    shown(part).await?.into(),
                )])));
            };
            let mut upload = Upload::new(self.files.clone(), name.clone().into(), None);
            let mut failed = None;
            // After an error the rest is read and discarded: a client that is cut off while it sends receives
            // no response.
            while let Some(piece) = part.chunk().await.map_err(unreadable)? {
                if failed.is_none() {
                    failed = upload.push(&piece).await.err();
                }
            }
            received = Some((name, upload, failed));
        }
        match received {
            Some((_, _, Some(error))) => Err(error.into()),
            Some((name, upload, None)) => {
                upload.finish().await?;
                Ok(name)
            }
            None => {
                let missing = Invalid::missing("file", serde_json::Value::Null);
                Err(Unreceived::Form(unprocessable(vec![missing])))
            }
        }
    }

    pub(super) async fn download(&self, path: String) -> Response<Body> {
        let (files, wanted) = (self.files.clone(), path.clone());
        match work::on_files(move || files.read(&wanted)).await {
            Ok(opened) => attachment(&path, opened),
            Err(FileError::Outside) => denied(),
            Err(_) => message(StatusCode::NOT_FOUND, "File not found"),
        }
    }

    pub(super) async fn list(&self, path: String) -> Response<Body> {
        let files = self.files.clone();
        match work::on_files(move || files.list(&path)).await {
            Ok(entries) => {
                let listed = entries.into_iter().map(|entry| Listed {
                    name: entry.name,
                    size: entry.size,
                    r#type: if entry.kind == Kind::Directory { "directory" } else { "file" },
                    mod_time: entry.modified.0 as f64 + entry.modified.1 as f64 * 1e-9,
                });
                json(StatusCode::OK, &listed.collect::<Vec<_>>())
            }
            Err(FileError::Outside) => denied(),
            Err(FileError::NotFound) => message(StatusCode::NOT_FOUND, "Path is not a directory"),
            Err(error) => {
                let text = format!("List files failed: {}", system_text(&error));
                message(StatusCode::INTERNAL_SERVER_ERROR, &text)
            }
        }
    }

    pub(super) async fn exists(&self, path: String) -> Response<Body> {
        let (files, wanted) = (self.files.clone(), path.clone());
        match work::on_files(move || files.exists(&wanted)).await {
            Err(FileError::Outside) => denied(),
            // A path that cannot be resolved (a loop of links, a name too long) does not exist, as in Python.
            found => json(StatusCode::OK, &Existence { path, exists: found.unwrap_or(false) }),
        }
    }
}

fn unreadable(error: multer::Error) -> Unreceived {
    let too_large = matches!(&error, multer::Error::StreamReadFailed(cause) if cause.is::<http_body_util::LengthLimitError>());
    Unreceived::Form(match too_large {
        true => json(StatusCode::PAYLOAD_TOO_LARGE, &Detail { detail: "Request body too large" }),
        false => json(StatusCode::BAD_REQUEST, &Detail { detail: "There was an error parsing the body" }),
    })
}

async fn shown(mut part: multer::Field<'_>) -> Result<String, Unreceived> {
    let mut content = Vec::new();
    while let Some(piece) = part.chunk().await.map_err(unreadable)? {
        content.extend_from_slice(&piece[..piece.len().min(SHOWN_LIMIT - content.len())]);
    }
    Ok(String::from_utf8_lossy(&content).into_owned())
}

fn system_text(error: &FileError) -> String {
    match error {
        FileError::IsFolder(path) => {
            python::os_error(&rustix::io::Errno::ISDIR.into(), &path.display().to_string())
        }
        FileError::System { path, source } => python::os_error(source, &path.display().to_string()),
        other => other.to_string(),
    }
}

fn attachment(path: &str, opened: Opened) -> Response<Body> {
    let (seconds, nanoseconds) = opened.modified;
    let content = tokio::fs::File::from_std(opened.file).take(opened.size);
    let reader = ReaderStream::with_capacity(content, READ_SIZE);
    let mut response = Response::new(stream(reader.map_ok(Frame::data)));
    let quoted = python::quote(path);
    let disposition = match quoted == path {
        true => format!("attachment; filename=\"{path}\""),
        false => format!("attachment; filename*=utf-8''{quoted}"),
    };
    let tag = format!("\"{seconds:x}-{nanoseconds:x}-{:x}\"", opened.size);
    let written = SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(CONTENT_LENGTH, opened.size.into());
    for (name, value) in
        [(CONTENT_DISPOSITION, disposition), (ETAG, tag), (LAST_MODIFIED, httpdate::fmt_http_date(written))]
    {
        if let Ok(value) = HeaderValue::from_str(&value) {
            headers.insert(name, value);
        }
    }
    response
}
