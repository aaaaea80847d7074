//! Keeps the images of snapshots in a folder of this machine: memory that `runsc` wrote, and copies of upper folders and volumes.
//!
//! An image is complete or not there. It is made in a folder of another name, which gets the name of the image after all
//! bytes are on the disk. Its manifest has a keyed digest of everything in the image, and is authenticated with a key of the
//! machine (HMAC-SHA256). What differs from the manifest is refused, and so is an image under the name of another one.
//!
//! It refuses to follow a link of a tree, to open a device, and to copy a part of a tree and call it whole. It does not
//! encrypt, and does not recognize an image that was put back after it had been removed: names of images must be unique. Only
//! one process may use a folder at a time. The interface blocks.
//!
//! Kept of a tree: bytes and holes of files, folders, symbolic links, FIFOs, whiteouts of overlays, hard links within the tree,
//! owners, modes with set-id bits, times of modification, and all extended attributes. Not kept: sockets, which are left
//! out, times of access, inode flags and project ids. Other devices are refused.

mod attributes;
mod content;
mod copy;
mod digest;
mod error;
#[cfg(any(test, feature = "fuzzing"))]
pub mod hostile;
mod image;
mod images;
mod key;
mod links;
mod manifest;
mod name;
mod partial;
mod private;
mod store;
#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "constant names in a temporary folder")]
mod tests;
mod walk;

pub use copy::Copied;
pub use error::Error;
pub use image::{Image, Sizes};
pub use images::Images;
pub use name::TreeName;
pub use partial::Partial;
