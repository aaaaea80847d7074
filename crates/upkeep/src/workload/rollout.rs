//! The arithmetic of a Deployment: how many replicas each of its ReplicaSets shall have.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::share::share;

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
        let surge = share_or_quarter(surge, replicas, true);
        let unavailable = share_or_quarter(unavailable, replicas, false);
        // With both zero nothing could move.
        let unavailable = if surge == 0 && unavailable == 0 { 1 } else { unavailable };
        Self::Rolling { surge, unavailable }
    }
}

/// A number or percentage of the replicas; a quarter by default.
fn share_or_quarter(value: Option<&IntOrString>, replicas: i32, round_up: bool) -> i32 {
    let quarter = || share(&IntOrString::String("25%".into()), replicas, round_up);
    value.and_then(|value| share(value, replicas, round_up)).or_else(quarter).unwrap_or(0).max(0)
}

/// A sum of replicas, which no number of ReplicaSets can overflow.
pub(super) fn sum(numbers: impl IntoIterator<Item = i32>) -> i32 {
    numbers.into_iter().fold(0, i32::saturating_add)
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
    let there = i64::from(new.wanted);
    let all = there + old.iter().map(|set| i64::from(set.wanted)).sum::<i64>();
    let room = (i64::from(wanted) + i64::from(surge) - all).max(0);
    number(there + room.min(i64::from(wanted) - there))
}

fn shrink(wanted: i32, unavailable: i32, new: Replicas, old: &[Replicas]) -> Vec<i32> {
    let mut sizes: Vec<i64> = old.iter().map(|set| i64::from(set.wanted)).collect();
    let (wanted_new, available_new) = (i64::from(new.wanted), i64::from(new.available));
    let all = wanted_new + sizes.iter().sum::<i64>();
    let least = i64::from(wanted) - i64::from(unavailable);
    let mut budget = (all - least - (wanted_new - available_new).max(0)).max(0);
    // Sets without available Pods shrink first: they cost no availability.
    for (size, set) in sizes.iter_mut().zip(old) {
        let useless = (*size - i64::from(set.available)).clamp(0, budget);
        *size -= useless;
        budget -= useless;
    }
    let available = available_new + old.iter().map(|set| i64::from(set.available)).sum::<i64>();
    let mut budget = budget.min((available - least).max(0));
    for size in &mut sizes {
        let useful = (*size).clamp(0, budget);
        *size -= useful;
        budget -= useful;
    }
    sizes.into_iter().map(number).collect()
}

fn number(size: i64) -> i32 {
    i32::try_from(size).unwrap_or(i32::MAX)
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
        assert_eq!(share_or_quarter(None, 2, true), 1);
        assert_eq!(share_or_quarter(None, 2, false), 0);
        assert_eq!(share_or_quarter(Some(&percent("50%")), 3, true), 2);
        assert_eq!(share_or_quarter(Some(&percent("50%")), 3, false), 1);
        assert_eq!(share_or_quarter(Some(&IntOrString::Int(4)), 3, false), 4);
        assert_eq!(share_or_quarter(Some(&percent("100%")), i32::MAX, true), i32::MAX);
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
    fn sizes_of_any_numbers_can_be_counted() {
        let most = set(i32::MAX, i32::MAX);
        let strategy = Strategy::Rolling { surge: i32::MAX, unavailable: i32::MAX };
        assert_eq!(sizes(i32::MAX, strategy, most, &[most, most]), (i32::MAX, vec![0, 0]));
        let none = Strategy::Rolling { surge: i32::MAX, unavailable: 0 };
        assert_eq!(sizes(i32::MAX, none, set(0, 0), &[set(7, i32::MIN)]), (i32::MAX, vec![7]));
        assert_eq!(sum([i32::MAX, 1, i32::MAX]), i32::MAX);
    }

    #[test]
    fn recreation_waits_for_the_last_old_one() {
        assert_eq!(sizes(2, Strategy::Recreate, set(0, 0), &[set(2, 2)]), (0, vec![0]));
        let ending = Replicas { wanted: 0, there: 1, available: 0 };
        assert_eq!(sizes(2, Strategy::Recreate, set(0, 0), &[ending]), (0, vec![0]));
        assert_eq!(sizes(2, Strategy::Recreate, set(0, 0), &[set(0, 0)]), (2, vec![0]));
    }
}
