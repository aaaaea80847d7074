//! Property test: every order of requests, probes, failures, terminations and restarts keeps the invariants.

use proptest::prelude::*;

use super::*;

/// Next event of the environment; results of actions arrive in the order of the actions.
#[derive(Debug, Clone, Copy)]
enum Event {
    Enter,
    Visit,
    Again,
    GiveUp,
    Leave,
    Quiet,
    LongQuiet,
    /// The write to swap is over.
    PagedOut(bool),
    /// The oldest pending action completes, with success or failure.
    Done(bool),
    Save,
    /// The memory on disk is given up.
    Dropped,
    Begun,
    End,
    Ended,
    /// The process that holds the machine dies with all its state.
    Restart,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let one = prop_oneof![
        6 => Just(Event::Enter),
        2 => Just(Event::Visit),
        6 => Just(Event::Again),
        2 => Just(Event::GiveUp),
        6 => Just(Event::Leave),
        6 => Just(Event::Quiet),
        6 => Just(Event::LongQuiet),
        4 => prop::bool::weighted(0.8).prop_map(Event::PagedOut),
        8 => prop::bool::weighted(0.8).prop_map(Event::Done),
        2 => Just(Event::Save),
        2 => Just(Event::Dropped),
        1 => Just(Event::Begun),
        1 => Just(Event::End),
        1 => Just(Event::Ended),
        1 => Just(Event::Restart),
    ];
    prop::collection::vec(one, 0..120)
}

/// The machine and a model of its visitors.
#[derive(Default)]
struct World {
    machine: Machine,
    inside: u32,
    waiting: u32,
    under_way: std::collections::VecDeque<Act>,
    /// `true` while the processes are frozen, according to the completed actions.
    still: bool,
    /// A thaw failed, and the frozen processes were killed.
    killed: bool,
    /// Their memory is on disk: they are killed as they stand.
    saved: bool,
    /// A write to swap runs.
    paging: bool,
    /// The phase was left in which that write began.
    given_up: bool,
}

impl World {
    fn happen(&mut self, event: Event) {
        match event {
            Event::Enter => self.ask(Input::Enter),
            Event::Visit => self.ask(Input::Visit),
            Event::Again if self.waiting > 0 => {
                self.waiting -= 1;
                self.ask(Input::Again);
            }
            Event::GiveUp if self.waiting > 0 => {
                self.waiting -= 1;
                self.tell(Input::GiveUp);
            }
            Event::Leave if self.inside > 0 => {
                self.inside -= 1;
                self.tell(Input::Leave);
            }
            Event::Quiet => self.tell(Input::Quiet),
            Event::LongQuiet => self.tell(Input::LongQuiet),
            Event::PagedOut(complete) if self.paging => {
                let (before, given_up) = (self.machine.phase(), self.given_up);
                (self.paging, self.given_up) = (false, false);
                self.tell(Input::PagedOut(complete));
                let after = self.machine.phase();
                match (given_up, complete) {
                    (true, _) => {
                        assert_eq!(after, before, "a report of a write that was given up has no effect")
                    }
                    (false, true) => assert_eq!(after, Phase::PagedOut),
                    (false, false) => assert_eq!(after, Phase::Frozen),
                }
            }
            Event::Done(well) => self.done(well),
            // The node restarts the Pod only in response to a failure.
            Event::Begun if self.machine.phase() == Phase::Failed => {
                self.still = false;
                self.tell(Input::Begun);
            }
            Event::Save => self.tell(Input::Save),
            // The processes run again before that is reported.
            Event::Dropped if self.machine.phase() == Phase::Saved => {
                (self.still, self.saved) = (false, false);
                self.tell(Input::Dropped);
            }
            Event::End => self.tell(Input::End),
            Event::Ended => self.tell(Input::Ended),
            Event::Restart => *self = World::default(),
            Event::Again
            | Event::GiveUp
            | Event::Leave
            | Event::Begun
            | Event::Dropped
            | Event::PagedOut(_) => {}
        }
        self.given_up |= self.paging && self.machine.phase() != Phase::PagingOut;
    }

