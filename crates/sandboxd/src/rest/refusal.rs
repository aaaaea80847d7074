//! Errors of the contract: a status, a code, a message.

use hyper::{Response, StatusCode};
use rustix::io::Errno;
use serde::Serialize;

use super::json;
use crate::answer::Body;
use crate::files::{FileError, LIST_LIMIT};

/// Error response.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    code: &'static str,
    message: String,
}

#[derive(Serialize)]
struct ErrorBody<'a> {
    code: &'a str,
    message: &'a str,
}

impl Refusal {
    fn new(status: StatusCode, code: &'static str, message: &str) -> Refusal {
        Refusal { status, code, message: message.to_owned() }
    }

    pub(super) fn invalid(message: &str) -> Refusal {
        Refusal::new(StatusCode::BAD_REQUEST, "INVALID_ARGUMENT", message)
    }

    pub(super) fn conflict(message: &str) -> Refusal {
        Refusal::new(StatusCode::CONFLICT, "CONFLICT", message)
    }

    pub(super) fn not_found() -> Refusal {
        Refusal::new(StatusCode::NOT_FOUND, "NOT_FOUND", "path does not exist within the sandbox")
    }

    pub(super) fn internal(message: &str) -> Refusal {
        Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "INTERNAL", message)
    }

    pub(super) fn unavailable(message: &str) -> Refusal {
        Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "UNAVAILABLE", message)
    }

    pub(super) fn unauthenticated() -> Refusal {
        let message = "this sandbox demands its token, as \"Authorization: Bearer <token>\"";
        Refusal::new(StatusCode::UNAUTHORIZED, "UNAUTHENTICATED", message)
    }

    fn denied(message: &str) -> Refusal {
        Refusal::new(StatusCode::FORBIDDEN, "PERMISSION_DENIED", message)
    }

    pub(super) fn answer(self) -> Response<Body> {
        json(self.status, &ErrorBody { code: self.code, message: &self.message })
    }
}

impl From<FileError> for Refusal {
    fn from(error: FileError) -> Refusal {
        match error {
            FileError::Outside => Refusal::denied("path traversal outside sandbox root is forbidden"),
            FileError::NotFound => Refusal::not_found(),
            FileError::Special => Refusal::invalid("target path is neither a regular file nor a directory"),
            FileError::IsFolder(_) => Refusal::invalid("target path is a directory"),
            FileError::NotEmpty => {
                Refusal::conflict("directory is not empty; pass recursive=true to remove it")
            }
            FileError::IsRoot => {
                Refusal::conflict("cannot delete the sandbox root; pass recursive=true to clear its contents")
            }
            FileError::Exists => Refusal::conflict("something else is at the target path"),
            FileError::TooMany => Refusal::invalid(&format!(
                "directory has more than {LIST_LIMIT} entries; list it with a command"
            )),
            FileError::System { source, .. } => of_system(&source),
        }
    }
}

fn of_system(source: &std::io::Error) -> Refusal {
    match source.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::ACCESS | Errno::PERM | Errno::ROFS) => Refusal::denied("permission denied"),
        Some(Errno::NOTDIR) => Refusal::conflict("a parent of the target path is not a directory"),
        Some(Errno::NAMETOOLONG) => Refusal::invalid("path or a name in it is too long"),
        Some(Errno::LOOP) => Refusal::invalid("path has too many symbolic links"),
        _ => {
            let text = source.to_string();
            Refusal::internal(text.split(" (os error").next().unwrap_or_default())
        }
    }
}
