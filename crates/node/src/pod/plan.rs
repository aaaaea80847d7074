//! The next step for a Pod: a pure function of its containers and the time.

use jiff::Timestamp;

use super::state::{Life, NEVER, Role, State};

/// `spec.restartPolicy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RestartPolicy {
    Always,
    OnFailure,
    Never,
}

impl RestartPolicy {
    pub(crate) fn parse(name: Option<&str>) -> RestartPolicy {
        match name {
            Some("OnFailure") => RestartPolicy::OnFailure,
            Some("Never") => RestartPolicy::Never,
            _ => RestartPolicy::Always,
        }
    }
}

/// `status.phase`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Pending,
    Running,
    Succeeded,
    Failed,
}

impl Phase {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Phase::Pending => "Pending",
            Phase::Running => "Running",
            Phase::Succeeded => "Succeeded",
            Phase::Failed => "Failed",
        }
    }

    pub(crate) fn is_final(self) -> bool {
        matches!(self, Phase::Succeeded | Phase::Failed)
    }
}

/// A container to start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Start {
    /// Its place in the list.
    pub(crate) index: usize,
    /// `true` if its root file system is kept from its last run. Kubernetes begins each run with a fresh root: only
    /// volumes are kept.
    pub(crate) keep_root: bool,
}

/// The next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Containers to start.
    pub(crate) start: Vec<Start>,
    /// Containers to stop: sidecars and ephemeral containers whose Pod is done.
    pub(crate) stop: Vec<usize>,
    /// Containers that wait for their back-off to pass.
    pub(crate) backing_off: Vec<usize>,
    /// Time of the next reconcile when no event comes before.
    pub(crate) wake: Option<Timestamp>,
    /// All init containers are done.
    pub(crate) initialized: bool,
    pub(crate) phase: Phase,
}

/// Plans the next step. `states` holds the init containers first, in their order.
pub(crate) fn plan(states: &[State], policy: RestartPolicy, now: Timestamp) -> Plan {
    let mut plan = plan_of_spec(states, policy, now);
    plan_ephemeral(&mut plan, states, now);
    plan
}

/// Plans the next step without regard to ephemeral containers.
fn plan_of_spec(states: &[State], policy: RestartPolicy, now: Timestamp) -> Plan {
    let mut plan = Plan {
        start: Vec::new(),
        stop: Vec::new(),
        backing_off: Vec::new(),
        wake: None,
        initialized: false,
        phase: Phase::Pending,
    };
    let first = |(_, state): &(usize, &State)| matches!(state.role, Role::Init | Role::Sidecar);
    for (index, state) in states.iter().enumerate().filter(first) {
        match (&state.role, &state.life) {
            (_, Life::Waiting { .. }) => {
                plan.begin(index, state, now);
                return plan;
            }
            (_, Life::Starting) | (Role::Init, Life::Running { .. }) => return plan,
            (Role::Init, Life::Ended(ended)) if ended.code == 0 => {}
            (Role::Init, Life::Ended(_)) if policy == RestartPolicy::Never => {
                plan.phase = Phase::Failed;
                return plan;
            }
            (Role::Init, Life::Ended(_)) => {
                plan.restart(index, state, now);
                return plan;
            }
            // Once the Pod's containers run, a sidecar that restarts does not hold them up.
            (_, Life::Ended(_)) => {
                plan.restart(index, state, now);
                if !any_main_began(states) {
                    return plan;
                }
            }
            (_, Life::Running { .. }) if !state.started && !any_main_began(states) => return plan,
            (_, Life::Running { .. }) => {}
        }
    }
    plan.initialized = true;
    plan_main(&mut plan, states, policy, now);
    plan
}

