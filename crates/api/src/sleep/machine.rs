//! State machine of one instance of a Pod between awake and asleep: a pure function of events.

/// State of a Pod.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Phase {
    /// Awake, with open connections.
    Running,
    /// Awake, without connections.
    #[default]
    Idle,
    /// Its processes are being frozen.
    Freezing,
    /// Its processes are frozen.
    Frozen,
    /// It is terminating: for good, or to be suspended.
    Suspending,
    /// It has terminated. The next instance has its own machine.
    Suspended,
    /// Its processes are being thawed.
    Resuming,
    /// Thawing failed; the node has to restart the processes.
    Failed,
}

/// An event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {
    /// A visitor requests entry and wakes the Pod.
    Enter,
    /// A visitor requests entry only if the Pod is awake, and does not wake it: a probe.
    Visit,
    /// A waiting visitor retries.
    Again,
    /// A waiting visitor gives up.
    GiveUp,
    /// A visitor that was admitted leaves.
    Leave,
    /// The idle time has passed.
    Quiet,
    /// Freezing succeeded or failed.
    Stopped(bool),
    /// Thawing succeeded or failed.
    Going(bool),
    /// The processes were restarted.
    Begun,
    /// Termination begins.
    End,
    /// Termination is complete.
    Ended,
}

/// Action that the caller must perform.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// No action.
    Nothing,
    /// The visitor is admitted, and must leave later.
    Admit,
    /// The visitor waits for the next change, and retries or gives up. A waiting probe is not counted.
    Wait,
    /// The visitor is refused: the Pod is terminating or has terminated.
    Refuse,
    /// Freeze the processes and report the result. Never while a visitor is admitted or waits.
    Freeze,
    /// Thaw the processes and report the result. The visitor waits.
    Thaw,
}

/// One instance of a Pod.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Machine {
    phase: Phase,
    inside: u32,
    waiting: u32,
}

impl Machine {
    /// State of the Pod.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Number of admitted visitors.
    pub fn inside(&self) -> u32 {
        self.inside
    }

    /// Applies an event and returns the action to perform.
    pub fn step(&mut self, input: Input) -> Act {
        use Phase::{Failed, Freezing, Frozen, Idle, Resuming, Running, Suspended, Suspending};
        match (input, self.phase) {
            (Input::Enter | Input::Visit, Running | Idle) => self.admit(),
            (Input::Again, Running | Idle) => {
                self.waiting = self.waiting.saturating_sub(1);
                self.admit()
            }
            (Input::Enter, Freezing | Resuming) => {
                self.waiting += 1;
                Act::Wait
            }
            (Input::Enter, Frozen) => {
                self.waiting += 1;
                self.thaw()
            }
            (Input::Again, Freezing | Resuming) | (Input::Visit, Freezing | Frozen | Resuming | Failed) => {
                Act::Wait
            }
            (Input::Again, Frozen) => self.thaw(),
            (Input::Again, Suspending | Suspended | Failed) => {
                self.waiting = self.waiting.saturating_sub(1);
                Act::Refuse
            }
            (Input::Enter, Suspending | Suspended | Failed) | (Input::Visit, Suspending | Suspended) => {
                Act::Refuse
            }
            (Input::GiveUp, _) => {
                self.waiting = self.waiting.saturating_sub(1);
                Act::Nothing
            }
            (Input::Leave, _) => {
                self.inside = self.inside.saturating_sub(1);
                self.settle()
            }
            (Input::Quiet, Idle) if self.inside + self.waiting == 0 => {
                self.phase = Freezing;
                Act::Freeze
            }
            (Input::Stopped(true), Freezing) if self.waiting == 0 => {
                self.phase = Frozen;
                Act::Nothing
            }
            (Input::Stopped(_), Freezing) => self.thaw(),
            // Termination began meanwhile, and a frozen process cannot handle it.
            (Input::Stopped(_), Suspending) => Act::Thaw,
            (Input::Going(true), Resuming) | (Input::Begun, Failed) => {
                self.phase = Idle;
                self.settle()
            }
            (Input::Going(false), Resuming) => {
                self.phase = Failed;
                Act::Nothing
            }
            (Input::End, Suspending | Suspended) => Act::Nothing,
            (Input::End, phase) => {
                self.phase = Suspending;
                if matches!(phase, Running | Idle) { Act::Nothing } else { Act::Thaw }
            }
            (Input::Ended, _) => {
                self.phase = Suspended;
                Act::Nothing
            }
            (Input::Quiet | Input::Stopped(_) | Input::Going(_) | Input::Begun, _) => Act::Nothing,
        }
    }

    fn admit(&mut self) -> Act {
        self.inside += 1;
        self.phase = Phase::Running;
        Act::Admit
    }

    fn thaw(&mut self) -> Act {
        self.phase = Phase::Resuming;
        Act::Thaw
    }

    fn settle(&mut self) -> Act {
        if matches!(self.phase, Phase::Running | Phase::Idle) {
            self.phase = if self.inside == 0 { Phase::Idle } else { Phase::Running };
        }
        Act::Nothing
    }
}

#[cfg(test)]
mod tests;
