//! State of one container of a Pod, as the node knows it.

use jiff::{SignedDuration, Timestamp};

/// First wait before a container that failed again is started again.
const FIRST_BACKOFF: SignedDuration = SignedDuration::from_secs(10);
/// Longest wait.
const MAX_BACKOFF: SignedDuration = SignedDuration::from_secs(300);
/// A container that ran so long has recovered.
const RECOVERED_AFTER: SignedDuration = SignedDuration::from_secs(600);

/// Time until which a container waits that never starts.
pub(crate) const NEVER: Timestamp = Timestamp::MAX;

/// Role of a container in its Pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Runs to its end before the next one starts.
    Init,
    /// An init container that stays.
    Sidecar,
    /// One of the Pod's containers.
    Main,
    /// Added to a Pod that exists, for debugging. The Pod does not depend on it, and it is never started again.
    Ephemeral,
}

/// How a container's life ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) signal: Option<i32>,
    pub(crate) reason: String,
    pub(crate) message: Option<String>,
    pub(crate) started: Option<Timestamp>,
    pub(crate) at: Timestamp,
}

/// Where a container is in its life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Life {
    /// Not yet started, with the reason that a user sees.
    Waiting {
        reason: &'static str,
        message: Option<String>,
    },
    /// Being started.
    Starting,
    Running {
        since: Timestamp,
    },
    Ended(Ended),
}

/// One container of a Pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) name: String,
    pub(crate) role: Role,
    pub(crate) image: String,
    pub(crate) image_id: String,
    pub(crate) life: Life,
    /// The life before.
    pub(crate) last: Option<Ended>,
    pub(crate) restarts: u32,
    /// When to try again what kept the container from being made, such as a missing ConfigMap.
    pub(crate) hold: Option<Timestamp>,
    /// Failures in a row, which make the next wait longer.
    pub(crate) failures: u32,
    /// Times in a row that its image could not be had.
    pub(crate) image_failures: u32,
    /// Its startup probe has succeeded, or it has none.
    pub(crate) started: bool,
    /// Its readiness probe has succeeded, or it has none.
    pub(crate) ready: bool,
    pub(crate) has_startup_probe: bool,
    pub(crate) has_readiness_probe: bool,
}

impl State {
    pub(crate) fn new(name: &str, role: Role, image: &str) -> State {
        State {
            name: name.into(),
            role,
            image: image.into(),
            image_id: String::new(),
            life: Life::Waiting { reason: "PodInitializing", message: None },
            last: None,
            restarts: 0,
            hold: None,
            failures: 0,
            image_failures: 0,
            started: false,
            ready: false,
            has_startup_probe: false,
            has_readiness_probe: false,
        }
    }

    /// Takes note that the container runs.
    pub(crate) fn run(&mut self, now: Timestamp) {
        self.started = !self.has_startup_probe;
        self.ready = self.started && !self.has_readiness_probe;
        self.life = Life::Running { since: now };
    }

    /// Takes note that the container has ended.
    pub(crate) fn end(&mut self, ended: Ended) {
        let ran = ended.started.map_or(SignedDuration::ZERO, |since| ended.at.duration_since(since));
        self.failures = if ran >= RECOVERED_AFTER { 0 } else { self.failures.saturating_add(1) };
        self.started = false;
        self.ready = false;
        self.life = Life::Ended(ended);
    }

    /// Takes note that something kept the container from being made.
    pub(crate) fn wait(&mut self, reason: &'static str, message: String, until: Timestamp) {
        if let Life::Ended(ended) =
            std::mem::replace(&mut self.life, Life::Waiting { reason, message: Some(message) })
        {
            self.last = Some(ended);
            self.restarts += 1;
        }
        self.hold = Some(until);
    }

    /// Takes note that the container is refused.
    pub(crate) fn refuse(&mut self, message: String) {
        self.wait("CreateContainerConfigError", message, NEVER);
    }

    /// Takes note that the next life begins.
    pub(crate) fn begin(&mut self) {
        self.hold = None;
        if let Life::Ended(ended) = std::mem::replace(&mut self.life, Life::Starting) {
            self.last = Some(ended);
            self.restarts += 1;
        }
    }

    /// Takes note that a container that has ended is to be started again at once.
    pub(crate) fn begin_anew(&mut self, now: Timestamp) {
        self.failures = 0;
        self.wait("ContainerCreating", String::new(), now);
    }

    /// When a container that has ended may be started again: at once after the first failure, then after 10 s, 20 s
    /// and so on to 300 s.
    pub(crate) fn restart_at(&self, ended: &Ended) -> Timestamp {
        let Some(doublings) = self.failures.checked_sub(2) else { return ended.at };
        let wait = FIRST_BACKOFF.checked_mul(1 << doublings.min(10)).unwrap_or(MAX_BACKOFF).min(MAX_BACKOFF);
        ended.at.checked_add(wait).unwrap_or(ended.at)
    }
}
