//! One request, as its answer and its record name it.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::Method;
use hutch_policy::Call;

use crate::origin::Origin;
use crate::record::{Asked, named};
use crate::refusal::{Reason, Refusal};
use crate::sandbox::Sandbox;

/// Path in messages instead of one with something that must not be shown.
const HIDDEN: &str = "/[redacted]";
/// Maximum characters of a path in a message.
const SHOWN: usize = 200;

/// Facts about a request, for its answer and its record.
pub(super) struct Line {
    method: Method,
    pub(super) origin: Arc<Origin>,
    /// Without the query, and cut.
    path: String,
    /// The scanner finds something in the target, which must not be shown.
    pub(super) hidden: AtomicBool,
    course: Mutex<Course>,
}

/// Course of a request that is sent on.
#[derive(Default)]
enum Course {
    #[default]
    Sent,
    /// Its body was ended for this reason, which is reported, before its answer has begun.
    Ended(Reason),
    /// Its answer has begun.
    Answered,
}

impl fmt::Display for Line {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Line { method, origin, .. } = self;
        write!(formatter, "{method} {}://{}{}", origin.scheme(), origin.destination, self.path())
    }
}

impl Line {
    pub(super) fn new(method: Method, origin: &Arc<Origin>, path: &str) -> Line {
        Line {
            method,
            origin: origin.clone(),
            path: path.chars().take(SHOWN).collect(),
            hidden: AtomicBool::new(false),
            course: Mutex::default(),
        }
    }

    fn course(&self) -> MutexGuard<'_, Course> {
        self.course.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports why the body of the request ends. The answer gives the reason, unless it has begun: then it breaks off.
    pub(super) fn end(&self, sandbox: &Sandbox, reason: Reason) {
        sandbox.refused_request(self.refusal(reason.clone(), &[]), &self.asked(&[]));
        let mut course = self.course();
        if matches!(*course, Course::Sent) {
            *course = Course::Ended(reason);
        }
    }

    /// Begins the answer.
    ///
    /// # Errors
    /// The body of the request has been ended.
    pub(super) fn answer(&self) -> Result<(), Reason> {
        let mut course = self.course();
        match &*course {
            Course::Ended(reason) => Err(reason.clone()),
            Course::Sent | Course::Answered => {
                *course = Course::Answered;
                Ok(())
            }
        }
    }

    /// Returns why the body of the request was ended before its answer has begun.
    pub(super) fn ended(&self) -> Option<Reason> {
        match &*self.course() {
            Course::Ended(reason) => Some(reason.clone()),
            _ => None,
        }
    }

    pub(super) fn path(&self) -> &str {
        if self.hidden.load(Ordering::Relaxed) { HIDDEN } else { &self.path }
    }

    /// Returns the refusal of the request, which has made these calls.
    pub(super) fn refusal(&self, reason: Reason, calls: &[Call]) -> Refusal {
        let destination = match calls {
            [] => self.to_string(),
            calls => format!("{self} ({})", named(calls)),
        };
        Refusal { destination, reason }
    }

    pub(super) fn asked<'a>(&'a self, calls: &'a [Call]) -> Asked<'a> {
        let Line { method, origin, .. } = self;
        Asked { destination: &origin.destination, method: method.as_str(), path: self.path(), calls }
    }
}
