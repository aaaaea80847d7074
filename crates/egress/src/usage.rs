//! Counters of a sandbox, and the use of the budgets of its levels.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hutch_policy::{Authority, Budget, Destination, Host, Level, Mode, Session};

use crate::refusal::Reason;

/// Amount within a window of time. The window begins with the first use after the last one has passed.
#[derive(Default)]
struct Window {
    began: Option<Instant>,
    amount: u64,
}

impl Window {
    /// Returns the amount that is used in the window.
    fn used(&mut self, per: Duration, now: Instant) -> u64 {
        if self.began.is_some_and(|began| now.duration_since(began) >= per) {
            *self = Window::default();
        }
        self.amount
    }

    fn add(&mut self, amount: u64, now: Instant) {
        self.began.get_or_insert(now);
        self.amount = self.amount.saturating_add(amount);
    }
}

/// Use of the budget of one level.
#[derive(Default)]
struct Meter {
    requests: Window,
    bytes: Window,
    hosts: HashSet<Host>,
}

/// Counters of a sandbox.
#[derive(Default)]
pub(crate) struct Usage {
    denials: AtomicU64,
    requests: AtomicU64,
    bytes_out: AtomicU64,
    /// By authority and name of the level, so that a changed level continues.
    meters: Mutex<HashMap<(Authority, String), Meter>>,
}

/// Returns the budgets of the levels that decide.
fn budgets(levels: &[Arc<Level>]) -> impl Iterator<Item = (&Level, &Budget)> {
    let enforcing = levels.iter().filter(|level| level.mode == Mode::Enforce);
    enforcing.filter_map(|level| Some((&**level, level.egress.as_ref()?.budget.as_ref()?)))
}

impl Usage {
    pub(crate) fn session(&self) -> Session {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Session {
            denials: value(&self.denials),
            requests: value(&self.requests),
            bytes_out: value(&self.bytes_out),
        }
    }

    pub(crate) fn denied(&self) {
        self.denials.fetch_add(1, Ordering::Relaxed);
    }

    fn meters(&self) -> MutexGuard<'_, HashMap<(Authority, String), Meter>> {
        self.meters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a request, or a connection that is not read. Nothing is counted if a budget is used up.
    ///
    /// # Errors
    /// The budget that is used up.
    pub(crate) fn request(&self, levels: &[Arc<Level>], destination: &Destination) -> Result<(), Reason> {
        if budgets(levels).next().is_some() {
            let (now, mut meters) = (Instant::now(), self.meters());
            for (level, budget) in budgets(levels) {
                let meter = meters.entry((level.authority, level.name.clone())).or_default();
                exhausted(budget, meter, destination, now)
                    .map_or(Ok(()), |what| Err(Reason::Budget(level.name.clone(), what)))?;
            }
            for (level, budget) in budgets(levels) {
                let meter = meters.entry((level.authority, level.name.clone())).or_default();
                meter.requests.add(1, now);
                if budget.hosts.is_some() {
                    meter.hosts.insert(destination.host.clone());
                }
            }
        }
        self.requests.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Counts bytes that the sandbox sends.
    ///
    /// # Errors
    /// The budget that is used up. The bytes must then not be sent.
    pub(crate) fn sent(&self, levels: &[Arc<Level>], bytes: usize) -> Result<(), Reason> {
        let bytes = bytes as u64;
        self.bytes_out.fetch_add(bytes, Ordering::Relaxed);
        if budgets(levels).all(|(_, budget)| budget.bytes_out.is_none()) {
            return Ok(());
        }
        let (now, mut meters) = (Instant::now(), self.meters());
        for (level, budget) in budgets(levels) {
            let (Some(most), Some(per)) = (budget.bytes_out, budget.per) else { continue };
            let meter = meters.entry((level.authority, level.name.clone())).or_default();
            if meter.bytes.used(per.duration(), now).saturating_add(bytes) > most.count() {
                return Err(Reason::Budget(level.name.clone(), bytes_out(budget)));
            }
            meter.bytes.add(bytes, now);
        }
        Ok(())
    }
}

fn bytes_out(budget: &Budget) -> String {
    let (most, per) = (budget.bytes_out.map_or(0, |most| most.count()), budget.per);
    format!("bytesOut: {most} bytes per {}", per.map(|per| per.to_string()).unwrap_or_default())
}

/// Returns the part of a budget that is used up before a further request.
fn exhausted(budget: &Budget, meter: &mut Meter, destination: &Destination, now: Instant) -> Option<String> {
    if let (Some(most), Some(per)) = (budget.requests, budget.requests_per)
        && meter.requests.used(per.duration(), now) >= most
    {
        return Some(format!("requests: {most} per {per}"));
    }
    if let (Some(most), Some(per)) = (budget.bytes_out, budget.per)
        && meter.bytes.used(per.duration(), now) >= most.count()
    {
        return Some(bytes_out(budget));
    }
    let known = meter.hosts.contains(&destination.host);
    match budget.hosts {
        Some(most) if !known && meter.hosts.len() as u64 >= most => Some(format!("hosts: {most}")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn level(budget: &str) -> Vec<Arc<Level>> {
        let egress = format!(r#"{{"rules": [], "budget": {budget}}}"#);
        vec![Arc::new(Level::new(Authority::Namespace, "p", Some(serde_json::from_str(&egress).unwrap())))]
    }

    fn to(host: &str) -> Destination {
        host.parse().unwrap()
    }

    #[test]
    fn requests_and_hosts_are_counted_up_to_the_budget() {
        let usage = Usage::default();
        let levels = level(r#"{"requests": 3, "requestsPer": "1h", "hosts": 2}"#);
        for host in ["a.example", "b.example", "a.example"] {
            usage.request(&levels, &to(host)).unwrap();
        }
        let error = usage.request(&levels, &to("a.example")).unwrap_err().to_string();
        assert_eq!(error, "the budget of policy \"p\" is used up: requests: 3 per 3600s");
        let levels = level(r#"{"hosts": 2}"#);
        assert!(usage.request(&levels, &to("c.example")).unwrap_err().to_string().contains("hosts: 2"));
        usage.request(&levels, &to("b.example")).unwrap();
        assert_eq!(usage.session().requests, 4);
    }

    #[test]
    fn bytes_beyond_the_budget_are_not_sent() {
        let usage = Usage::default();
        let levels = level(r#"{"bytesOut": 10, "per": "1h"}"#);
        usage.sent(&levels, 6).unwrap();
        assert!(usage.sent(&levels, 5).unwrap_err().to_string().contains("bytesOut: 10 bytes per 3600s"));
        usage.sent(&levels, 4).unwrap();
        assert!(usage.sent(&levels, 1).is_err());
        assert!(usage.request(&levels, &to("a.example")).is_err(), "no new request either");
    }

    #[test]
    fn window_begins_anew_when_its_time_has_passed() {
        let (mut window, per, start) = (Window::default(), Duration::from_secs(10), Instant::now());
        window.add(3, start);
        assert_eq!(window.used(per, start + Duration::from_secs(9)), 3);
        assert_eq!(window.used(per, start + Duration::from_secs(10)), 0);
    }
}
