//! The arithmetic of a Deployment: how many replicas each of its ReplicaSets shall have.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// Replicas of a ReplicaSet: wanted, there, and available.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Replicas {
    pub(super) wanted: i32,
    pub(super) there: i32,
    pub(super) available: i32,
}

/// How a Deployment moves from one template to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Strategy {
    /// All old ones end before the first new one starts.
    Recreate,
    /// Never more than so many beyond the wanted number, nor fewer available than so many below.
    Rolling { surge: i32, unavailable: i32 },
}

impl Strategy {
    pub(super) fn of(deployment: &Deployment) -> Self {
        let spec = deployment.spec.as_ref();
        let strategy = spec.and_then(|spec| spec.strategy.as_ref());
        if strategy.and_then(|strategy| strategy.type_.as_deref()) == Some("Recreate") {
            return Self::Recreate;
        }
        let replicas = spec.and_then(|spec| spec.replicas).unwrap_or(1);
        let rolling = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
        let surge = rolling.and_then(|rolling| rolling.max_surge.as_ref());
        let unavailable = rolling.and_then(|rolling| rolling.max_unavailable.as_ref());
        let surge = share(surge, replicas, true);
        let unavailable = share(unavailable, replicas, false);
        // With both zero nothing could move.
        let unavailable = if surge == 0 && unavailable == 0 { 1 } else { unavailable };
        Self::Rolling { surge, unavailable }
    }
}

/// A number or percentage of the replicas; a quarter by default.
fn share(value: Option<&IntOrString>, replicas: i32, round_up: bool) -> i32 {
    let percent = match value {
        Some(IntOrString::Int(number)) => return (*number).max(0),
        Some(IntOrString::String(text)) => text.trim_end_matches('%').parse().unwrap_or(25),
        None => 25,
    };
    let hundredfold = i64::from(replicas) * i64::from(percent.max(0));
    let rounded = if round_up { (hundredfold + 99) / 100 } else { hundredfold / 100 };
    i32::try_from(rounded).unwrap_or(i32::MAX)
}

/// New sizes: of the ReplicaSet of the current template, and of the old ones, oldest first.
pub(super) fn sizes(wanted: i32, strategy: Strategy, new: Replicas, old: &[Replicas]) -> (i32, Vec<i32>) {
    match strategy {
        Strategy::Recreate => {
            let quiet = old.iter().all(|set| set.there == 0 && set.wanted == 0);
            (if quiet { wanted } else { new.wanted.min(wanted) }, vec![0; old.len()])
        }
        Strategy::Rolling { surge, unavailable } => {
            (grow(wanted, surge, new, old), shrink(wanted, unavailable, new, old))
        }
    }
}

fn grow(wanted: i32, surge: i32, new: Replicas, old: &[Replicas]) -> i32 {
    if new.wanted >= wanted {
        return wanted;
    }
    let all = new.wanted + old.iter().map(|set| set.wanted).sum::<i32>();
    let room = (wanted + surge - all).max(0);
    new.wanted + room.min(wanted - new.wanted)
}

fn shrink(wanted: i32, unavailable: i32, new: Replicas, old: &[Replicas]) -> Vec<i32> {
    let mut sizes: Vec<i32> = old.iter().map(|set| set.wanted).collect();
    let all = new.wanted + sizes.iter().sum::<i32>();
    let least = wanted - unavailable;
    let mut budget = (all - least - (new.wanted - new.available).max(0)).max(0);
    // Sets without available Pods shrink first: they cost no availability.
    for (size, set) in sizes.iter_mut().zip(old) {
        let useless = (*size - set.available).clamp(0, budget);
        *size -= useless;
        budget -= useless;
    }
    let available = new.available + old.iter().map(|set| set.available).sum::<i32>();
    let mut budget = budget.min((available - least).max(0));
    for size in &mut sizes {
        let useful = (*size).clamp(0, budget);
        *size -= useful;
        budget -= useful;
    }
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(wanted: i32, available: i32) -> Replicas {
        Replicas { wanted, there: wanted, available }
    }

    #[test]
    fn shares_are_rounded_to_the_safe_side() {
        let percent = |text: &str| IntOrString::String(text.into());
        assert_eq!(share(None, 2, true), 1);
        assert_eq!(share(None, 2, false), 0);
        assert_eq!(share(Some(&percent("50%")), 3, true), 2);
        assert_eq!(share(Some(&percent("50%")), 3, false), 1);
        assert_eq!(share(Some(&IntOrString::Int(4)), 3, false), 4);
        assert_eq!(share(Some(&percent("100%")), i32::MAX, true), i32::MAX);
    }

    #[test]
    fn a_rolling_update_keeps_its_bounds_at_every_step() {
        let table = [
            // wanted, surge, unavailable, new, old -> sizes
            (2, 1, 0, set(0, 0), vec![], (2, vec![])),
            (2, 1, 0, set(0, 0), vec![set(2, 2)], (1, vec![2])),
            (2, 1, 0, set(1, 0), vec![set(2, 2)], (1, vec![2])),
            (2, 1, 0, set(1, 1), vec![set(2, 2)], (1, vec![1])),
            (2, 1, 0, set(1, 1), vec![set(1, 1)], (2, vec![1])),
            (2, 1, 0, set(2, 2), vec![set(1, 1)], (2, vec![0])),
            (2, 0, 1, set(0, 0), vec![set(2, 2)], (0, vec![1])),
            (2, 0, 1, set(0, 0), vec![set(1, 1)], (1, vec![1])),
            // Old ones that never became available make room at once.
            (2, 1, 0, set(1, 0), vec![set(2, 0)], (1, vec![2])),
            (2, 1, 0, set(1, 1), vec![set(2, 0)], (1, vec![1])),
            // Scaling while nothing rolls.
            (5, 2, 1, set(2, 2), vec![set(0, 0)], (5, vec![0])),
            (1, 1, 0, set(3, 3), vec![], (1, vec![])),
        ];
        for (wanted, surge, unavailable, new, old, expected) in table {
            let strategy = Strategy::Rolling { surge, unavailable };
            assert_eq!(sizes(wanted, strategy, new, &old), expected, "{wanted} {strategy:?} {new:?} {old:?}");
        }
    }

    #[test]
    fn recreation_waits_for_the_last_old_one() {
        assert_eq!(sizes(2, Strategy::Recreate, set(0, 0), &[set(2, 2)]), (0, vec![0]));
        let ending = Replicas { wanted: 0, there: 1, available: 0 };
        assert_eq!(sizes(2, Strategy::Recreate, set(0, 0), &[ending]), (0, vec![0]));
        assert_eq!(sizes(2, Strategy::Recreate, set(0, 0), &[set(0, 0)]), (2, vec![0]));
    }
}
