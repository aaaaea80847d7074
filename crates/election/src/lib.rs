//! Leader election on a `coordination.k8s.io/v1` Lease, with the record and the rules of client-go, so that Go and Rust
//! replicas of one program exclude each other.
//!
//! [`Elector`] takes, renews and releases the Lease. [`Term`] says until when this process leads. [`Guard`] is a layer
//! of the client of everything that only a leader may do: it refuses a request that would change something once the term
//! is over, whichever part notices that first.
//!
//! It refuses to decide what a process does that lost its Lease; ending it is the only thing that is known to be right.

mod clock;
mod elector;
mod error;
mod guard;
mod record;
mod term;

pub use elector::{Elector, Lost, Settings, Timing};
pub use error::Error;
pub use guard::{Guard, Guarded};
pub use term::Term;
