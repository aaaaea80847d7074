use std::time::Duration;

use hutch_api::condition::{message, reason};

use crate::error::Error;

/// How long a claim whose pool or template is missing waits before it looks again by itself.
const MISSING_RECHECK: Duration = Duration::from_secs(60);
/// How long a claim waits for a Sandbox that was created but is not seen yet.
const UNSEEN_RECHECK: Duration = Duration::from_millis(200);

/// When a claim that could not be met is tried again; a change of the claim always brings another look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Retry {
    /// Not before it changes.
    Never,
    /// After a pause that grows.
    Backoff,
    /// After this time.
    After(Duration),
}

/// Why a claim has no usable Sandbox: what its Ready condition says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) reason: &'static str,
    pub(super) message: String,
    pub(super) retry: Retry,
}

impl Refusal {
    /// Clients give up on such a reason, so it is only for what the user has to change.
    pub(super) fn terminal(reason: &'static str, message: impl Into<String>) -> Self {
        Refusal { reason, message: message.into(), retry: Retry::Never }
    }

    /// Something that may pass.
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