fn plan_main(plan: &mut Plan, states: &[State], policy: RestartPolicy, now: Timestamp) {
    let (mut unstarted, mut undone, mut failed) = (false, false, false);
    for (index, state) in states.iter().enumerate().filter(|(_, s)| s.role == Role::Main) {
        match &state.life {
            Life::Waiting { .. } => {
                plan.begin(index, state, now);
                undone = true;
                unstarted |= state.last.is_none();
            }
            Life::Starting => {
                undone = true;
                unstarted |= state.last.is_none();
            }
            Life::Running { .. } => undone = true,
            Life::Ended(ended) => {
                let again = match policy {
                    RestartPolicy::Always => true,
                    RestartPolicy::OnFailure => ended.code != 0,
                    RestartPolicy::Never => false,
                };
                if again {
                    undone = true;
                    plan.restart(index, state, now);
                } else {
                    failed |= ended.code != 0;
                }
            }
        }
    }
    plan.phase = match (undone, unstarted, failed) {
        (true, true, _) => Phase::Pending,
        (true, false, _) => Phase::Running,
        (false, _, true) => Phase::Failed,
        (false, _, false) => Phase::Succeeded,
    };
    if plan.phase.is_final() {
        plan.start.clear();
        plan.wake = None;
        let running =
            |s: &State| s.role == Role::Sidecar && matches!(s.life, Life::Running { .. } | Life::Starting);
        plan.stop.extend(states.iter().enumerate().filter(|(_, s)| running(s)).map(|(index, _)| index));
    }
}

/// Adds the ephemeral containers, which start once, at any time before the end of the Pod.
fn plan_ephemeral(plan: &mut Plan, states: &[State], now: Timestamp) {
    for (index, state) in states.iter().enumerate().filter(|(_, s)| s.role == Role::Ephemeral) {
        match &state.life {
            Life::Waiting { .. } if state.hold == Some(NEVER) || plan.phase.is_final() => {}
            Life::Waiting { .. } => plan.begin(index, state, now),
            Life::Running { .. } if plan.phase.is_final() => plan.stop.push(index),
            Life::Starting | Life::Running { .. } | Life::Ended(_) => {}
        }
    }
}

fn any_main_began(states: &[State]) -> bool {
    states.iter().any(|s| s.role == Role::Main && !matches!(s.life, Life::Waiting { .. }))
}

impl Plan {
    fn begin(&mut self, index: usize, state: &State, now: Timestamp) {
        match state.hold.filter(|until| *until > now) {
            Some(until) => self.wake = Some(self.wake.map_or(until, |wake| wake.min(until))),
            None => self.start(index),
        }
    }

    fn start(&mut self, index: usize) {
        self.start.push(Start { index, keep_root: false });
    }