    fn ask(&mut self, input: Input) {
        let act = self.machine.step(input);
        match act {
            Act::Admit => {
                assert!(!self.still, "no visitor is admitted while frozen");
                assert!(self.under_way.is_empty(), "nor while that changes");
                self.inside += 1;
            }
            Act::Wait | Act::Thaw if input != Input::Visit => {
                self.waiting += 1;
                self.take(act);
            }
            Act::Refuse => {
                let phase = self.machine.phase();
                assert!(
                    matches!(phase, Phase::Saved | Phase::Suspending | Phase::Suspended | Phase::Failed),
                    "{phase:?}"
                );
            }
            Act::Wait => {}
            Act::Nothing | Act::Freeze | Act::Thaw | Act::PageOut | Act::Save => {
                panic!("{act:?} to {input:?}")
            }
        }
    }

    fn tell(&mut self, input: Input) {
        let act = self.machine.step(input);
        self.take(act);
    }

    fn take(&mut self, act: Act) {
        match act {
            Act::Freeze => {
                assert_eq!((self.inside, self.waiting), (0, 0), "frozen with a visitor inside");
                self.under_way.push_back(act);
            }
            Act::Thaw => self.under_way.push_back(act),
            Act::Save => {
                assert!(
                    !self.still && self.under_way.is_empty(),
                    "saved while frozen, or while that changes"
                );
                self.under_way.push_back(act);
            }
            Act::PageOut => {
                assert!(self.still && !self.paging, "one write at a time, of frozen processes");
                assert_eq!((self.inside, self.waiting), (0, 0), "written to swap with a visitor inside");
                self.paging = true;
            }
            Act::Nothing | Act::Wait => {}
            Act::Admit | Act::Refuse => panic!("{act:?} without a question"),
        }
    }

    fn done(&mut self, well: bool) {
        match self.under_way.pop_front() {
            // A failed freeze was thawed.
            Some(Act::Freeze) => {
                self.still = well;
                self.tell(Input::Stopped(well));
            }
            Some(Act::Save) => {
                (self.still, self.saved) = (well, well);
                self.tell(Input::Saved(well));
            }
            Some(Act::Thaw) => {
                self.still &= !well;
                self.killed |= !well;
                self.tell(Input::Going(well));
            }
            _ => {}
        }
    }

    fn check(&self) {
        assert_eq!(self.machine.inside, self.inside);
        assert_eq!(self.machine.waiting, self.waiting);
        let phase = self.machine.phase();
        match phase {
            Phase::Running => assert!(self.inside > 0 && !self.still),
            Phase::Idle => assert!(self.inside == 0 && !self.still),
            Phase::Freezing => assert_eq!(self.under_way.front(), Some(&Act::Freeze)),
            Phase::Frozen | Phase::PagingOut | Phase::PagedOut => {
                assert!(self.still && self.inside == 0 && self.waiting == 0);
                assert!(self.under_way.is_empty(), "frozen while that changes");
                assert_eq!(phase == Phase::PagingOut, self.paging && !self.given_up);
            }
            Phase::Saving => assert_eq!(self.under_way.front(), Some(&Act::Save)),
            Phase::Saved => assert!(self.still && self.under_way.is_empty(), "saved and not still"),
            Phase::Resuming => assert_eq!(self.under_way.back(), Some(&Act::Thaw), "a visitor waits forever"),
            Phase::Suspending | Phase::Suspended | Phase::Failed => {}
        }
        let thaws = self.under_way.iter().filter(|act| **act == Act::Thaw).count();
        let ending = matches!(phase, Phase::Suspending | Phase::Suspended);
        assert!(thaws <= if ending { 2 } else { 1 }, "woken {thaws} times at once");
    }
}

