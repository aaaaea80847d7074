//! Memory of the scanner between the messages of a sandbox.

use std::collections::{HashMap, HashSet};
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{SystemTime, UNIX_EPOCH};

use hutch_scan::{At, Calls, Direction, Finding, Hosts, Location, Pins, Session, State};
use tokio::task::JoinError;

use super::elsewhere::Places;
use super::{Judged, Scan, scanner};

/// Maximum destinations and sessions that are remembered. The client chooses the names of sessions, and the pins of one take
/// up to 100 KiB.
const TALKS: usize = 128;
/// Maximum names that are not scanned again.
const NAMES: usize = 4096;

/// Memory of a sandbox.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    names: Mutex<Names>,
    talks: Mutex<Talks>,
    places: Places,
}

#[derive(Debug)]
struct Names {
    hosts: Hosts,
    state: State,
    /// The same in capitals: the case may be lost, and the forms of some secrets are in capitals.
    capitals: State,
    passed: HashSet<String>,
}

impl Default for Names {
    fn default() -> Names {
        let [state, capitals] = [(); 2].map(|()| State::new(Direction::Outbound));
        Names { hosts: Hosts::default(), state, capitals, passed: HashSet::new() }
    }
}

#[derive(Debug, Default)]
struct Talks {
    /// Each with the time of its last use.
    all: HashMap<String, (u64, SharedTalk)>,
    uses: u64,
}

/// Conversation with one destination, or one session with it.
#[derive(Debug, Clone)]
pub(crate) struct Talk {
    /// Messages of MCP and A2A.
    pub(super) session: Session,
}

/// Conversation that requests share: facts about the destination or the session, and the calls of the conversation.
#[derive(Debug, Clone, Default)]
pub(crate) struct SharedTalk {
    talk: Arc<Mutex<Talk>>,
    /// Earlier URLs. They have a lock of their own: the scan of a body can take long.
    urls: Arc<Mutex<Urls>>,
    /// Earlier bodies that are short and no messages of MCP and A2A: each can have a piece of a secret.
    bodies: Arc<Mutex<Bodies>>,
    calls: Arc<Called>,
    /// Those of the sandbox.
    pub(super) places: Places,
}

#[derive(Debug)]
struct Urls(State);

impl Default for Urls {
    fn default() -> Urls {
        Urls(State::new(Direction::Outbound))
    }
}

/// Earlier bodies.
#[derive(Debug, Clone)]
pub(super) struct Bodies(State);

impl Default for Bodies {
    fn default() -> Bodies {
        Bodies(State::new(Direction::Outbound).joining_bodies())
    }
}

impl Bodies {
    /// Scans a short body together with earlier ones.
    pub(super) fn scan(&mut self, scan: &Scan, body: &[u8]) -> Vec<Finding> {
        self.0.set_credentials(scan.exact.clone());
        scanner().scan_whole(&mut self.0, &Location::new(At::Body), body)
    }
}

/// Calls of one conversation.
#[derive(Debug, Default)]
struct Called {
    calls: Mutex<Calls>,
    /// Calls of conversations that have ended, with which the next one begins: a client may connect for each call.
    ended: Option<Arc<Called>>,
}

impl Drop for Called {
    fn drop(&mut self) {
        if let Some(ended) = self.ended.take() {
            *lock(&ended.calls) = std::mem::take(&mut *lock(&self.calls));
        }
    }
}

impl SharedTalk {
    /// Returns another conversation with the same destination, which begins with the calls of those that have ended.
    fn another(&self) -> SharedTalk {
        let calls = Mutex::new(lock(&self.calls.calls).clone());
        let calls = Arc::new(Called { calls, ended: Some(self.calls.clone()) });
        SharedTalk { calls, ..self.clone() }
    }

    /// Locks earlier bodies, until it is known whether this one is sent: another one must not undo what it adds.
    pub(super) fn bodies(&self) -> MutexGuard<'_, Bodies> {
        lock(&self.bodies)
    }

    /// Runs a scan on another thread, when the sandbox has a place.
    pub(crate) fn elsewhere<T: Send + 'static>(
        &self,
        scan: impl FnOnce() -> T + Send + 'static,
    ) -> impl Future<Output = Result<T, JoinError>> + Send {
        self.places.run(scan)
    }

    /// Returns true while a body of the conversation is scanned.
    pub(crate) fn is_busy(&self) -> bool {
        matches!(self.talk.try_lock(), Err(TryLockError::WouldBlock))
            || matches!(self.bodies.try_lock(), Err(TryLockError::WouldBlock))
    }

    /// Locks the conversation.
    pub(super) fn enter(&self) -> Entered<'_> {
        let (mut talk, mut calls) = (lock(&self.talk), lock(&self.calls.calls));
        std::mem::swap(&mut talk.session.calls, &mut calls);
        Entered { talk, calls }
    }
}

