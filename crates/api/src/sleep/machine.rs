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
    /// Its processes are frozen, and their memory is being written to swap.
    PagingOut,
    /// Its processes are frozen, and their memory was written to swap.
    PagedOut,
    /// The memory of its processes is being written to disk, after which it is suspended.
    Saving,
    /// The memory of its processes is on disk, and they are paused until the Pod is deleted.
    Saved,
    /// It is terminating: for good, or to be suspended.
    Suspending,
    /// It has terminated. The next instance has its own machine.
    Suspended,
    /// Its processes are being thawed.
    Resuming,
    /// Thawing failed; the node has to restart the processes.
    Failed,
}

impl Phase {
    /// Returns true if the processes are frozen, whether or not their memory is in swap.
    pub fn is_frozen(self) -> bool {
        matches!(self, Phase::Frozen | Phase::PagingOut | Phase::PagedOut)
    }
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
    /// The longer idle time has passed, after which memory is written to swap.
    LongQuiet,
    /// The write to swap is over: complete, or given up.
    PagedOut(bool),
    /// A suspend that keeps the memory begins. Admitted visitors do not prevent it; frozen processes do.
    Save,
    /// Memory is on disk, or could not be written.
    Saved(bool),
    /// The memory on disk is no longer wanted, and the processes run again.
    Dropped,
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
    /// Stop the processes, write their memory to disk, and report the result.
    Save,
    /// Write the memory of the frozen processes to swap and report the result. Give up as soon as the phase is no longer
    /// [`Phase::PagingOut`]; a thaw does not wait for the report.
    PageOut,
}

/// One instance of a Pod.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Machine {
    phase: Phase,
    inside: u32,
    waiting: u32,
    /// A write to swap has not been reported yet. A later one waits for that, so that each report has one meaning.
    paging: bool,
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
        use Phase::{
            Failed, Freezing, Frozen, Idle, PagedOut, PagingOut, Resuming, Running, Saved, Saving, Suspended,
            Suspending,
        };
        match (input, self.phase) {
            (Input::Enter | Input::Visit, Running | Idle) => self.admit(),
            (Input::Again, Running | Idle) => {
                self.waiting = self.waiting.saturating_sub(1);
                self.admit()
            }
            (Input::Enter, Freezing | Resuming | Saving) => {
                self.waiting += 1;
                Act::Wait
            }
            (Input::Enter, Frozen | PagingOut | PagedOut) => {
                self.waiting += 1;
                self.thaw()
            }
            (Input::Again, Frozen | PagingOut | PagedOut) => self.thaw(),
            (Input::Again, Freezing | Resuming | Saving) => Act::Wait,
            (Input::Again, Saved | Suspending | Suspended | Failed) => {
                self.waiting = self.waiting.saturating_sub(1);
                Act::Refuse
            }
            (Input::Enter, Saved | Suspending | Suspended | Failed)
            | (Input::Visit, Suspending | Suspended) => Act::Refuse,
            (Input::Visit, _) => Act::Wait,
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
            (Input::LongQuiet, Frozen) if !self.paging => {
                self.paging = true;
                self.phase = PagingOut;
                Act::PageOut
            }
            (Input::PagedOut(complete), _) => self.paged(complete),
            (Input::Stopped(well), _) => self.stopped(well),
            (Input::Going(true), Resuming) | (Input::Begun, Failed) => self.run(),
            (Input::Going(false), Resuming) => {
                self.phase = Failed;
                Act::Nothing
            }
            (Input::End, Suspending | Suspended) => Act::Nothing,
            (Input::End, phase) => {
                self.phase = Suspending;
                if matches!(phase, Running | Idle | Saving | Saved) { Act::Nothing } else { Act::Thaw }
            }
            (Input::Ended, _) => {
                self.phase = Suspended;
                Act::Nothing
            }
            (Input::Save | Input::Saved(_) | Input::Dropped, _) => self.saving(input),
            (Input::Quiet | Input::LongQuiet | Input::Going(_) | Input::Begun, _) => Act::Nothing,
        }
    }

    /// Suspends that keep memory.
    fn saving(&mut self, input: Input) -> Act {
        match (input, self.phase) {
            (Input::Save, Phase::Running | Phase::Idle) => {
                self.phase = Phase::Saving;
                Act::Save
            }
            (Input::Saved(true), Phase::Saving) => {
                self.phase = Phase::Saved;
                Act::Nothing
            }
            (Input::Saved(false), Phase::Saving) | (Input::Dropped, Phase::Saved) => self.run(),
            _ => Act::Nothing,
        }
    }

    /// The processes run.
    fn run(&mut self) -> Act {
        self.phase = Phase::Idle;
        self.settle()
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

    fn stopped(&mut self, well: bool) -> Act {
        match self.phase {
            Phase::Freezing if well && self.waiting == 0 => {
                self.phase = Phase::Frozen;
                Act::Nothing
            }
            Phase::Freezing => self.thaw(),
            // Termination began meanwhile, and a frozen process cannot handle it.
            Phase::Suspending => Act::Thaw,
            _ => Act::Nothing,
        }
    }

    fn paged(&mut self, complete: bool) -> Act {
        self.paging = false;
        if self.phase == Phase::PagingOut {
            self.phase = if complete { Phase::PagedOut } else { Phase::Frozen };
        }
        Act::Nothing
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