proptest! {
    #[test]
    fn frozen_pod_never_admits_a_visitor(events in events()) {
        let mut world = World::default();
        for event in events {
            world.happen(event);
            world.check();
        }
    }

    #[test]
    fn waiting_visitor_is_admitted_or_refused(events in events()) {
        let mut world = World::default();
        for event in events {
            world.happen(event);
        }
        // The write to swap is not reported: no visitor waits for it.
        while !world.under_way.is_empty() {
            world.happen(Event::Done(true));
        }
        let waiting = world.waiting;
        for _ in 0..waiting {
            world.happen(Event::Again);
        }
        prop_assert_eq!(world.waiting, 0);
    }

    #[test]
    fn terminating_pod_is_never_frozen(events in events()) {
        let mut world = World::default();
        for event in events {
            world.happen(event);
        }
        world.happen(Event::End);
        while !world.under_way.is_empty() {
            world.happen(Event::Done(true));
        }
        // A failed thaw kills the processes.
        prop_assert!(!world.still || world.killed || world.saved || world.machine.phase() == Phase::Suspended);
    }
}

#[test]
fn concurrent_requests_thaw_a_frozen_pod_once() {
    let mut machine = Machine::default();
    assert_eq!(machine.step(Input::Quiet), Act::Freeze);
    assert_eq!(machine.step(Input::Stopped(true)), Act::Nothing);
    let acts: Vec<Act> = (0..1000).map(|_| machine.step(Input::Enter)).collect();
    assert_eq!(acts.iter().filter(|act| **act == Act::Thaw).count(), 1);
    assert_eq!(machine.step(Input::Visit), Act::Wait, "a probe waits and wakes no Pod");
    machine.step(Input::Going(true));
    assert!((0..1000).all(|_| machine.step(Input::Again) == Act::Admit));
    assert_eq!((machine.phase(), machine.inside()), (Phase::Running, 1000));
    assert_eq!(machine.step(Input::Quiet), Act::Nothing);
}

/// A machine that is paging out.
fn paging_out() -> Machine {
    let mut machine = Machine::default();
    machine.step(Input::Quiet);
    machine.step(Input::Stopped(true));
    assert_eq!(machine.step(Input::LongQuiet), Act::PageOut);
    machine
}

#[test]
fn request_thaws_a_pod_that_is_paging_out_or_paged_out() {
    for reports in [vec![], vec![true], vec![false]] {
        let mut machine = paging_out();
        for complete in reports {
            machine.step(Input::PagedOut(complete));
        }
        assert_eq!(machine.step(Input::Visit), Act::Wait, "a probe wakes no Pod");
        assert_eq!(machine.step(Input::Enter), Act::Thaw);
        machine.step(Input::Going(true));
        assert_eq!(machine.step(Input::Again), Act::Admit, "it does not wait for the write to swap");
    }
}

#[test]
fn late_report_of_a_write_to_swap_is_not_taken_for_that_of_the_next() {
    let mut machine = paging_out();
    machine.step(Input::Enter);
    machine.step(Input::Going(true));
    machine.step(Input::Again);
    machine.step(Input::Leave);
    machine.step(Input::Quiet);
    machine.step(Input::Stopped(true));
    assert_eq!(machine.step(Input::LongQuiet), Act::Nothing, "the first write still runs");
    machine.step(Input::PagedOut(true));
    assert_eq!(machine.phase(), Phase::Frozen);
    assert_eq!(machine.step(Input::LongQuiet), Act::PageOut);
    machine.step(Input::PagedOut(true));
    assert_eq!(machine.phase(), Phase::PagedOut);
    assert_eq!(machine.step(Input::LongQuiet), Act::Nothing, "once is enough");
}

#[test]
fn termination_thaws_a_paged_out_pod() {
    let mut machine = paging_out();
    assert_eq!(machine.step(Input::End), Act::Thaw);
    machine.step(Input::PagedOut(true));
    assert_eq!(machine.phase(), Phase::Suspending);
    let mut machine = paging_out();
    machine.step(Input::PagedOut(true));
    assert_eq!(machine.step(Input::End), Act::Thaw);
}
