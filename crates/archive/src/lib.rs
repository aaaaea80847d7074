//! Tar archives, without compression: reads the entries of untrusted archives within limits, bounds what a compressed one unpacks
//! to, and packs folders.
//!
//! The callers create the files: layers of images, uploads into a sandbox and copies out of one have different rules for
//! links, owners and replaced files.

mod pack;
mod path;
mod read;
mod unpacked;

pub use pack::{Notice, Packing, append_file, append_folder, pack};
pub use path::{AbsolutePaths, PathError, relative};
pub use read::{Entry, Kind, Limits, ReadError, read};
pub use tar::Builder;
pub use unpacked::Unpacked;
