//! Impersonation of another user, as by `kubectl --as`: the `Impersonate-*` headers.
//!
//! There are five modes, tried in order. The first four allow single verbs while impersonating (`impersonate-on:MODE:VERB`
//! and `impersonate:MODE`); the last one, `impersonate`, allows all verbs. The refusal is that of the first mode that
//! fits.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};

use axum::extract::Request;
use http::HeaderMap;

use super::{Access, Action, RequestAction, denied};
use crate::Identity;
use crate::failure::Failure;
use crate::identity::{ANONYMOUS, AUTHENTICATED, MASTERS, UNAUTHENTICATED, split_service_account};
use crate::query::{Query, percent_decode};

const AUTHENTICATION: &str = "authentication.k8s.io";
/// Start of the names of nodes' identities.
const NODE: &str = "system:node:";
/// Group of all nodes.
const NODES: &str = "system:nodes";
const PREFIX: &str = "impersonate-";
const EXTRA: &str = "impersonate-extra-";
/// Key in a ServiceAccount's token of the node of its Pod.
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";

/// Maximum callers whose mode is remembered. When there are more, all are forgotten: only the order of the tries changes.
const REMEMBERED: usize = 1024;

/// A way of impersonating.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    AssociatedNode,
    ArbitraryNode,
    ServiceAccount,
    UserInfo,
    Legacy,
}

impl Mode {
    const ALL: [Mode; 5] =
        [Mode::AssociatedNode, Mode::ArbitraryNode, Mode::ServiceAccount, Mode::UserInfo, Mode::Legacy];

    fn name(self) -> &'static str {
        match self {
            Mode::AssociatedNode => "associated-node",
            Mode::ArbitraryNode => "arbitrary-node",
            Mode::ServiceAccount => "serviceaccount",
            Mode::UserInfo => "user-info",
            Mode::Legacy => "",
        }
    }

    fn fits(self, caller: &Identity, wanted: &Identity) -> bool {
        let alone = wanted.groups.is_empty() && wanted.uid.is_empty() && wanted.extra.is_empty();
        let node = wanted.name.strip_prefix(NODE).filter(|name| !name.is_empty());
        let account = split_service_account(&wanted.name).is_some();
        match self {
            Mode::AssociatedNode => {
                let own = caller.extra.get(NODE_NAME).and_then(|names| names.first());
                alone
                    && node.is_some()
                    && own.map(String::as_str) == node
                    && split_service_account(&caller.name).is_some()
            }
            Mode::ArbitraryNode => alone && node.is_some(),
            Mode::ServiceAccount => alone && account,
            Mode::UserInfo => node.is_none() && !account,
            Mode::Legacy => true,
        }
    }
}

/// The mode by which each caller has impersonated last: it is tried first.
#[derive(Debug, Default)]
pub(super) struct Memory(Mutex<HashMap<String, Mode>>);

impl Memory {
    fn of(&self, caller: &Identity) -> Option<Mode> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&caller.name).copied()
    }

    fn set(&self, caller: &Identity, mode: Mode) {
        let mut modes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if modes.len() >= REMEMBERED && !modes.contains_key(&caller.name) {
            modes.clear();
        }
        modes.insert(caller.name.clone(), mode);
    }
}

/// The identity that a request is answered for: the caller's own, or the one that its headers name.
pub(crate) fn impersonated(
    access: &Access,
    caller: Identity,
    request: &mut Request,
) -> Result<Identity, Failure> {
    let named = |headers: &HeaderMap| {
        let names = headers.keys().filter(|name| name.as_str().starts_with(PREFIX));
        names.cloned().collect::<Vec<_>>()
    };
    let named = named(request.headers());
    if named.is_empty() {
        return Ok(caller);
    }
    let wanted = wanted(request.headers());
    for name in named {
        request.headers_mut().remove(name);
    }
    let query = Query::of(request.uri()).ok();
    let action = RequestAction::of(request.method().as_str(), request.uri().path(), query.as_ref());
    let Identity { name, uid, groups, extra } = &wanted;
    if name.is_empty() {
        if uid.is_empty() && groups.is_empty() && extra.is_empty() {
            return Ok(caller);
        }
        return Err(Failure::bad_request(format!(
            "requested {} without impersonating a user name",
            shown(&wanted)
        )));
    }
    let mut refusal = None;
    let known = access.impersonations.of(&caller);
    let others = Mode::ALL.into_iter().filter(|mode| Some(*mode) != known);
    for mode in known.into_iter().chain(others).filter(|mode| mode.fits(&caller, &wanted)) {
        match attempt(access, &caller, &wanted, mode, &action) {
            Ok(identity) => {
                access.impersonations.set(&caller, mode);
                return Ok(identity);
            }
            Err(failure) => refusal = refusal.or(Some(failure)),
        }
    }
    Err(refusal.unwrap_or_else(|| Failure::internal("all impersonation modes failed")))
}