    fn restart(&mut self, index: usize, state: &State, now: Timestamp) {
        let Life::Ended(ended) = &state.life else { return };
        let at = state.restart_at(ended);
        if at <= now {
            self.start(index);
        } else {
            self.backing_off.push(index);
            self.wake = Some(self.wake.map_or(at, |wake| wake.min(at)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::state::Ended;
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    /// `w` waiting, `r` running, `s` running and started, `0` ended well, `1` failed once, `2` failed twice (at 100 s).
    fn state(role: Role, sign: char) -> State {
        let mut state = State::new("c", role, "i");
        let ended = |code| Ended {
            code,
            signal: None,
            reason: String::new(),
            message: None,
            started: Some(at(99)),
            at: at(100),
        };
        match sign {
            'w' => {}
            'r' => state.life = Life::Running { since: at(99) },
            's' => state.run(at(99)),
            '0' => state.end(ended(0)),
            '1' => state.end(ended(1)),
            '2' => {
                state.end(ended(1));
                state.end(ended(1));
            }
            _ => unreachable!(),
        }
        state
    }

    fn states(text: &str) -> Vec<State> {
        let roles = [Role::Init, Role::Sidecar, Role::Main, Role::Ephemeral];
        let parts = text.split('/').zip(roles);
        parts.flat_map(|(signs, role)| signs.chars().map(move |sign| state(role, sign))).collect()
    }

    #[test]
    fn next_steps() {
        use Phase::{Failed, Pending, Running, Succeeded};
        use RestartPolicy::{Always, Never, OnFailure};
        // init/sidecar/main, policy, now -> start, stop, backing off, phase, initialized
        type Row<'a> = (&'a str, RestartPolicy, i64, &'a [usize], &'a [usize], &'a [usize], Phase, bool);
        let rows: &[Row<'_>] = &[
            ("//w", Always, 100, &[0], &[], &[], Pending, true),
            ("//ww", Always, 100, &[0, 1], &[], &[], Pending, true),
            ("//s", Always, 100, &[], &[], &[], Running, true),
            ("//0", Always, 100, &[0], &[], &[], Running, true),
            ("//0", OnFailure, 100, &[], &[], &[], Succeeded, true),
            ("//1", OnFailure, 100, &[0], &[], &[], Running, true),
            ("//2", OnFailure, 100, &[], &[], &[0], Running, true),
            ("//2", OnFailure, 110, &[0], &[], &[], Running, true),
            ("//1", Never, 100, &[], &[], &[], Failed, true),
            ("//01", Never, 100, &[], &[], &[], Failed, true),
            ("//0s", Never, 100, &[], &[], &[], Running, true),
            ("w//w", Always, 100, &[0], &[], &[], Pending, false),
            ("s//w", Always, 100, &[], &[], &[], Pending, false),
            ("0w//w", Always, 100, &[1], &[], &[], Pending, false),
            ("00//w", Always, 100, &[2], &[], &[], Pending, true),
            ("1//w", Always, 100, &[0], &[], &[], Pending, false),
            ("1//w", Never, 100, &[], &[], &[], Failed, false),
            ("/w/w", Always, 100, &[0], &[], &[], Pending, false),
            ("/r/w", Always, 100, &[], &[], &[], Pending, false),
            ("/s/w", Always, 100, &[1], &[], &[], Pending, true),
            ("/1/s", Always, 100, &[0], &[], &[], Running, true),
            ("/s/0", Never, 100, &[], &[0], &[], Succeeded, true),
            // The Pod does not depend on ephemeral containers.
            ("//s/w", Always, 100, &[1], &[], &[], Running, true),
            ("s//w/w", Always, 100, &[2], &[], &[], Pending, false),
            ("//s/1", Always, 100, &[], &[], &[], Running, true),
            ("//s/2", Always, 110, &[], &[], &[], Running, true),
            ("//0/1", Never, 100, &[], &[], &[], Succeeded, true),
            ("//0/s", Never, 100, &[], &[1], &[], Succeeded, true),
            ("//0/w", Never, 100, &[], &[], &[], Succeeded, true),
            ("1//w/s", Never, 100, &[], &[2], &[], Failed, false),
        ];
        for (text, policy, now, start, stop, backing_off, phase, initialized) in rows {
            let got = plan(&states(text), *policy, at(*now));
            let begun: Vec<usize> = got.start.iter().map(|start| start.index).collect();
            assert!(got.start.iter().all(|start| !start.keep_root), "{text}");
            let got = (&begun[..], &got.stop[..], &got.backing_off[..], got.phase, got.initialized);
            assert_eq!(got, (*start, *stop, *backing_off, *phase, *initialized), "{text} {policy:?}");
        }
    }

    #[test]
    fn what_keeps_a_container_is_tried_again_later() {
        let mut states = states("//w");
        states[0].wait("ErrImagePull", "no".into(), at(110));
        let before = plan(&states, RestartPolicy::Always, at(100));
        assert_eq!(
            (before.start.is_empty(), before.wake, before.phase),
            (true, Some(at(110)), Phase::Pending)
        );
        assert_eq!(
            plan(&states, RestartPolicy::Always, at(110)).start,
            [Start { index: 0, keep_root: false }]
        );
    }

    #[test]
    fn waits_double_and_stop_at_five_minutes() {
        let mut state = state(Role::Main, 'w');
        let mut waits = Vec::new();
        for _ in 0..8 {
            let ended = Ended {
                code: 1,
                signal: None,
                reason: String::new(),
                message: None,
                started: None,
                at: at(0),
            };
            state.end(ended.clone());
            waits.push(state.restart_at(&ended).as_second());
        }
        assert_eq!(waits, [0, 10, 20, 40, 80, 160, 300, 300]);
        let long = Ended {
            code: 1,
            signal: None,
            reason: String::new(),
            message: None,
            started: Some(at(0)),
            at: at(601),
        };
        state.end(long.clone());
        assert_eq!(state.restart_at(&long), at(601), "a long life begins the count anew");
    }
}
