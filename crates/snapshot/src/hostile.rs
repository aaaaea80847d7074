//! The manifest of an image as one function of any bytes: it neither panics nor accepts what this machine did not sign.

use hutch_image::PathSegment;

use crate::key::Key;
use crate::manifest::{read, seal, write};

/// A manifest, first as a file that another program wrote, then as bytes that this machine has signed.
///
/// # Panics
/// When an unsigned manifest is accepted, or one that was accepted is not written as it was read.
pub fn manifests(bytes: &[u8]) {
    let key = Key::new(&[7; 32]);
    let id = PathSegment::fixed("image");
    assert!(read(&key, &id, bytes).is_err(), "not signed");
    let Ok(manifest) = read(&key, &id, &seal(&key, bytes)) else { return };
    let (_, again) = write(&key, &id, &manifest).expect("what can be read can be written");
    // Facts may have numbers that JSON does not keep to the last digit.
    assert_eq!((again.memory, again.trees), (manifest.memory, manifest.trees));
}

#[cfg(test)]
mod tests {
    use hutch_testkit::hostile::feed;

    #[test]
    fn any_bytes_are_taken() {
        feed("snapshot_manifests", super::manifests);
    }
}
