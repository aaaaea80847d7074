//! The states of one life of a Pod between awake and asleep: a pure function of what happens.

/// Where a Pod is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Phase {
    /// Awake, with somebody inside.
    Running,
    /// Awake, with nobody inside.
    #[default]
    Idle,
    /// Its processes are being stopped.
    Freezing,
    /// Its processes stand still.
    Frozen,
    /// It is being ended: for good, or to sleep on disk.
    Suspending,
    /// It has ended. The next life has another machine.
    Suspended,
    /// Its processes are being let go on.
    Resuming,
    /// Its processes could not be let go on; whoever runs the Pod has to start them anew.
    Failed,
}

/// What happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {
    /// Somebody wants in, and wakes it for that.
    Enter,
    /// Somebody wants in when it is awake, and does not wake it: a probe.
    Visit,
    /// One of those who wait asks again.
    Again,
    /// One of those who wait goes away.
    GiveUp,
    /// One of those inside goes away.
    Leave,
    /// It has been idle for long enough.
    Quiet,
    /// The processes stand still, or could not be stopped.
    Stopped(bool),
    /// The processes go on, or could not be let go on.
    Going(bool),
    /// The processes were started anew.
    Begun,
    /// It is to end.
    End,
    /// It has ended.
    Ended,
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// Nothing.
    Nothing,
    /// Whoever asked is inside now, and has to leave.
    Admit,
    /// Whoever asked waits for the next change, and asks again or gives up. A visitor counts for nothing meanwhile.
    Wait,
    /// Whoever asked cannot come in any more.
    Refuse,
    /// Stop the processes, and say how that went. Never while somebody is inside or waits.
    Freeze,
    /// Let the processes go on, and say how that went. Whoever asked waits.
    Thaw,
}

/// One life of a Pod.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Machine {
    phase: Phase,
    inside: u32,
    waiting: u32,
}

impl Machine {
    /// Where it is.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// How many are inside.
    pub fn inside(&self) -> u32 {
        self.inside
    }

    /// Takes note of what happened, and tells what is to be done.
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
            // Its end began meanwhile, which a process that stands still cannot take part in.
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
