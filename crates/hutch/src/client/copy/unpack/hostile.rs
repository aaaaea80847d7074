//! A tar stream of any bytes.

use std::path::Path;

use super::{Destination, unpack};

/// Unpacks it into a folder that is made for it. Nothing beside that folder changes, and nothing half done is left.
pub(crate) fn stream(bytes: &[u8]) {
    let folder = std::env::temp_dir().join(format!("hutch-hostile-copy-{}", std::process::id()));
    let inside = folder.join("in");
    std::fs::create_dir_all(&inside).expect("a folder");
    for member in ["", "got"] {
        let to = Destination::open(&inside, Path::new(member)).expect("a destination");
        let _ = unpack(bytes, Path::new(member), &to);
    }
    let beside = std::fs::read_dir(&folder).expect("a folder").count();
    let left = has_drafts(&inside);
    std::fs::remove_dir_all(&folder).expect("removed");
    assert_eq!(beside, 1);
    assert!(!left, "a draft is left");
}

fn has_drafts(folder: &Path) -> bool {
    std::fs::read_dir(folder).into_iter().flatten().flatten().any(|entry| {
        let folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        entry.file_name().to_string_lossy().starts_with(".hutch-cp-") || folder && has_drafts(&entry.path())
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn any_bytes_are_taken() {
        hutch_testkit::hostile::feed("hutch_copy", super::stream);
    }
}
