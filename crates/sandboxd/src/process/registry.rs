//! Interactive processes of clients. Each has a number that is not reused while it is in use.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::AsyncRead;
use tokio::process::Child;
use tokio::sync::{mpsc, watch};

use super::follow::{Ending, Event, Sink, Source, pump};
use super::input::{Input, InputError};
use super::memory::{Kills, LINE as OUT_OF_MEMORY};
use super::ring::Ring;
use super::start::{Program, StartError, pid};
use super::terminal::{self, Screen, Size, Terminal};
use super::{Exit, Group};
use crate::reap::Ours;

/// Maximum number of running processes.
pub const RUNNING_LIMIT: usize = 256;
/// Maximum number of running detached processes.
pub const DETACHED_LIMIT: usize = 64;
/// Maximum number of ended detached processes that are kept with their output; the one that ended first is
/// evicted.
pub const ENDED_LIMIT: usize = 32;

/// Maximum pieces of output on their way to the client. When the client does not read, the process waits.
const WAITING_LIMIT: usize = 2;

/// Reason why an operation on a process failed.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// No process has that number, or it has ended.
    #[error("process {0} not found")]
    NotFound(i32),
    /// The process has no terminal.
    #[error("failed to resize TTY: process {0} has no terminal")]
    NoTerminal(i32),
    /// The terminal cannot have that size.
    #[error("failed to resize TTY: {0}")]
    Resize(std::io::Error),
    /// Its output goes to the client that started it.
    #[error("process {0} was not started with detach: its output goes to the client that started it")]
    Attached(i32),
    /// The offset is beyond its output.
    #[error("offset {offset} is beyond the {end} bytes that process {id} has written")]
    Offset {
        /// Number of the process.
        id: i32,
        /// Requested offset.
        offset: u64,
        /// Bytes written so far.
        end: u64,
    },
    /// Its input is closed.
    #[error("process {0} has no stdin")]
    NoStdin(i32),
    /// Its input could not be written.
    #[error(transparent)]
    Input(InputError),
    /// The maximum number of processes run already.
    #[error("{0} processes run already; that is the bound for this kind")]
    TooMany(usize),
    /// The signal could not be sent.
    #[error("cannot signal process {id}: {source}")]
    Signal {
        /// Number of the process.
        id: i32,
        /// Error of the system.
        source: std::io::Error,
    },
    /// The process could not be started.
    #[error(transparent)]
    Start(#[from] StartError),
}

/// Started process.
#[derive(Debug)]
pub struct Started {
    /// Number of the process.
    pub id: i32,
    /// Events until its exit. Dropping them kills the process unless it is detached.
    pub events: Events,
}

/// Events of a process, in order.
#[derive(Debug)]
pub enum Events {
    /// Events of a process that is not detached.
    Attached(mpsc::Receiver<Event>),
    /// Events of a detached process.
    #[allow(private_interfaces)]
    Detached {
        /// Kept output of the process.
        ring: Arc<Ring>,
        /// Offset of the next event.
        offset: u64,
    },
}

impl Events {
    /// Returns the next event; `None` after the exit.
    pub async fn next(&mut self) -> Option<Event> {
        match self {
            Events::Attached(events) => events.recv().await,
            Events::Detached { ring, offset } => {
                let event = ring.next(*offset).await;
                *offset += match &event {
                    Event::Output(_, content) => content.len() as u64,
                    Event::Dropped(bytes) => *bytes,
                    Event::Exit(_) => 0,
                };
                Some(event)
            }
        }
    }
}

/// Process in a listing.
#[derive(Debug)]
pub struct Listed {
    /// Number of the process.
    pub id: i32,
    /// Program and arguments.
    pub command: Vec<String>,
    /// True if it outlives the client that started it.
    pub detached: bool,
    /// True if it has a terminal.
    pub terminal: bool,
    /// Exit, once it has ended.
    pub exit: Option<Exit>,
    /// Offsets of the first kept byte of output and after the last one; 0 and 0 unless it is detached.
    pub output: (u64, u64),
}

#[derive(Debug)]
struct Entry {
    id: i32,
    command: Vec<String>,
    leader: Option<Pid>,
    input: tokio::sync::Mutex<Input>,
    terminal: Option<Arc<Terminal>>,
    ring: Option<Arc<Ring>>,
    exit: watch::Sender<Option<Exit>>,
}

#[derive(Debug, Default)]
struct Table {
    last: i32,
    running: usize,
    detached: usize,
    entries: BTreeMap<i32, Arc<Entry>>,
    /// Detached processes that have ended, in order of their end.
    ended: std::collections::VecDeque<i32>,
}

/// All processes. Cloning is cheap.
#[derive(Debug, Clone)]
pub struct Processes {
    table: Arc<Mutex<Table>>,
    held: Arc<AtomicUsize>,
    chunk: usize,
}

/// Permit for a process in the table, released on drop.
#[derive(Debug)]
struct Place {
    table: Arc<Mutex<Table>>,
    detached: bool,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        table.running -= 1;
        table.detached -= usize::from(self.detached);
    }
}

