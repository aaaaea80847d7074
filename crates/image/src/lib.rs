//! Gives the folders, mounts and settings that stand behind the name of an image.
//!
//! Three images are built in and need no download: `hutch/host`, a read-only view of this machine's programs,
//! `hutch/python-runtime`, the same with the sandbox runtime as its program, and `hutch/pause`, which only waits. Others
//! are OCI layout folders, whose layers are verified and unpacked, one folder each. A confined process unpacks them, if the
//! caller has given means to start one ([`Store::with_unpacker`]).
//!
//! It refuses to fetch anything over a network, to run anything, to write outside its own folder, and to unpack
//! what it has not verified. The interface blocks.

mod beneath;
mod catalog;
mod confined;
mod error;
#[expect(
    clippy::disallowed_methods,
    reason = "constant names, and names of entries of folders of this machine's administrator"
)]
mod host;
#[cfg(any(test, feature = "fuzzing"))]
#[expect(clippy::disallowed_methods, reason = "names of this module in a temporary folder")]
pub mod hostile;
mod layout;
mod names;
mod owners;
mod reference;
mod removal;
mod reserve;
mod resolved;
mod segment;
mod shelf;
mod stop_signal;
mod store;
mod turns;
mod unfinished;
mod unpack;
mod uses;

pub use beneath::Folder;
pub use catalog::{Catalog, Freed, Listed, ListedLayer};
pub use confined::{Unpacker, unpack_and_report};
pub use error::Error;
pub use names::Account;
pub use reference::{BuiltIn, Reference};
pub use removal::remove_tree;
pub use reserve::check_room;
pub use resolved::{HostMount, ImageConfig, PAUSE, Resolved, SANDBOXD_PATH};
pub use segment::PathSegment;
pub use stop_signal::StopSignal;
pub use store::Store;
pub use unpack::{MAX_LAYER_BYTES, import};
pub use uses::Hold;
