//! Writes content that arrives from a client in pieces, without holding a thread between the pieces.

use std::path::PathBuf;
use std::sync::Arc;

use super::{Draft, FileError, Root};
use crate::files::work;

/// Bytes collected before a write. A smaller file needs one task on a file thread.
const GATHER_SIZE: usize = 128 << 10;

/// File that is being received. It has its name after [`Upload::finish`]; dropping it removes the file.
#[derive(Debug)]
pub struct Upload {
    root: Arc<Root>,
    path: PathBuf,
    mode: Option<u32>,
    draft: Option<Draft>,
    gathered: Vec<u8>,
}

impl Upload {
    /// Starts to receive the file at `path`; `mode` as in [`Root::draft`].
    pub fn new(root: Arc<Root>, path: PathBuf, mode: Option<u32>) -> Upload {
        Upload { root, path, mode, draft: None, gathered: Vec::new() }
    }

    /// Appends the next piece.
    ///
    /// # Errors
    /// As [`Root::draft`] and [`Draft::write`]. No more pieces can be pushed then.
    pub async fn push(&mut self, piece: &[u8]) -> Result<(), FileError> {
        self.gathered.extend_from_slice(piece);
        if self.gathered.len() < GATHER_SIZE {
            return Ok(());
        }
        let content = std::mem::take(&mut self.gathered);
        let opening = self.opening();
        let (draft, mut content) = work::on_files(move || {
            let mut draft = opening()?;
            draft.write(&content)?;
            Ok((draft, content))
        })
        .await?;
        content.clear();
        (self.draft, self.gathered) = (Some(draft), content);
        Ok(())
    }

    /// Writes the rest and gives the file its name.
    ///
    /// # Errors
    /// As [`Root::draft`], [`Draft::write`] and [`Draft::keep`].
    pub async fn finish(mut self) -> Result<(), FileError> {
        let content = std::mem::take(&mut self.gathered);
        let opening = self.opening();
        work::on_files(move || {
            let mut draft = opening()?;
            draft.write(&content)?;
            draft.keep()
        })
        .await
    }

    fn opening(&mut self) -> impl FnOnce() -> Result<Draft, FileError> + Send + 'static {
        let (root, path, mode, draft) = (self.root.clone(), self.path.clone(), self.mode, self.draft.take());
        move || draft.map_or_else(|| root.draft(path, mode), Ok)
    }
}