impl Processes {
    /// Output comes in pieces of at most `chunk` bytes; `held` counts the memory of kept output, which is
    /// shared.
    pub fn new(chunk: usize, held: Arc<AtomicUsize>) -> Processes {
        Processes { table: Arc::default(), held, chunk }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn place(&self, detached: bool) -> Result<Place, ProcessError> {
        let mut table = self.lock();
        if table.running >= RUNNING_LIMIT {
            return Err(ProcessError::TooMany(RUNNING_LIMIT));
        }
        if detached && table.detached >= DETACHED_LIMIT {
            return Err(ProcessError::TooMany(DETACHED_LIMIT));
        }
        table.running += 1;
        table.detached += usize::from(detached);
        Ok(Place { table: self.table.clone(), detached })
    }

    /// Starts a program. Unless it is detached, dropping the events kills it with its group.
    ///
    /// # Errors
    /// There are too many processes, or it cannot be started.
    pub async fn start(
        &self,
        program: Program,
        size: Option<Size>,
        detach: bool,
    ) -> Result<Started, ProcessError> {
        let place = self.place(detach)?;
        let kills = Kills::now();
        let (mut child, terminal) = match size {
            None => (program.start(Stdio::piped())?, None),
            Some(size) => {
                let (child, terminal) = terminal::start(&program, size)?;
                (child, Some(terminal))
            }
        };
        let leader = pid(&child);
        let ours = Ours::register(leader);
        let group = Group(leader);
        let outputs: [Option<Box<dyn AsyncRead + Send + Unpin>>; 2] = match &terminal {
            Some(terminal) => {
                terminal::begun(&mut child, &program).await?;
                [Some(Box::new(Screen(terminal.clone()))), None]
            }
            None => {
                let boxed = |stream| -> Box<dyn AsyncRead + Send + Unpin> { Box::new(stream) };
                [child.stdout.take().map(boxed), child.stderr.take().map(|stream| Box::new(stream) as _)]
            }
        };
        let input = match (&terminal, child.stdin.take()) {
            (Some(terminal), _) => Input::Terminal { terminal: terminal.clone(), at_line_start: true },
            (None, Some(pipe)) => Input::Pipe(pipe),
            (None, None) => Input::None,
        };
        let (sink, events, ring) = self.sink(detach);
        let entry = self.enter(program.argv, leader, input, terminal, ring);
        let id = entry.id;
        let work = Work { child, group, ours, place, outputs, sink, entry, kills };
        tokio::spawn(work.follow(self.clone()));
        Ok(Started { id, events })
    }

    fn sink(&self, detach: bool) -> (Sink, Events, Option<Arc<Ring>>) {
        if detach {
            let ring = Arc::new(Ring::new(&self.held));
            let events = Events::Detached { ring: ring.clone(), offset: 0 };
            return (Sink::Ring(ring.clone()), events, Some(ring));
        }
        let (sender, receiver) = mpsc::channel(WAITING_LIMIT);
        (Sink::Client(sender), Events::Attached(receiver), None)
    }

    fn enter(
        &self,
        command: Vec<String>,
        leader: Option<Pid>,
        input: Input,
        terminal: Option<Arc<Terminal>>,
        ring: Option<Arc<Ring>>,
    ) -> Arc<Entry> {
        let mut table = self.lock();
        // After two billion processes the numbers restart and skip those in use.
        loop {
            table.last = table.last.checked_add(1).unwrap_or(1);
            if !table.entries.contains_key(&table.last) {
                break;
            }
        }
        let (id, input, exit) = (table.last, tokio::sync::Mutex::new(input), watch::Sender::new(None));
        let entry = Arc::new(Entry { id, command, leader, input, terminal, ring, exit });
        table.entries.insert(id, entry.clone());
        entry
    }

    fn find(&self, id: i32) -> Result<Arc<Entry>, ProcessError> {
        self.lock().entries.get(&id).cloned().ok_or(ProcessError::NotFound(id))
    }

    /// Returns a process that has not ended.
    fn running(&self, id: i32) -> Result<Arc<Entry>, ProcessError> {
        let entry = self.find(id)?;
        let ended = entry.exit.borrow().is_some();
        if ended { Err(ProcessError::NotFound(id)) } else { Ok(entry) }
    }

    /// Writes to a process; waits while it does not read.
    ///
    /// # Errors
    /// There is no such process, or its input is closed or cannot be written.
    pub async fn write(&self, id: i32, content: &[u8]) -> Result<(), ProcessError> {
        let entry = self.running(id)?;
        let write = async { entry.input.lock().await.write(content).await };
        entry.unless_it_ends(write).await
    }

    /// Ends the input of a process; at a terminal as `^D` does.
    ///
    /// # Errors
    /// There is no such process, or its input is closed already.
    pub async fn end_input(&self, id: i32) -> Result<(), ProcessError> {
        let entry = self.running(id)?;
        let end = async { entry.input.lock().await.end().await };
        entry.unless_it_ends(end).await
    }

    /// Signals the group of a process and, at a terminal, the foreground job.
    ///
    /// # Errors
    /// There is no such process, or the system refuses.
    pub fn signal(&self, id: i32, signal: Signal) -> Result<(), ProcessError> {
        let entry = self.running(id)?;
        let Some(leader) = entry.leader else { return Err(ProcessError::NotFound(id)) };
        if let Some(terminal) = &entry.terminal {
            terminal.signal_foreground(leader, signal);
        }
        kill_process_group(leader, signal).map_err(|errno| ProcessError::Signal { id, source: errno.into() })
    }

    /// Resizes the terminal of a process.
    ///
    /// # Errors
    /// There is no such process, or it has no terminal.
    pub fn resize(&self, id: i32, size: Size) -> Result<(), ProcessError> {
        let entry = self.running(id)?;
        let terminal = entry.terminal.as_ref().ok_or(ProcessError::NoTerminal(id))?;
        terminal.resize(size).map_err(ProcessError::Resize)
    }

    /// Returns the output of a detached process from `offset` on, then its exit.
    ///
    /// # Errors
    /// There is no such process, it is not detached, or it has not written that much.
    pub fn connect(&self, id: i32, offset: u64) -> Result<Events, ProcessError> {
        let entry = self.find(id)?;
        let ring = entry.ring.clone().ok_or(ProcessError::Attached(id))?;
        let (_, end) = ring.offsets();
        match offset > end {
            true => Err(ProcessError::Offset { id, offset, end }),
            false => Ok(Events::Detached { ring, offset }),
        }
    }

    /// Waits for a process to end.
    ///
    /// # Errors
    /// There is no such process.
    pub async fn wait(&self, id: i32) -> Result<Exit, ProcessError> {
        let mut exit = self.find(id)?.exit.subscribe();
        let ended = exit.wait_for(Option::is_some).await.map(|exit| *exit);
        ended.ok().flatten().ok_or(ProcessError::NotFound(id))
    }

    /// Lists all processes by number.
    pub fn list(&self) -> Vec<Listed> {
        let table = self.lock();
        let listed = table.entries.values().map(|entry| Listed {
            id: entry.id,
            command: entry.command.clone(),
            detached: entry.ring.is_some(),
            terminal: entry.terminal.is_some(),
            exit: *entry.exit.borrow(),
            output: entry.ring.as_ref().map_or((0, 0), |ring| ring.offsets()),
        });
        listed.collect()
    }

    /// Called after the last output: only a detached process is kept.
    fn ended(&self, entry: &Entry) {
        let mut table = self.lock();
        if entry.ring.is_none() {
            table.entries.remove(&entry.id);
            return;
        }
        table.ended.push_back(entry.id);
        if table.ended.len() > ENDED_LIMIT
            && let Some(first) = table.ended.pop_front()
        {
            table.entries.remove(&first);
        }
    }
}

impl Entry {
    /// Runs an operation on a process; returns early if the process ends.
    async fn unless_it_ends(
        &self,
        work: impl Future<Output = Result<(), InputError>>,
    ) -> Result<(), ProcessError> {
        let mut exit = self.exit.subscribe();
        tokio::select! {
            biased;
            done = work => done.map_err(|error| match error {
                InputError::Closed => ProcessError::NoStdin(self.id),
                error => ProcessError::Input(error),
            }),
            _ = exit.wait_for(Option::is_some) => Err(ProcessError::NotFound(self.id)),
        }
    }
}

/// Task that follows a process to its end.
struct Work {
    // Dropped in this order: the group is killed before its leader is reaped, so that the number cannot
    // belong to another process.
    group: Group,
    child: Child,
    ours: Ours,
    place: Place,
    outputs: [Option<Box<dyn AsyncRead + Send + Unpin>>; 2],
    sink: Sink,
    entry: Arc<Entry>,
    kills: Kills,
}

impl Work {
    async fn follow(self, processes: Processes) {
        let Work { mut group, mut child, ours, place, outputs: [stdout, stderr], sink, entry, kills } = self;
        let (ending, ended) = Ending::pair();
        let wait = async {
            let status = tokio::select! {
                biased;
                status = child.wait() => status,
                () = sink.abandoned() => {
                    group.kill();
                    child.wait().await
                }
            };
            // From here on the number may belong to another process.
            group.0 = None;
            let exit = status.map_or(Exit::Signal(0), Exit::of);
            entry.exit.send_replace(Some(exit));
            drop((ours, place));
            ending.tell();
            exit
        };
        let (exit, (), ()) = tokio::join!(
            wait,
            pump(stdout, Source::Stdout, &sink, processes.chunk, &ended),
            pump(stderr, Source::Stderr, &sink, processes.chunk, &ended),
        );
        if kills.explain(exit) {
            // At a terminal there is one output, and a line ends with both characters.
            let (source, line) = match &entry.terminal {
                Some(_) => (Source::Stdout, OUT_OF_MEMORY.replace('\n', "\r\n").into()),
                None => (Source::Stderr, Bytes::from_static(OUT_OF_MEMORY.as_bytes())),
            };
            // A client that has disconnected does not read it.
            let _ = sink.put(source, line).await;
        }
        processes.ended(&entry);
        sink.end(exit).await;
    }
}
