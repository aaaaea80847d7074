//! PAX and GNU headers of a tar stream: entries with the name or link target of the next entry, if these do
//! not fit into its header. All unpackers parse them here with a length limit, because the library has none.

use std::io::{self, Read};

use tar::{Entry, EntryType, PaxExtensions};

/// Maximum bytes of a PAX or GNU header.
pub const NOTE_LIMIT: u64 = 64 << 10;

/// Reason why a PAX or GNU header was rejected.
#[derive(Debug, thiserror::Error)]
pub enum NoteError {
    /// The stream broke off.
    #[error("the tar stream cannot be read: {0}")]
    Stream(io::Error),
    /// Invalid PAX header.
    #[error("the tar stream cannot be read: {0}")]
    Pax(io::Error),
    /// Too long for a name, in bytes.
    #[error("the tar stream has a name or header of {0} bytes; at most {NOTE_LIMIT} are taken")]
    Long(u64),
    /// Size of an entry in a PAX header, which is not supported.
    #[error(
        "the tar stream has a size in a pax header, which is not supported: files of less than 8 GiB need none"
    )]
    Size,
}

/// Values of the headers so far for the next entry, as unvalidated bytes.
#[derive(Debug, Default)]
pub struct Notes {
    /// Path of the entry.
    pub path: Option<Vec<u8>>,
    /// Link target of the entry.
    pub link: Option<Vec<u8>>,
}

impl Notes {
    /// Returns true if the entry is a PAX or GNU header. The stream must be read raw.
    ///
    /// # Errors
    /// [`NoteError`]; the rest of the stream is then invalid.
    pub fn take(&mut self, entry: &mut Entry<'_, impl Read>) -> Result<bool, NoteError> {
        match entry.header().entry_type() {
            EntryType::GNULongName => self.path = Some(text(note(entry)?)),
            EntryType::GNULongLink => self.link = Some(text(note(entry)?)),
            EntryType::XHeader => {
                let note = note(entry)?;
                for extension in PaxExtensions::new(&note) {
                    let extension = extension.map_err(NoteError::Pax)?;
                    match extension.key_bytes() {
                        b"path" => self.path = Some(extension.value_bytes().to_vec()),
                        b"linkpath" => self.link = Some(extension.value_bytes().to_vec()),
                        b"size" => return Err(NoteError::Size),
                        _ => {}
                    }
                }
            }
            EntryType::XGlobalHeader => {}
            _ => return Ok(false),
        }
        Ok(true)
    }
}

fn note(entry: &mut Entry<'_, impl Read>) -> Result<Vec<u8>, NoteError> {
    if entry.size() > NOTE_LIMIT {
        return Err(NoteError::Long(entry.size()));
    }
    let mut note = Vec::new();
    entry.read_to_end(&mut note).map_err(NoteError::Stream)?;
    Ok(note)
}

/// Truncates at the terminating NUL.
fn text(mut note: Vec<u8>) -> Vec<u8> {
    let end = note.iter().position(|&byte| byte == 0).unwrap_or(note.len());
    note.truncate(end);
    note
}

#[cfg(test)]
mod tests {
    use super::*;
    use tar::{Archive, Builder, Header};

    fn take(notes: &mut Notes, kind: EntryType, content: &[u8]) -> Result<bool, NoteError> {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(content.len() as u64);
        header.set_cksum();
        let mut builder = Builder::new(Vec::new());
        builder.append(&header, content).unwrap();
        let stream = builder.into_inner().unwrap();
        let mut archive = Archive::new(&stream[..]);
        let mut entry = archive.entries().unwrap().raw(true).next().unwrap().unwrap();
        notes.take(&mut entry)
    }

    #[test]
    fn each_header_kind_is_accepted_up_to_its_limit() {
        let mut notes = Notes::default();
        let longest = vec![b'n'; 64 << 10];
        assert!(take(&mut notes, EntryType::GNULongName, &longest).unwrap());
        assert_eq!(notes.path.as_deref(), Some(&longest[..]));
        assert!(take(&mut notes, EntryType::GNULongLink, b"to\0rest").unwrap());
        assert_eq!(notes.link.as_deref(), Some(&b"to"[..]));
        assert!(take(&mut notes, EntryType::XHeader, b"10 path=p\n14 linkpath=l\n").unwrap());
        assert_eq!((notes.path.as_deref(), notes.link.as_deref()), (Some(&b"p"[..]), Some(&b"l"[..])));
        assert!(take(&mut notes, EntryType::XGlobalHeader, b"any").unwrap());
        assert!(!take(&mut notes, EntryType::Regular, b"").unwrap());
        let mut refused = |kind, content: &[u8]| take(&mut notes, kind, content).unwrap_err();
        let long = [&longest[..], b"n"].concat();
        assert!(matches!(refused(EntryType::GNULongName, &long), NoteError::Long(65537)));
        assert!(matches!(refused(EntryType::XHeader, b"10 size=9\n"), NoteError::Size));
        assert!(matches!(refused(EntryType::XHeader, b"none"), NoteError::Pax(_)));
    }
}
