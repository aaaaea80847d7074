use std::time::Duration;

use hutch_api::condition::{message, reason};

use crate::error::Error;

/// Time until a claim whose pool or template is missing is reconciled again.
const MISSING_RECHECK: Duration = Duration::from_secs(60);
/// Time until a claim is reconciled again whose Sandbox was created but is not in the cache yet.
const UNSEEN_RECHECK: Duration = Duration::from_millis(200);

/// Retry policy of a claim that was not bound. A change of the claim always requeues it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Retry {
    /// Waits for a change.
    Never,
    /// Retries with backoff.
    Backoff,
    /// Retries after this time.
    After(Duration),
}

/// Reason why a claim has no usable Sandbox, as its Ready condition reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) reason: &'static str,
    pub(super) message: String,
    pub(super) retry: Retry,
}

impl Refusal {
    /// Refusal on which clients give up: only for errors that the user must correct.
    pub(super) fn terminal(reason: &'static str, message: impl Into<String>) -> Self {
        Refusal { reason, message: message.into(), retry: Retry::Never }
    }

    /// Refusal that may be temporary.
    pub(super) fn error(text: impl std::fmt::Display) -> Self {
        let message = format!("{}{text}", message::ERROR_SEEN);
        Refusal { reason: reason::RECONCILER_ERROR, message, retry: Retry::Backoff }
    }

    pub(super) fn no_pool(name: &str) -> Self {
        let message = message::warm_pool_not_found(name);
        Refusal { reason: reason::WARM_POOL_NOT_FOUND, message, retry: Retry::After(MISSING_RECHECK) }
    }

    pub(super) fn no_template(name: &str) -> Self {
        let message = message::template_not_found(name);
        Refusal { reason: reason::TEMPLATE_NOT_FOUND, message, retry: Retry::After(MISSING_RECHECK) }
    }

    pub(super) fn create_pending() -> Self {
        Refusal {
            reason: reason::SANDBOX_CREATE_PENDING,
            message: message::CREATE_PENDING.into(),
            retry: Retry::After(UNSEEN_RECHECK),
        }
    }

    pub(super) fn conflict(detail: &str) -> Self {
        let message = format!("{detail}{}", message::ADOPTION_CONFLICT);
        Refusal { reason: reason::ADOPTION_CONFLICT, message, retry: Retry::Backoff }
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Refusal::error(error.for_condition())
    }
}
