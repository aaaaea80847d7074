//! Cursor of an exporter: the last record that its receiver has acknowledged.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::folder::CURSORS;
use crate::head::replace;

/// Maximum bytes of the name of an exporter.
const NAME_MAX: usize = 63;

/// Place in a log.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor {
    /// Number of the last record that was acknowledged; zero before the first one.
    pub seq: u64,
    /// Its hash in hexadecimal.
    pub hash: String,
    /// Name of the receiver; empty in a new cursor.
    #[serde(default)]
    pub receiver: String,
    /// Records that the receiver has refused for good, and those that it has rejected in a batch.
    #[serde(default)]
    pub refused: u64,
    /// The exporter runs as a service: retention waits for it.
    #[serde(default)]
    pub follows: bool,
}

/// Returns true for a name that an exporter can have: that of a file, as of a label of DNS.
pub fn is_name(name: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !name.is_empty() && name.len() <= NAME_MAX && !name.starts_with('-') && name.bytes().all(is_inner)
}

impl Cursor {
    /// Reads the cursor of an exporter.
    ///
    /// # Errors
    /// The file cannot be read or is damaged.
    pub fn read(folder: &Path, name: &str) -> Result<Cursor, Error> {
        let path = path(folder, name);
        match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| Error::file(&path)(error.into())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Cursor::default()),
            Err(error) => Err(Error::file(&path)(error)),
        }
    }

    /// Saves it.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self, folder: &Path, name: &str) -> Result<(), Error> {
        let text = serde_json::to_vec(self).unwrap_or_default();
        replace(&folder.join(CURSORS), name, &text)
    }
}

pub(crate) fn path(folder: &Path, name: &str) -> PathBuf {
    folder.join(CURSORS).join(name)
}

/// Progress of an exporter, for retention.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Name of the exporter.
    pub(crate) name: String,
    /// Last record that it has sent.
    pub(crate) sent: u64,
    /// Retention waits for it.
    pub(crate) follows: bool,
}

/// Returns the progress of each exporter of a log, by name. One whose cursor is damaged counts as one that follows and has
/// sent nothing.
///
/// # Errors
/// The folder cannot be read.
pub(crate) fn all(folder: &Path) -> Result<Vec<Progress>, Error> {
    let place = folder.join(CURSORS);
    let entries = fs::read_dir(&place).map_err(Error::file(&place))?;
    let mut all = Vec::new();
    for entry in entries {
        let name = entry.map_err(Error::file(&place))?.file_name().to_string_lossy().into_owned();
        if !is_name(&name) {
            continue;
        }
        let (sent, follows) =
            Cursor::read(folder, &name).map_or((0, true), |cursor| (cursor.seq, cursor.follows));
        all.push(Progress { name, sent, follows });
    }
    all.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(all)
}