/// Returns the identity in the headers, unchecked.
fn wanted(headers: &HeaderMap) -> Identity {
    let all = |name: &str| {
        let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
        values.map(str::to_owned).collect::<Vec<_>>()
    };
    let first = |name: &str| all(name).into_iter().next().unwrap_or_default();
    let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for name in headers.keys() {
        if let Some(key) = name.as_str().strip_prefix(EXTRA) {
            let key = percent_decode(key).unwrap_or_else(|| key.to_owned());
            extra.entry(key).or_default().extend(all(name.as_str()));
        }
    }
    Identity {
        name: first("impersonate-user"),
        uid: first("impersonate-uid"),
        groups: all("impersonate-group"),
        extra,
    }
}

/// The wanted identity in Go's notation, in which a Kubernetes API server shows it.
fn shown(wanted: &Identity) -> String {
    let strings = |texts: &[String]| {
        let quoted: Vec<String> = texts.iter().map(|text| format!("{text:?}")).collect();
        format!("[]string{{{}}}", quoted.join(", "))
    };
    let groups = if wanted.groups.is_empty() { "[]string(nil)".into() } else { strings(&wanted.groups) };
    let extra: Vec<String> =
        wanted.extra.iter().map(|(key, values)| format!("{key:?}:{}", strings(values))).collect();
    let extra = if extra.is_empty() { "(nil)".into() } else { format!("{{{}}}", extra.join(", ")) };
    format!(
        "&user.DefaultInfo{{Name:\"\", UID:{:?}, Groups:{groups}, Extra:map[string][]string{extra}}}",
        wanted.uid
    )
}

/// Checks everything that a mode requires, and completes the identity.
fn attempt(
    access: &Access,
    caller: &Identity,
    wanted: &Identity,
    mode: Mode,
    request: &RequestAction,
) -> Result<Identity, Failure> {
    let constrained = mode != Mode::Legacy;
    let verb = if constrained { format!("impersonate:{}", mode.name()) } else { "impersonate".into() };
    let group = if constrained { AUTHENTICATION } else { "" };
    if constrained {
        let action = request.action();
        let on = format!("impersonate-on:{}:{}", mode.name(), action.verb());
        access.check(caller, action.by(&on))?;
    }
    let mut identity = wanted.clone();
    if let Some((namespace, name)) = split_service_account(&wanted.name) {
        access.check(caller, Action::on(&verb, group, "serviceaccounts", name).inside(namespace))?;
        if wanted.groups.is_empty() {
            let all = format!("system:serviceaccounts:{namespace}");
            identity.groups = vec!["system:serviceaccounts".into(), all];
        }
    } else if let Some(name) = wanted.name.strip_prefix(NODE).filter(|name| constrained && !name.is_empty()) {
        let name = if mode == Mode::AssociatedNode { "*" } else { name };
        access.check(caller, Action::on(&verb, group, "nodes", name))?;
        identity.groups = vec![NODES.into()];
    } else {
        access.check(caller, Action::on(&verb, group, "users", &wanted.name))?;
    }
    if !wanted.uid.is_empty() {
        access.check(caller, Action::on(&verb, AUTHENTICATION, "uids", &wanted.uid))?;
    }
    check_groups(access, caller, wanted, (&verb, group), constrained)?;
    for (key, values) in &wanted.extra {
        for value in values {
            access.check(caller, Action::on(&verb, AUTHENTICATION, "userextras", value).below(key))?;
        }
    }
    let implied = if identity.name == ANONYMOUS { UNAUTHENTICATED } else { AUTHENTICATED };
    let has = |group: &str| identity.groups.iter().any(|own| own == group);
    if !has(implied) && !has(UNAUTHENTICATED) {
        identity.groups.push(implied.into());
    }
    Ok(identity)
}

/// Four or more groups are allowed together by the name `*`.
fn check_groups(
    access: &Access,
    caller: &Identity,
    wanted: &Identity,
    (verb, group): (&str, &str),
    constrained: bool,
) -> Result<(), Failure> {
    const MANY: usize = 4;
    if constrained {
        if wanted.groups.iter().any(String::is_empty) {
            let why = "impersonating the empty string group is not allowed";
            return Err(denied(caller, Action::on(verb, group, "groups", ""), why));
        }
        if wanted.groups.iter().any(|group| group == MASTERS) {
            let why = "impersonating the system:masters group is not allowed";
            return Err(denied(caller, Action::on(verb, group, "groups", MASTERS), why));
        }
        let all = Action::on(verb, group, "groups", "*");
        if wanted.groups.len() >= MANY && access.decide(caller, &all).allowed {
            return Ok(());
        }
    }
    for name in &wanted.groups {
        access.check(caller, Action::on(verb, group, "groups", name))?;
    }
    Ok(())
}