/// Conversation that is locked.
pub(super) struct Entered<'a> {
    talk: MutexGuard<'a, Talk>,
    calls: MutexGuard<'a, Calls>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        std::mem::swap(&mut self.talk.session.calls, &mut self.calls);
    }
}

impl Deref for Entered<'_> {
    type Target = Talk;

    fn deref(&self) -> &Talk {
        &self.talk
    }
}

impl DerefMut for Entered<'_> {
    fn deref_mut(&mut self) -> &mut Talk {
        &mut self.talk
    }
}

/// Conversations of one connection, by destination, of requests that name no session.
#[derive(Debug, Clone, Default)]
pub(crate) struct Conversations(Arc<Mutex<HashMap<String, SharedTalk>>>);

impl Conversations {
    /// Returns the conversation with a destination.
    pub(crate) fn talk(&self, memory: &Memory, destination: String) -> SharedTalk {
        let mut all = lock(&self.0);
        if let Some(talk) = all.get(&destination) {
            return talk.clone();
        }
        if all.len() >= TALKS {
            all.clear();
        }
        let talk = memory.talk(destination.clone()).another();
        all.insert(destination, talk.clone());
        talk
    }
}

impl Default for Talk {
    fn default() -> Talk {
        let [outbound, inbound] = [Direction::Outbound, Direction::Inbound].map(State::new);
        Talk { session: Session::new(outbound, inbound, Pins::default()) }
    }
}

impl Talk {
    /// Begins a new session with a server, whose definitions are not known yet.
    pub(super) fn begin(&mut self) {
        self.session.pins = Pins::default();
    }
}

/// Returns what a lock holds, also after a panic elsewhere.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Memory {
    /// Returns a conversation. Of too many, the one that was not used for longest is forgotten.
    pub(crate) fn talk(&self, name: String) -> SharedTalk {
        let mut talks = lock(&self.talks);
        talks.uses += 1;
        let now = talks.uses;
        if talks.all.len() >= TALKS && !talks.all.contains_key(&name) {
            let oldest = talks.all.iter().min_by_key(|(_, (used, _))| *used).map(|(name, _)| name.clone());
            oldest.and_then(|name| talks.all.remove(&name));
        }
        let new = || (now, SharedTalk { places: self.places.clone(), ..SharedTalk::default() });
        let entry = talks.all.entry(name).or_insert_with(new);
        entry.0 = now;
        entry.1.clone()
    }

    /// Returns the conversation of a session, whose name the client chooses. URLs and other bodies are those of the destination.
    pub(crate) fn session(&self, destination: String, session: &str) -> SharedTalk {
        let own = self.talk(format!("{destination} {session}"));
        let SharedTalk { urls, bodies, .. } = self.talk(destination);
        SharedTalk { urls, bodies, ..own }
    }

    /// Scans a host name that the sandbox uses, as it was written.
    pub(crate) fn host(&self, scan: &Scan, name: &str) -> Judged {
        let mut names = lock(&self.names);
        if names.passed.contains(name) {
            return Judged::default();
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let before = (names.state.clone(), names.capitals.clone());
        let Names { hosts, state, capitals, passed } = &mut *names;
        state.set_credentials(scan.exact.clone());
        capitals.set_credentials(scan.exact.clone());
        let mut findings = hosts.observe(scanner(), state, name, now);
        findings.extend(hosts.scan(scanner(), capitals, &name.to_ascii_uppercase()));
        let judged = scan.refuse_redacted(Direction::Outbound, scan.judge(Direction::Outbound, findings));
        match judged.blocked {
            Some(_) => (*state, *capitals) = before,
            None if passed.len() < NAMES => drop(passed.insert(name.to_owned())),
            None => {}
        }
        judged
    }

    /// Has host names that passed scanned again, because what is looked for in them has changed.
    pub(crate) fn forget_passed(&self) {
        lock(&self.names).passed.clear();
    }
}

impl Scan {
    /// Scans the target of a request.
    pub(crate) fn url(&self, talk: &SharedTalk, target: &str) -> Judged {
        let Urls(urls) = &mut *lock(&talk.urls);
        let before = urls.clone();
        urls.set_credentials(self.exact.clone());
        let findings = scanner().scan_whole(urls, &Location::new(At::Url), target.as_bytes());
        let judged = self.refuse_redacted(Direction::Outbound, self.judge(Direction::Outbound, findings));
        if judged.blocked.is_some() {
            *urls = before;
        }
        judged
    }
}
