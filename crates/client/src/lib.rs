//! Client of Sandboxes and SandboxClaims behind any Kubernetes API server.
//!
//! Every door to a Sandbox (the command line, REST, MCP, a web console) is a caller of this crate. The crate returns
//! values and typed errors; printing, terminals, exit statuses and the choice of a cluster belong to the caller.
//!
//! [`Sandboxes`] has the functions:
//!
//! - [`find`](Sandboxes::find): the Sandbox that a [`Name`] means, which may be that of a claim;
//! - [`target`](Sandboxes::target), [`container`](Sandboxes::container): a container of a Sandbox, once the Sandbox is
//!   ready or as it is;
//! - [`exec`](Sandboxes::exec): a command in a container, as a [`Session`];
//! - [`copy_in`](Sandboxes::copy_in), [`copy_out`](Sandboxes::copy_out): files as a tar archive;
//!   [`destination`](Sandboxes::destination) and [`Member`] resolve paths;
//! - [`logs`](Sandboxes::logs): output of the main process;
//! - [`port_forward`](Sandboxes::port_forward): a connection to a port;
//! - [`suspend`](Sandboxes::suspend), [`resume`](Sandboxes::resume): the Sandbox after the change;
//! - [`snapshot`](Sandboxes::snapshot), [`restore`](Sandboxes::restore), [`fork`](Sandboxes::fork): state of a Sandbox, and
//!   Sandboxes that start from it;
//! - [`events`](Sandboxes::events): events of a Sandbox and its Pod.
//!
//! A function that waits takes a [`Wait`], which has a time limit and reports what is awaited.

mod copy;
mod error;
mod exec;
mod name;
mod obstacle;
mod pod;
mod sandboxes;
mod state;
mod wait;

pub use copy::{Destination, Member};
pub use error::{Error, Obstacle};
pub use exec::{CANNOT_START, Command, Ended, Input, Output, Session};
pub use name::Name;
pub use pod::LogOptions;
pub use sandboxes::{Sandboxes, Target};
pub use state::{NewFork, NewSnapshot, Source};
pub use wait::{Progress, Wait};
