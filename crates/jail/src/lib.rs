//! The native isolation: namespaces, mounts, capabilities, seccomp, Landlock, cgroups, and a small init inside.
//!
//! It takes a [`Spec`] and gives a [`Jail`]. It refuses to weaken: what cannot be had is an error that says so.
//! Everything that forks is single-threaded: `hutch run` before its first thread, or the warden program.

pub mod attack;
mod capabilities;
mod cgroup;
mod error;
pub mod facts;
pub mod landlock;
pub mod network;
pub mod quota;
pub mod run;
mod seccomp;
pub mod service;
mod spec;
pub mod warden;

mod channel;
mod dev;
mod event;
mod files;
mod folder;
#[cfg(any(test, feature = "fuzzing"))]
pub mod hostile;
mod ids;
mod init;
mod invariants;
mod launch;
mod privileges;
mod proc;
mod relay;
mod root;
mod sources;
mod spawn;
mod streams;
mod sys;
mod terminal;
mod threads;
mod watcher;

pub use capabilities::Capabilities;
pub use cgroup::{Freezer, PageOut, PageOutEnd, Swap};
pub use error::{Errno, Error};
pub use event::{Event, ProcessExit, Usage};
pub use files::{FileAccess, FileRule, FileRules};
pub use folder::CheckedFolder;
pub use ids::{IdRange, IdRanges};
pub use network::{Capture, Listener, LocalRoute, NetworkPlan, Transport};
pub use run::{Captured, Ended, Isolation, Outcome, RunOptions, run, run_with_listeners};
pub use spec::{
    Ids, Limits, Link, Mount, MountSource, Network, Process, Profile, Root, RuntimeRoot, Spec, Upper, User,
};
pub use sys::{close_inherited_on_exec, erase_variables, forget_program, unblock_signals};
pub use warden::{Jail, NetworkNamespace, Stdio, Warden};
