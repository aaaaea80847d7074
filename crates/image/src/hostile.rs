//! Names of images and the documents of an OCI layout, each as one function of any bytes: it neither panics nor runs
//! without end.

use std::path::Path;

use crate::reference::Reference;

/// A name.
pub fn references(bytes: &[u8]) {
    if let Ok(name) = std::str::from_utf8(bytes) {
        let _ = Reference::parse(name);
    }
}

/// The index of a layout, in a folder that is made for it.
///
/// # Panics
/// When no folder can be had.
pub fn indexes(bytes: &[u8]) {
    let folder = std::env::temp_dir().join(format!("hutch-hostile-layout-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let put = |name: &Path, bytes: &[u8]| std::fs::write(folder.join(name), bytes).expect("written");
    put(Path::new("oci-layout"), br#"{"imageLayoutVersion":"1.0.0"}"#);
    put(Path::new("index.json"), bytes);
    for tag in [None, Some("latest")] {
        let _ = crate::layout::read(&folder, tag);
    }
    std::fs::remove_dir_all(&folder).expect("removed");
}

#[cfg(test)]
mod tests {
    use hutch_testkit::hostile::feed;

    #[test]
    fn any_bytes_are_taken() {
        feed("image_references", super::references);
        feed("image_indexes", super::indexes);
    }
}
